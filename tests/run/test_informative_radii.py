"""Radii that tell the encoders of a run apart, where nobody names any."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import holdfast as hf
from holdfast.core.balls import Linf
from holdfast.core.settings import convert, number
from holdfast.report.text import listed
from holdfast.run import radii
from holdfast.run.radii import LEAST, MOST, choose, left_open, lost
from holdfast.run.request import Request, planned
from tests.facts import says

DEFAULTS = (Linf(0.05), Linf(0.1))


def sharp(name: str, slope: float, seed: int = 0) -> hf.Encoder:
    """An encoder that is the more sensitive the steeper it is: saturated far away, so that radii shrink with the slope."""
    torch.manual_seed(seed)
    first = nn.Linear(64, 16)
    first.weight.data *= slope
    first.bias.data = -first.weight.data.sum(1) / 2
    return hf.Encoder(nn.Sequential(nn.Flatten(), first, nn.Tanh()), name, hf.Domain((1, 8, 8)))


def pictures(count: int = 40) -> torch.Tensor:
    return 0.5 + 0.002 * torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_radii_are_those_at_which_the_strongest_loses_some_images() -> None:
    radii = {"weak": [0.0001] * 32, "strong": [0.0005 * (1 + row / 8) for row in range(32)]}
    chosen = choose(radii, DEFAULTS)
    assert chosen is not None
    assert [str(ball) for ball in chosen.balls] == ["linf:0.3/255", "linf:0.5/255"]
    assert all(LEAST <= lost(radii["strong"], ball.radius) <= MOST for ball in chosen.balls)
    assert "strong" in chosen.sentence
    assert "weak" not in chosen.sentence
    assert choose(dict(reversed(radii.items())), DEFAULTS) == chosen, "the order of encoders"


def test_one_radius_stays_one_and_informative_defaults_stay() -> None:
    radii = [0.001 * (1 + row) for row in range(32)]
    one = choose({"a": radii}, [Linf(0.05)])
    assert one is not None
    assert len(one.balls) == 1
    assert LEAST <= lost(radii, one.balls[0].radius) <= MOST
    kept = choose({"a": [0.04, 0.06, 0.2, inf]}, DEFAULTS)
    assert kept is not None
    assert kept.balls == DEFAULTS


@pytest.mark.parametrize("radii", [{}, {"a": []}, {"a": [inf, inf, 0.9]}, {"a": [0.0, 0.0, 0.0]}])
def test_where_no_radius_tells_anything_none_is_chosen(radii: dict[str, list[float]]) -> None:
    assert choose(radii, [Linf(0.6)] if radii else DEFAULTS) is None


def test_all_radii_alike_are_met_in_two_digits() -> None:
    chosen = choose({"a": [0.4 / 255, 0.41 / 255, 0.41 / 255]}, [Linf(0.1)])
    assert chosen is not None
    assert str(chosen.balls[0]) == "linf:0.41/255" or lost([0.4, 0.41, 0.41], 255 * chosen.balls[0].radius) < 1


@pytest.mark.parametrize("text", ["0.25/255", "0.3/255", "1.5/255", "8/255", "128/255", "0.05", "1e-06"])
def test_radii_below_a_grey_level_are_read_and_spelled(text: str) -> None:
    assert number(convert(text, float, "eps")) == text


def test_runs_choose_the_same_radii_in_any_order_with_a_budget_and_again(tmp_path: Path) -> None:
    encoders, images = [sharp("flat", 1.0), sharp("steep", 20.0)], pictures()
    only: dict[str, Any] = {
        "only": "displacement",
        "settings": {"displacement": {"samples": 8, "attacks": ["u-fgsm"]}},
        "progress": False,
    }

    def balls(run: hf.EvaluatedRun) -> set[str]:
        assert not run.failures, run.failures
        return {listed(result.settings["balls"]) for result in run.results}

    first = hf.evaluate(encoders, images, **only, out=tmp_path / "a")
    chosen = balls(first)
    assert len(chosen) == 1, "every encoder has the same"
    assert "0.05" not in next(iter(chosen)), "the defaults are too wide"
    shards = sorted((tmp_path / "a" / "shards").rglob("*.safetensors"))
    again = hf.evaluate(encoders, images, **only, out=tmp_path / "a")
    assert (balls(again), sorted((tmp_path / "a" / "shards").rglob("*.safetensors"))) == (chosen, shards)
    assert balls(hf.evaluate(encoders[::-1], images, **only, budget=600.0)) == chosen
    why = {result.provenance["radii"] for result in first.results}
    assert why.pop() in first.report().read_text()


@pytest.mark.parametrize(("budget", "searched"), [(None, 12), (600.0, 4)])
def test_few_images_of_a_large_encoder_are_searched_under_a_budget(
    budget: float | None, searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radii, "HEAVY", 0)
    cheap = {"displacement": {"samples": 8, "attacks": ["u-fgsm"]}}
    run = hf.evaluate(
        sharp("a", 20.0), pictures(), only="displacement", settings=cheap, budget=budget, progress=False, workers=1
    )
    assert f" of {searched} images" in run.results[0].provenance["radii"]


def test_radii_that_somebody_names_and_those_of_protocols_stay() -> None:
    def free(**asked: Any) -> list[str]:
        request = Request(**asked)
        return [evaluation.name for evaluation in left_open(request, planned(request))]

    assert free(only=("displacement", "overlap", "geometry")) == ["displacement", "overlap"]
    assert free(only=("displacement", "overlap"), settings={"overlap": {"balls": ["linf:0.2"]}}) == ["displacement"]
    for fixed in ({"eps": ("0.25/255",)}, {"ball": ("l2:0.5",)}, {"suite": "standard"}, {"suite": "full"}):
        assert not free(only=("displacement",), **fixed)


def test_evaluations_that_search_radii_are_no_reason_to_choose_some() -> None:
    cheap = {"attack-radius": {"samples": 2, "events": ["retrieval"], "attack": "u-fgsm"}}
    run = hf.evaluate(sharp("a", 20.0), pictures(8), only="attack-radius", settings=cheap, progress=False)
    assert "radii" not in run.results[0].provenance
    assert run.results[0].settings["balls"] == []


@pytest.mark.parametrize("budget", [None, 600.0])
def test_images_searched_for_the_choice_are_not_searched_again(budget: float | None, tmp_path: Path) -> None:
    """And without a budget, what breakaway attacks counts in the attack radius, so that it is attacked once."""
    settings = {
        "attack-radius": {"samples": 40, "events": ["retrieval"], "attack": "u-fgsm"},
        "breakaway": {"samples": 40, "attacks": ["u-fgsm"], "pairwise": "u-fgsm", "divergences": ["l2"]},
    }
    asked: dict[str, Any] = {"settings": settings, "progress": False, "workers": 1, "budget": budget, "out": tmp_path}
    run = hf.evaluate(sharp("a", 20.0), pictures(50), only=("attack-radius", "breakaway"), **asked)
    assert not run.failures, run.failures
    radius, breakaway = run.results
    balls = breakaway.settings["balls"]
    assert radius.settings["balls"] == ([] if budget else balls)
    assert balls != ["linf:0.05", "linf:0.1"]
    rows = {
        kind: [
            sum(observed_rows(shard) for shard in folder.iterdir())
            for folder in (tmp_path / "shards").glob(f"{kind}-*")
        ]
        for kind in ("radii", "untargeted", "pairwise")
    }
    assert rows == {"radii": [40], "untargeted": [40] * len(balls), "pairwise": [40] * len(balls)}


def observed_rows(shard: Path) -> int:
    """The number of rows that a file of a run holds."""
    return min(len(values) for values in load_file(shard).values())


def test_a_default_far_beyond_the_median_does_not_stay_where_a_few_images_are_far_from_all_others() -> None:
    radii = [0.1 / 255] * 4 + [0.3 / 255] * 4 + [44 / 255] * 4
    chosen = choose({"a": radii}, [Linf(0.05)])
    assert chosen is not None
    assert LEAST <= lost(radii, 0.05) <= MOST, "a vacuous case"
    assert chosen.balls[0].radius < 1 / 255


def test_an_encoder_that_is_never_lost_leaves_the_choice_to_the_others() -> None:
    chosen = choose({"blank": [inf] * 8, "a": [0.9 / 255, 0.95 / 255, 1.0 / 255]}, DEFAULTS)
    assert chosen is not None
    assert all(0.5 < 255 * ball.radius <= 1 for ball in chosen.balls)


def test_probes_under_attack_get_radii_at_which_they_lose_some_images(tmp_path: Path) -> None:
    # Two classes that differ by little: a probe is lost long before an image is nearer to one of a distant bank.
    labels = torch.arange(40) % 2
    images = (0.5 + 0.002 * torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    images += 0.001 * (2.0 * labels - 1)[:, None, None, None]
    bank = images + 0.002 * torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    bank[:, :, :4] += 0.3  # no image of the bank is near one that is measured
    flat = hf.Encoder(nn.Flatten(), "flat", hf.Domain((1, 8, 8)))
    named: dict[str, Any] = {
        "bank": hf.Images(bank.clamp(0, 1), labels=labels),
        "settings": {
            "breakaway": {"samples": 4, "attacks": ["u-fgsm"]},
            "robust-accuracy": {"probes": ["linear"], "attacks": ["u-fgsm"]},
        },
        "progress": False,
        "workers": 1,
        "out": tmp_path,
    }
    run = hf.evaluate(flat, hf.Images(images, labels=labels), only=("robust-accuracy", "breakaway"), **named)
    assert not run.failures, run.failures
    accuracy = next(result for result in run.results if result.evaluation == "robust-accuracy")
    kept = [each.value for each in accuracy.estimates if each.quantity == "robust_accuracy"]
    assert any(1 - MOST <= value <= 1 - LEAST for value in kept), kept
    balls = {result.evaluation: result.settings["balls"] for result in run.results}
    assert balls["robust-accuracy"] != balls["breakaway"]


def test_a_further_encoder_may_change_the_radii_and_that_is_said(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "only": "displacement",
        "settings": {"displacement": {"samples": 8, "attacks": ["u-fgsm"]}},
        "progress": False,
    }
    weak, strong = sharp("weak", 20.0), sharp("strong", 0.5)
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    alone = hf.evaluate(weak, images, **settings, out=tmp_path)
    both = hf.evaluate([weak, strong], images, **settings, out=tmp_path)
    before, after = alone.results[0].settings["balls"], both.results[0].settings["balls"]
    assert before != after, "vacuous encoders"
    assert says(both.results[0].provenance["radii"], "Earlier results")
    assert "Earlier" not in alone.results[0].provenance["radii"]


def searched(folder: Path) -> list[Path]:
    """What a run keeps of the search for radii."""
    return list((folder / "shards").glob("radii-*/*"))


@pytest.mark.parametrize("command", ["threshold", "displacement"])
def test_the_search_for_radii_keeps_to_the_budget_and_goes_on(command: str, tmp_path: Path) -> None:
    """A budget that is over before the search begins leaves the search to the next run."""
    settings = {
        "threshold": {"samples": 8, "attack": "u-fgsm", "edits": ["noise"]},
        "displacement": {"samples": 8, "attacks": ["u-fgsm"]},
    }
    asked: dict[str, Any] = {"only": command, "settings": {command: settings[command]}, "progress": False}
    encoder, images = sharp("steep", 20.0), pictures(16)
    whole = hf.evaluate(encoder, images, **asked, out=tmp_path / "whole", workers=1)
    assert searched(tmp_path / "whole")
    ended = hf.evaluate(encoder, images, **asked, out=tmp_path / "run", workers=1, budget=1e-6)
    assert not ended.results
    assert ended.failures
    assert not searched(tmp_path / "run")
    again = hf.evaluate(encoder, images, **asked, out=tmp_path / "run", workers=1)
    assert [result.settings["balls"] for result in again] == [result.settings["balls"] for result in whole]
