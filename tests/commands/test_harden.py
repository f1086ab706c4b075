"""Hardening: any encoder, images alone; what it gains and costs is measured on images that it was not trained on."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands import harden
from holdfast.commands import harden as budget
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.commands.harden import parted
from holdfast.commands.runs import read
from holdfast.commands.train import train
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.run.engines.ray import Ray
from holdfast.training.hardening import agreement, agreement_of, batch_of, recipe_for
from holdfast.training.recipe import Recipe
from tests.facts import refused, says
from tests.samples import digits

pytest.importorskip("lightning_fabric")

BALL = hf.Linf(0.1)


def small() -> Encoder:
    torch.manual_seed(0)
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh()), "small", Domain((1, 8, 8)))


@pytest.mark.slow
def test_training_keeps_codes_under_attack_and_says_how_well(tmp_path: Path) -> None:
    original, images, folder = small(), digits(30), tmp_path / "made"
    taught, held = parted(images, None, 0)
    watch = agreement_of(original, held, "cpu")
    hardened = train(
        recipe_for(original, 24, BALL, epochs=5, rate=0.01, settings={"batch": 24}),
        taught,
        start=original,
        watch=watch,
        out=folder,
        progress=False,
    )
    curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert curve[0]["agreement"] == pytest.approx(1)
    assert curve[0]["neighbours_kept"] == 1
    assert 0.9 < curve[-1]["agreement"] < 1
    assert curve[-1]["agreement"] == pytest.approx(watch(hardened.module)["agreement"])
    attack = hf.GradientAttack(steps=10)
    moved = [hf.attack(one, held, BALL, attack=attack, progress=False) for one in (original, hardened)]
    before, after = ((one.codes - one.clean_codes).norm(dim=1).mean() for one in moved)
    assert after < before


@pytest.mark.slow
def test_an_encoder_keeps_its_codes_and_its_report_has_both(tmp_path: Path) -> None:
    original = small()
    before = original.fingerprint
    hardened = hf.harden(original, digits(30), ball=BALL, epochs=2, rate=0.01, out=tmp_path / "made", progress=False)
    assert hardened.encoder.fingerprint != before == original.fingerprint
    assert {result.encoder.name for result in hardened.run} == {"small", "made"}
    assert {result.evaluation for result in hardened.run} == {"attack-radius", "breakaway", "displacement"}
    assert all(result.images.count == 6 for result in hardened.run)
    assert 0.9 < hardened.agreement["agreement"] < 1


@pytest.mark.slow
def test_a_hardened_encoder_is_harder_to_break_and_keeps_its_neighbours(tmp_path: Path) -> None:
    arguments = ["harden", "builtin:digits-contrastive", "--images", "builtin:digits-train", "--eps", "0.1"]
    arguments += ["--limit", "700", "--epochs", "30", "--rate", "2e-3", "--out", str(tmp_path / "hard")]
    assert run(arguments) == 0
    results, failures = read([tmp_path / "hard" / "before-after"])
    assert not failures
    risk = {
        result.encoder.name: result.estimate("breakaway_risk", attack="adaptive", divergence="l2").value
        for result in results
        if result.evaluation == "breakaway"
    }
    assert risk["hard"] < 0.7 * risk["digits-contrastive"]
    last = json.loads((tmp_path / "hard" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["agreement"] > 0.98
    assert (tmp_path / "hard" / "before-after" / "report.html").exists()
    assert hf.load_encoder(f"trained:{tmp_path / 'hard'}").domain == Domain((1, 8, 8))


def test_training_and_measuring_share_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments, trained, asked = count(0.0, 10.0), dict[str, Any](), dict[str, Any]()

    def training(*args: Any, **settings: Any) -> Encoder:
        trained.update(settings)
        return train(*args, **settings)

    def measured(*_: Any, **settings: Any) -> None:
        asked.update(settings)
        raise InterruptedError

    monkeypatch.setattr(harden, "monotonic", lambda: next(moments))
    monkeypatch.setattr(harden, "budget_start", lambda: next(moments))
    monkeypatch.setattr(harden, "train", training)
    monkeypatch.setattr(harden, "evaluate", measured)
    out = tmp_path / "made"
    with pytest.raises(InterruptedError):
        hf.harden(small(), digits(30), ball=BALL, epochs=1, budget=100.0, workers=2, out=out, progress=False)
    assert trained["budget"] == 50 - 10
    assert (asked["budget"], asked["workers"], asked["cluster"]) == (100 - 20, 2, None)
    assert (out / "card.json").exists()


def test_what_a_spent_budget_leaves_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[list[Encoder]]()

    def measure(encoders: list[Encoder], *_: Any, **__: Any) -> EvaluatedRun:
        measured.append(encoders)
        return EvaluatedRun((), (), tmp_path)

    monkeypatch.setattr(harden, "evaluate", measure)
    original, taught = hf.load_encoder("builtin:digits-contrastive"), digits(30)
    settings: dict[str, Any] = {"ball": BALL, "epochs": 2, "rate": 1e-3, "out": tmp_path / "made", "progress": False}
    with pytest.warns(HoldfastWarning, match="after 0 of 2 epochs and 1 of 3 steps"):
        early = hf.harden(original, taught, budget=1e-6, **settings)
    kept = hf.load_encoder(f"trained:{tmp_path / 'made'}")
    pixels = taught.pixels(range(4))
    assert torch.equal(kept(pixels), early.encoder(pixels)), "the encoder so far can be loaded"
    assert "1 of 3 steps" in early.unfinished
    assert 0.9 < early.agreement["agreement"] < 1
    done = hf.harden(original, taught, **settings)
    assert not done.unfinished
    assert [encoder.name for _, encoder in measured] == ["made (epoch 0, step 1)", "made"]
    assert measured[0][1].fingerprint != measured[1][1].fingerprint
    assert hf.load_encoder(f"trained:{tmp_path / 'made'}").name == "made"


def test_a_budget_takes_as_many_epochs_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    original, images = small(), digits(30)
    taught, held = parted(images, None, 0)
    recipe, moments = recipe_for(original, 24, BALL, epochs=50), count()
    monkeypatch.setattr(budget, "monotonic", lambda: next(moments))
    # Three steps of a second; the watch takes a second for 6 images, and health looks at 24 beside them.
    epoch = 3 * 1 + (24 + 6) / 6
    fitting = budget.epochs_within(
        40.0, recipe, taught, len(held), original, "cpu", agreement_of(original, held, "cpu")
    )
    assert fitting == int(0.8 * 40 / epoch)


def test_the_schedule_ends_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harden, "evaluate", lambda *_, **__: EvaluatedRun((), (), tmp_path))
    monkeypatch.setattr(harden, "epochs_within", lambda *_: 2)
    settings: dict[str, Any] = {"ball": BALL, "out": tmp_path / "made", "progress": False}
    with pytest.warns(HoldfastWarning, match="2 of 417 epochs"):
        done = hf.harden(small(), digits(30), budget=1000.0, **settings)
    assert not done.unfinished
    rates = [json.loads(line).get("rate") for line in (tmp_path / "made" / "metrics.jsonl").read_text().splitlines()]
    assert len(rates) == 3
    assert rates[-1] < rates[1] / 2, "the cosine came down"
    again = hf.harden(small(), digits(30), **settings)
    assert again.encoder.fingerprint == done.encoder.fingerprint, "the same training goes on without a budget"


HARDEN = ["harden", "builtin:digits-contrastive", "--images", "builtin:digits-train", "--limit", "40", "--eps", "0.1"]


def test_a_spent_budget_leaves_a_comparison_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoders, folder = [hf.load_encoder(f"builtin:digits-{name}") for name in ("random", "robust")], tmp_path / "made"
    attacks = {"displacement": {"attacks": "pgd:steps=2", "samples": 8}}
    measured: dict[str, Any] = {"only": "displacement", "settings": attacks, "ball": BALL, "progress": False}
    run_of_both = hf.evaluate(encoders, digits(20), **measured, out=folder / "before-after")
    partial = [result.model_copy(update={"planned": 20}) for result in run_of_both]
    left = EvaluatedRun(tuple(partial), (), folder / "before-after")
    agreement = {"agreement": 0.9, "neighbours_kept": 0.8}
    spent = harden.Hardened(encoders[1], agreement, left, unfinished="the budget was spent after 7 of 105 epochs")
    monkeypatch.setattr(harden, "harden", lambda *_, **__: spent)
    assert run([*HARDEN, "--out", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert {"0.900", "80.0%"} <= set(printed.split())
    assert "digits-random" in printed
    assert "digits-robust" in printed


def test_who_stops_the_measurement_is_told_that_training_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(harden, "evaluate", stopped)
    assert run([*HARDEN, "--epochs", "1", "--out", str(tmp_path / "made")]) == 130
    *_, which, last = capsys.readouterr().err.splitlines()
    assert which.startswith(f"trained:{tmp_path / 'made'} ")
    assert says(last, "stopped", "continues")
    assert hf.load_encoder(f"trained:{tmp_path / 'made'}").name == "made"


def test_few_images_are_seen_often_and_in_steps_enough() -> None:
    for number in (16, 24, 116, 160, 999, 5000, 100_000):
        recipe = recipe_for(small(), number, BALL)
        batch = batch_of(number)
        assert recipe.batch == batch <= 128
        assert number // batch >= 2
        assert recipe.epochs * (number - number % batch) >= 10_000
        assert recipe.epochs >= 10
    assert recipe_for(small(), 100_000, BALL).epochs == 10


def test_rate_and_crops_follow_from_the_encoder_and_how_often_it_sees_an_image() -> None:
    ending = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), *ending)
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *ending).eval()
    large, tiny = Domain((3, 32, 32)), Domain((3, 16, 16))

    def recipe(module: nn.Module, domain: Domain, count: int, settings: dict[str, str] | None = None) -> Recipe:
        encoder = Encoder(module, "it", domain, mean=(0.0,) * 3, std=(1.0,) * 3)
        return recipe_for(encoder, count, BALL, settings=settings)

    assert [recipe(module, large, 100).optimiser.rate for module in (plain, normed)] == [2e-5, 3e-4]
    assert "random-resized-crop" in str(recipe(plain, large, 100).augmentation)
    assert recipe(plain, large, 5000).augmentation is None
    assert recipe(plain, tiny, 100).augmentation is None
    assert recipe(plain, large, 100, {"augmentation": "none"}).augmentation is None


def test_groups_are_kept_from_training_whole() -> None:
    pixels, names = torch.rand(60, 1, 8, 8), [f"slide{number // 7}" for number in range(60)]
    taught, kept = parted(Images(pixels, groups=names), None, 0)
    assert not set(taught.groups or ()) & set(kept.groups or ())
    assert 12 <= len(kept) < 12 + 7, "one in five, and the rest of the last group"
    other = parted(Images(pixels, groups=names), None, 1)[1]
    assert set(other.groups or ()) != set(kept.groups or ()), "vacuous: every seed keeps the same"
    with refused(HoldfastError, "60 images", "smaller groups"):
        parted(Images(pixels, groups=["one"] * 60), None, 0)


def test_a_cluster_that_is_not_there_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Ray) -> None:
        raise HoldfastError("no Ray cluster")

    monkeypatch.setattr(Ray, "connected", missing)
    monkeypatch.setattr(harden, "train", lambda *_, **__: pytest.fail("trained first"))
    with pytest.raises(HoldfastError, match="no Ray cluster"):
        hf.harden(small(), digits(30), ball=BALL, cluster="auto", progress=False)


def test_held_out_images_are_not_trained_on_and_follow_from_their_ids() -> None:
    images = digits(50)
    taught, held = parted(images, None, 0)
    assert len(held) == 10
    assert sorted(taught.ids + held.ids) == sorted(images.ids)
    assert set(held.ids) == set(parted(images[list(range(49, -1, -1))], None, 0)[1].ids)
    assert set(held.ids) != set(parted(images, None, 1)[1].ids), "vacuous fixture"
    assert sum(map(len, parted(images, 40, 0))) == 40


def test_agreement_counts_what_moved() -> None:
    before = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]])
    after = before.clone()
    after[0] = torch.tensor([-1.0, -0.05])
    found = agreement(before, after)
    assert found["neighbours_kept"] == pytest.approx(0.25)
    assert found["agreement"] == pytest.approx((3 - 1 / (1 + 0.05**2) ** 0.5) / 4)
    assert found["relative_distance"] == pytest.approx(((4 + 0.05**2) / (4 * (1 + 0.05**2))) ** 0.5, rel=1e-5)


def test_an_encoder_of_one_code_is_refused_before_it_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding: how far codes moved is told in comparison with how far they lie apart."""
    layer = nn.Linear(64, 4)
    layer.weight.data.zero_()
    monkeypatch.setattr("holdfast.commands.harden._trained", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(HoldfastError, match=r"^constant .*hardened"):
        hf.harden(
            Encoder(nn.Sequential(nn.Flatten(), layer), "constant", Domain((1, 8, 8))),
            digits(40),
            epochs=1,
            progress=False,
        )


class Detached(nn.Module):
    """A network that passes no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def forward(self, pixels: Tensor) -> Tensor:
        with torch.no_grad():
            codes: Tensor = self.layer(pixels.flatten(1))
        return codes


@pytest.mark.parametrize(
    ("module", "images", "sentence"),
    [
        (Detached(), digits(30), "passes no gradient to its input"),
        (nn.Flatten(), digits(30), "has no weights that can be trained"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), digits(19), "at least 20"),
    ],
    ids=["detached", "no weights", "few images"],
)
def test_what_cannot_be_hardened_is_told(module: nn.Module, images: Images, sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        hf.harden(Encoder(module, "it", Domain((1, 8, 8))), images, progress=False)


def test_the_warm_up_follows_epochs_that_are_set() -> None:
    assert recipe_for(small(), 24, BALL, settings={"epochs": "100"}).schedule.factor(3.5, 100) == pytest.approx(0.5)
    constant = recipe_for(small(), 24, BALL, settings={"epochs": "5", "schedule": "constant"})
    assert str(constant.schedule) == "constant"


def test_a_ball_of_everything_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with refused(HoldfastError, "linf:8", "holds", "input"):
        hf.harden(small(), digits(30), ball="linf:8", out=tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").iterdir())


def test_hardening_for_noise_trains_on_noisy_copies_and_attacks_them_in_a_ball() -> None:
    alone, attacked = (recipe_for(small(), 30, ball, noise=0.5).adversary for ball in (None, hf.L2(0.25)))
    assert str(alone) == "noise:sigma=0.5"
    assert str(attacked) == "noise:steps=2,sigma=0.5"
    with refused(HoldfastError, "one of them"):
        hf.harden(small(), digits(30), certified=True, noise=0.25, progress=False)


def test_hardening_for_noise_measures_the_smoothed_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[dict[str, Any]]()

    def measure(*_: Any, **settings: Any) -> EvaluatedRun:
        asked.append(settings)
        return EvaluatedRun((), (), tmp_path)

    monkeypatch.setattr(harden, "evaluate", measure)
    images = digits(30)
    labelled = Images(images.pixels(range(30)), images.ids, torch.arange(30) % 2)
    for taught, bank in ((images, None), (labelled, None), (labelled, labelled)):
        hf.harden(small(), taught, noise=0.5, bank=bank, epochs=1, progress=False)
    assert [settings["only"][2:] for settings in asked] == [(), (), ("randomized-smoothing",)]
    assert asked[2]["settings"]["smoothed-retrieval"] == {"sigma": 0.5, "radii": (0.5,)}


@pytest.mark.slow
def test_hardening_for_noise_raises_what_is_certified(tmp_path: Path) -> None:
    arguments = ["harden", "builtin:digits-contrastive", "--images", "builtin:digits-train", "--noise", "0.25"]
    arguments += ["--limit", "700", "--epochs", "50", "--rate", "2e-3", "--out", str(tmp_path / "hard")]
    assert run(arguments) == 0
    results, failures = read([tmp_path / "hard" / "before-after"])
    assert not failures
    radius = {
        result.encoder.name: result.estimate("median_certified_nearest_neighbour_radius").value
        for result in results
        if result.evaluation == "smoothed-retrieval"
    }
    assert radius["hard"] > 1.5 * radius["digits-contrastive"]  # of 20 images


def test_certified_hardening_trains_on_bounds() -> None:
    recipe = recipe_for(small(), 30, hf.Linf(0.05), certified=True)
    assert str(recipe.adversary) == "certified:ball=linf:0.05"


@pytest.mark.slow
def test_certified_hardening_proves_more_and_says_what_it_loses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["harden", "builtin:digits-contrastive", "--images", "builtin:digits-train", "--eps", "0.05"]
    arguments += ["--certified", "--limit", "600", "--epochs", "60", "--rate", "2e-3", "--out", str(tmp_path / "hard")]
    assert run(arguments) == 0
    results, failures = read([tmp_path / "hard" / "before-after"])
    assert not failures
    radius = {
        result.encoder.name: result.estimate("average_certified_radius").value
        for result in results
        if result.evaluation == "certified-radius"
    }
    assert radius["hard"] > 1.03 * radius["digits-contrastive"]
    page = (tmp_path / "hard" / "before-after" / "report.html").read_text()
    assert "digits-contrastive is better" in page  # under attack
    assert says(capsys.readouterr().out, "digits-contrastive is best")
