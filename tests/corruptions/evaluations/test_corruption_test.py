"""Probes under corruption: against a slow, obvious computation; what no shuffle changes; bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.files import hashed
from holdfast.core.images import Images
from holdfast.core.records import Claim, Result, Series
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.summaries import summarise
from holdfast.corruptions.corrupted_codes import CorruptedAnswers, drops
from holdfast.corruptions.evaluations.under_corruption import SIX, CorruptionTest
from holdfast.encoders.baseline import raw_pixels
from holdfast.measure.population import Population
from holdfast.probes.linear import Linear
from holdfast.probes.neighbours import Knn
from holdfast.probes.own_encoder import LowPassProbe
from holdfast.run.request import build
from holdfast.transforms.base import Transform, transformed
from tests.facts import refused
from tests.samples import DIGITS, builtin, classes
from tests.samples import digits as unlabelled

KNN = CorruptionTest(probes=(Knn(k=5),), samples=60, permutations=2)


def digits(count: int, start: int) -> Images:
    """Digits with their labels."""
    plain = unlabelled(count, start)
    return Images(plain.pixels(range(count)), plain.ids, classes(count, start), plain.name)


def under(*corruptions: str) -> tuple[Transform, ...]:
    return tuple(map(Transform.read, corruptions))


IMAGES, BANK = digits(60, 1200), digits(150, 0)


def drop(result: Result, corruption: str, quantity: str = "relative_accuracy_drop") -> float:
    return result.estimate(quantity, corruption=corruption).value


def slow(images: Images, bank: Images) -> float:
    """The accuracy of the five nearest codes of the bank, each weighed by its cosine."""
    population = Population(builtin(), images, RunSettings(), bank=Population(builtin(), bank, RunSettings()))
    assert images.labels is not None
    assert bank.labels is not None
    unit = nn.functional.normalize
    right = 0
    for code, label in zip(unit(population.codes), images.labels, strict=True):
        cosines = unit(population.bank.codes) @ code
        votes = torch.zeros(10)
        for one in cosines.argsort(descending=True)[:5]:
            votes[bank.labels[one]] += (cosines[one] / 0.1).exp()
        right += int(votes.argmax() == label)
    return right / len(images)


def test_noise_of_the_bank_is_not_that_of_the_measured_images() -> None:
    """Of images that show nothing, whose ids are the same numbers, noise must not tell the class."""
    labels = torch.arange(60) % 2
    images, bank = (
        Images(0.5 + 0.01 * torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(seed)), labels=labels)
        for seed in (0, 1)
    )
    asked = CorruptionTest(probes=(Knn(k=1),), corruptions=under("gaussian-noise-c:5"))
    result = asked(raw_pixels(Domain((1, 8, 8))), images, RunSettings(), bank)
    assert result.estimate("mean_corrupted_accuracy", corruption="all").value < 0.8


def test_drops_are_those_of_the_definition() -> None:
    result = replace(KNN, corruptions=under("gamma:5", "local-shuffle:seed=3", "noise:0.2"))(
        builtin(), IMAGES, RunSettings(), BANK
    )
    clean = slow(IMAGES, BANK)
    seen = {}
    for name, variants in {
        "gamma:5.0": ["gamma:5"],
        "local-shuffle:seed=3": ["local-shuffle:seed=3", "local-shuffle:seed=4"],
        "noise:0.2": ["noise:0.2"],
    }.items():
        both = [slow(transformed(IMAGES, one), transformed(BANK, one, hashed(0, "bank"))) for one in variants]
        alone = [slow(transformed(IMAGES, one), BANK) for one in variants]
        seen[name] = 1 - float(np.mean(both)) / clean
        assert drop(result, name) == pytest.approx(seen[name])
        assert drop(result, name, "corrupted_accuracy") == pytest.approx(np.mean(both))
        assert drop(result, name, "clean_bank_drop") == pytest.approx(1 - float(np.mean(alone)) / clean)
        if len(both) == 2:
            assert drop(result, name, "permutation_deviation") == pytest.approx(np.std(both, ddof=1) / clean)
    assert drop(result, "all", "mean_relative_accuracy_drop") == pytest.approx(np.mean([*seen.values()]))
    assert result.estimate("clean_accuracy").value == pytest.approx(clean)
    assert len({*seen.values()}) == 3, "vacuous"


def test_no_shuffle_changes_what_nearest_neighbours_of_raw_pixels_know() -> None:
    result = KNN(raw_pixels(DIGITS), IMAGES, RunSettings(precision="float64"), BANK)
    for corruption in SIX[2:]:
        assert drop(result, str(corruption)) == 0
        assert drop(result, str(corruption), "clean_bank_drop") > 0.1, "vacuous"
        assert result.estimate("permutation_deviation", corruption=str(corruption)).value == 0


def test_the_identity_costs_nothing() -> None:
    result = replace(KNN, corruptions=under("gamma:1"))(builtin(), IMAGES, RunSettings(), BANK)
    for quantity in ("relative_accuracy_drop", "clean_bank_drop"):
        assert drop(result, "gamma:1.0", quantity) == 0
    assert result.estimate("nearest_neighbour_accuracy").value == 1
    assert result.estimate("universal_quantile").value == 0


def test_probes_with_an_encoder_of_their_own_see_corrupted_pixels() -> None:
    through = replace(KNN, probes=(Linear(), LowPassProbe(100.0)), corruptions=under("gamma:5"))
    result = through(builtin(), IMAGES, RunSettings(), BANK)
    for quantity in ("corrupted_accuracy", "clean_bank_accuracy"):
        linear, filtered = (
            result.estimate(quantity, probe=name, corruption="gamma:5.0").value for name in ("linear", "low-pass:100.0")
        )
        assert linear == pytest.approx(filtered, abs=0.02)
        assert linear < 1, "vacuous"


def test_the_mean_of_drops_is_the_drop_and_their_influence_that_of_leaving_out() -> None:
    generator = torch.Generator().manual_seed(0)
    clean = (torch.rand(400, generator=generator, dtype=torch.float64) < 0.8).double()
    corrupted = clean * (torch.rand(400, generator=generator, dtype=torch.float64) < 0.7)
    of = lambda rows: float(1 - corrupted[rows].mean() / clean[rows].mean())  # noqa: E731
    whole = drops(clean, corrupted)
    assert float(whole.mean()) == pytest.approx(of(slice(None)))
    for row in range(5):
        rest = [k for k in range(400) if k != row]
        assert (of(slice(None)) - of(rest)) * 399 == pytest.approx(float(whole[row] - whole.mean()), abs=0.01)
    assert drops(torch.zeros(3), torch.zeros(3)).isnan().all()


def test_intervals_of_drops_cover_the_truth() -> None:
    clean_rate, kept_rate, trials, covered = 0.8, 0.7, 400, 0
    rng = np.random.default_rng(0)
    for _ in range(trials):
        clean = rng.random(150) < clean_rate
        corrupted = clean & (rng.random(150) < kept_rate)
        values = drops(torch.tensor(clean).double(), torch.tensor(corrupted).double())
        series = Series(quantity="q", values=tuple(values.tolist()), unit="1", claim=Claim.ESTIMATE, of="")
        found = summarise(series, "mean", "lower")
        covered += found.low <= 1 - kept_rate <= found.high
    assert 0.95 - 3 * (0.95 * 0.05 / trials) ** 0.5 <= covered / trials <= 0.99


def test_default_corruptions_that_do_not_fit_are_left_out_and_asked_ones_fail() -> None:
    pixels = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    images, bank = (Images(pixels[part], labels=torch.arange(30) % 3) for part in (slice(30), slice(30, 60)))
    bank = Images(pixels[30:], [f"bank{k}" for k in range(30)], torch.arange(30) % 3)
    encoder = Encoder(nn.Flatten(), "pixels", Domain((1, 6, 6)))
    result = KNN(encoder, images, RunSettings(), bank)
    assert sum("is left out: " in said for said in result.findings.warnings) == 3
    assert any("one of 1, 2, 3, 6, got " in said for said in result.findings.warnings)
    measured = {one.conditions["corruption"] for one in result.estimates if one.quantity == "relative_accuracy_drop"}
    assert measured == {"gamma:0.2", "gamma:5.0", "local-shuffle"}
    with pytest.raises(HoldfastError, match=r"grid .*one of 1, 2, 3, 6, got 5"):
        replace(KNN, corruptions=under("global-shuffle:grid=5"))(encoder, images, RunSettings(), bank)
    with refused(HoldfastError, "corruption", "change"):
        replace(KNN, corruptions=SIX[2:4])(encoder, images, RunSettings(), bank)


def test_a_probe_at_chance_is_flagged() -> None:
    assert not any("AT CHANCE" in said for said in KNN(builtin(), IMAGES, RunSettings(), BANK).findings.warnings)
    nonsense = Images(IMAGES.pixels(range(60)), IMAGES.ids, torch.arange(60) % 2)
    bank = Images(BANK.pixels(range(150)), BANK.ids, (torch.arange(150) // 2) % 2)
    result = replace(KNN, corruptions=under("gamma:5"))(builtin(), nonsense, RunSettings(), bank)
    assert any("AT CHANCE: knn:k=5" in said for said in result.findings.warnings)


def test_harm_with_and_without_labels_is_compared() -> None:
    result = KNN(builtin(), IMAGES, RunSettings(), BANK)
    found = result.estimate("rank_correlation", of="clean_bank_drop", **{"with": "universal_quantile"})
    assert 0 < found.value <= 1
    assert found.n == 6
    assert not any(one.quantity == "rank_correlation" for one in replace(KNN, corruptions=under("gamma:5"))(
        builtin(), IMAGES, RunSettings(), BANK).estimates)  # fmt: skip


def test_settings_that_mean_nothing_are_refused() -> None:
    with refused(HoldfastError, "least 1", "got 0", "permutations"):
        CorruptionTest(permutations=0)
    with pytest.raises(HoldfastError, match="Did you mean 'gamma'"):
        build(CorruptionTest, {"corruptions": ["gama:5"]})


def test_permutations_are_seeds_from_the_one_asked_for() -> None:
    _, part = replace(KNN, corruptions=under("global-shuffle:grid=2,seed=7")).observation().parts
    assert isinstance(part, CorruptedAnswers)
    variants = part.corruptions
    assert [str(one) for one in variants] == ["global-shuffle:grid=2,seed=7", "global-shuffle:grid=2,seed=8"]


@pytest.mark.slow
def test_what_was_taught_is_kept_and_continued(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "only": "corruption-test",
        "limit": 40,
        "settings": {"corruption-test": {"probes": "knn:k=5", "permutations": 1}},
        "bank": "builtin:digits-train",
    }
    kept = hf.evaluate("builtin:digits-random", "builtin:digits", **asked, out=tmp_path)
    fits = sorted(path.name for path in (tmp_path / "fits").iterdir())
    for result in (tmp_path / "results").iterdir():
        result.unlink()
    again = hf.evaluate("builtin:digits-random", "builtin:digits", **asked, out=tmp_path)
    assert again["corruption-test"].findings == kept["corruption-test"].findings
    assert sorted(path.name for path in (tmp_path / "fits").iterdir()) == fits
    assert len(fits) == 7  # the probe of the clean bank, and one for each corruption
