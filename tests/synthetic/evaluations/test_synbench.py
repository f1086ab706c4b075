"""The evaluation end to end: encoders with a known score, intervals that cover it, and encoders that spoil it."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.images import Images
from holdfast.core.records import Estimate, Result
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run import shards
from holdfast.synthetic.evaluations.synbench import SynBench
from holdfast.synthetic.score import RuleAccuracies, expected_bound, reference, score
from tests import samples
from tests.facts import refused
from tests.filled import fill_table
from tests.marks import rest_slow
from tests.synthetic.test_score import BUDGETS

SMALL = SynBench(samples=512, scales=(0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5))


class Function(nn.Module):
    """A map of flattened inputs."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x.flatten(1))


def encoder(function=lambda x: x, shape: tuple[int, ...] = (1, 4, 4), low: float = 0.0, high: float = 1.0) -> Encoder:
    return Encoder(Function(function), "made", Domain(shape, low, high))


def measured(evaluation: SynBench, made: Encoder, run: RunSettings | None = None) -> Result:
    shape = made.domain.shape
    return evaluation(
        made, Images(torch.full((3, *shape), 0.5) + torch.arange(3).reshape(-1, *[1] * len(shape)) / 9), run
    )


def scores(result: Result, quantity: str = "synbench_score") -> list[Estimate]:
    return [estimate for estimate in result.estimates if estimate.quantity == quantity]


def test_rules_are_tested_on_samples_that_they_were_not_fitted_to() -> None:
    """Two classes that do not differ in 48 features: 64 samples are told apart by heart, fresh ones by a coin."""
    made = encoder(shape=(1, 6, 8))
    population = Population(made, Images(torch.rand(3, 1, 6, 8)), RunSettings())
    rules = RuleAccuracies((1e-6,) * 4, (0.0,), 64, 10**6, "ones")
    right = rules.observe(population, [0])["right"][0, :, 0]
    assert 0.3 < right[-1] < 0.7
    # Each half of the train set makes rules of its own.
    assert right[0] != right[1]
    twice = RuleAccuracies((3.0,), (0.0,), 64, 10**6, "ones").observe(population, [0])["right"][0, :, 0]
    assert twice[-1] > 0.8, "vacuous: nothing is learned"


@pytest.mark.slow
def test_more_numbers_than_fit_are_refused_with_what_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.synthetic.score.MOST_NUMBERS", 250)
    population = Population(encoder(), Images(torch.rand(3, 1, 4, 4)), RunSettings())
    with pytest.raises(HoldfastError, match=r"64 embeddings of 16 features.*--set synbench.samples=15"):
        RuleAccuracies((1.0,), (0.0,), 64, 10**6, "ones").observe(population, [0])


def test_fewer_samples_than_features_are_looked_at_in_the_space_that_they_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the whole covariance were learned, which for raw pixels takes half an hour."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(64, 80), nn.Tanh())
    population = Population(encoder(wide, (1, 8, 8)), Images(torch.rand(3, 1, 8, 8)), RunSettings())
    rules = RuleAccuracies((1.0, 3.0), (0.0, 0.3), 40, 10**6, "ones")
    spanned = rules.observe(population, [0, 1])
    monkeypatch.setattr(torch.linalg, "qr", lambda codes: SimpleNamespace(Q=torch.eye(len(codes)).double()))
    whole = rules.observe(population, [0, 1])
    assert spanned.keys() == whole.keys()
    for name, values in whole.items():
        assert torch.allclose(spanned[name].double(), values.double(), rtol=1e-6, atol=1e-9), name
    assert 0 < spanned["rank"].max() <= 38


def test_identity_keeps_everything() -> None:
    result = measured(SynBench(), encoder())
    for estimate in scores(result, "synbench_score_extrapolated"):
        assert estimate.low - 0.005 <= 1 <= estimate.high + 0.005
    assert result.estimate("mean_synbench_score", budget="0").value == pytest.approx(1, abs=0.02)
    assert result.findings.warnings == ()
    assert result.findings.ids == ()


@pytest.mark.parametrize("direction", rest_slow(["smooth", "ones", "signs"]))
def test_orthogonal_maps_keep_everything_in_any_direction(direction: str) -> None:
    turn = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64))[0]
    result = measured(
        replace(SMALL, direction=direction), encoder(lambda x: x @ turn.to(x)), RunSettings(precision="float64")
    )
    assert all(estimate.low <= 1.01 and estimate.high > 0.97 for estimate in scores(result))


def test_average_pooling_keeps_the_mean_direction_alone() -> None:
    mean = encoder(lambda x: x.mean(1, keepdim=True))
    kept_all = measured(SMALL, mean)
    assert all(estimate.value == pytest.approx(1, abs=0.03) for estimate in scores(kept_all))
    assert any("one direction only" in warning for warning in kept_all.findings.warnings)
    lost_all = measured(replace(SMALL, direction="smooth"), mean)
    assert all(estimate.value == 0 for estimate in scores(lost_all))


def test_removing_the_mean_loses_everything() -> None:
    centred = encoder(lambda x: x - x.mean(1, keepdim=True))
    result = measured(replace(SMALL, samples=2048), centred)
    for estimate in scores(result):
        assert (estimate.value, estimate.low, estimate.high) == (0, 0, 0)
    assert all(isnan(estimate.value) and estimate.reason for estimate in scores(result, "suggested_budget"))
    assert any("15 of 16 directions" in warning for warning in result.findings.warnings)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_constant_encoders_score_zero_and_are_called_collapsed(constant: float) -> None:
    result = measured(SMALL, encoder(lambda x: 0 * x + constant))
    assert all(estimate.value == 0 for estimate in scores(result))
    assert result.findings.collapsed


@pytest.mark.parametrize("unit", rest_slow([1e-3, 1e3]))
def test_units_of_the_codes_do_not_matter(unit: float) -> None:
    weight = torch.randn(8, 16)
    plain, scaled = (
        measured(SMALL, encoder(lambda x, unit=u: unit * (x @ weight.T.to(x))), RunSettings(precision="float64"))
        for u in (1, unit)
    )
    assert [e.value for e in scores(plain)] == pytest.approx([e.value for e in scores(scaled)], abs=1e-9)


def test_published_mode_is_near_the_exact_area() -> None:
    exact, published = (measured(replace(SMALL, mode=mode), encoder()) for mode in ("exact", "published"))
    for one, other in zip(scores(exact), scores(published), strict=True):
        assert one.value == pytest.approx(other.value, abs=0.03)
        assert one.value != other.value


def test_shaded_areas_make_the_score() -> None:
    result = measured(SMALL, encoder(lambda x: x[:, :8]))
    (curve,) = (c for c in result.findings.curves if c.shaded and c.conditions == {"budget": "0.4"})
    assert curve.x[0] == 0.7
    share = trapezoid(curve.y, curve.x) / trapezoid(curve.reference, curve.x)
    assert share == pytest.approx(result.estimate("synbench_score", budget="0.4", threshold="0.7").value, abs=0.02)
    assert {c.quantity for c in result.findings.curves} == {"expected_bound", "accuracy", "bound", "distance"}


@pytest.mark.parametrize(
    "setting",
    [{"prior": 0.35}, {"spectrum": 1.0}, {"norm": "linf"}, {"offset": 0.4}, {"spectrum": 1.0, "direction": "smooth"}],
    ids=str,
)
def test_pixels_keep_everything_of_any_mixture(setting: dict[str, Any]) -> None:
    result = measured(replace(SMALL, samples=2048, **setting), encoder())
    for estimate in scores(result, "synbench_score_extrapolated"):
        assert estimate.low - 0.02 <= 1 <= estimate.high + 0.02, estimate


def test_a_sweep_shows_the_score_at_fewer_samples() -> None:
    tuned = replace(SMALL, sweep=True)
    plain, swept = (measured(evaluation, encoder()) for evaluation in (SMALL, tuned))
    assert [e.value for e in scores(plain)] == pytest.approx([e.value for e in scores(swept)], abs=1e-9)
    assert [e.high for e in scores(plain)] == pytest.approx([e.high for e in scores(swept)], abs=1e-9)
    curves = [c for c in swept.findings.curves if c.quantity == "mean_synbench_score"]
    assert len(curves) == len(SMALL.budgets)
    assert curves[0].x == (128, 256, 512)
    assert curves[0].y[0] < curves[0].y[-1]
    assert curves[0].y[-1] == pytest.approx(swept.estimate("mean_synbench_score", budget="0").value, abs=1e-9)
    # The score of a quarter is that of a run with so few samples, up to the samples it is tested on.
    fewer = measured(replace(SMALL, samples=128), encoder()).estimate("mean_synbench_score", budget="0")
    assert curves[0].y[0] == pytest.approx(fewer.value, abs=4 * (fewer.high - fewer.low) / 3.92)


def test_distances_are_in_units_of_the_codes() -> None:
    plain, large = (measured(SMALL, encoder(lambda x, unit=unit: unit * x)) for unit in (1, 10))
    one, ten = (next(c for c in each.findings.curves if c.quantity == "distance") for each in (plain, large))
    assert ten.y == pytest.approx([10 * value for value in one.y], rel=1e-4)
    # Of the pixels themselves at budget 0 it is the mean distance of an input that is right: s h(Phi(s)).
    for scale, value in zip(one.x, one.y, strict=True):
        expected = scale + float(np.exp(-(scale**2) / 2) / np.sqrt(2 * np.pi)) / float(
            torch.special.ndtr(torch.tensor(scale))
        )
        assert value == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"prior": 0.8}, "prior"),
        ({"prior": 0.0}, "prior"),
        ({"spectrum": -1.0}, "spectrum"),
        ({"offset": float("nan")}, "offset"),
        ({"norm": "l1"}, "linf"),
        ({"norm": "linf", "spectrum": 1.0}, "spectrum"),
    ],
)
def test_impossible_mixtures_are_refused(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(HoldfastError, match=named):
        SynBench(**setting)


def test_linf_rules_need_as_many_samples_as_features() -> None:
    with pytest.raises(HoldfastError, match=r"128.*64|64.*128"):
        measured(replace(SMALL, samples=64, norm="linf"), encoder(lambda x: x.repeat(1, 8)))


@pytest.mark.slow
def test_inputs_that_are_no_images_have_their_own_unit() -> None:
    def bent(origin: float, width: float, **domain: float) -> Result:
        """The same curve over each domain, so that the place and the width of the inputs matter."""
        made = encoder(lambda x: torch.tanh((x - origin) / width), (16,), **domain)
        return measured(SMALL, made, RunSettings(precision="float64"))

    plain = bent(0, 1)
    for other in (bent(-50, 200, low=-50.0, high=150.0), bent(-0.5, 1, low=-torch.inf, high=torch.inf)):
        assert [e.value for e in scores(other)] == pytest.approx([e.value for e in scores(plain)], abs=1e-9)
    assert scores(bent(-50, 200))[0].value != pytest.approx(scores(plain)[0].value, abs=1e-3), "vacuous: nothing bends"


def test_gaussians_are_not_clipped_and_images_still_are_checked() -> None:
    seen = []

    def watch(x: Tensor) -> Tensor:
        seen.append((float(x.min()), float(x.max())))
        return x

    measured(SMALL, encoder(watch))
    assert min(low for low, _ in seen) < -2
    assert max(high for _, high in seen) > 3
    with refused(HoldfastError, "[0, 1]", "finite"):
        SMALL(encoder(), Images(torch.full((2, 1, 4, 4), 2.0)))


def test_codes_that_are_not_finite_are_named() -> None:
    with refused(HoldfastError, "NaN", "0.5", "embeddings"):
        measured(SMALL, encoder(torch.log))


def test_fewer_samples_than_features_is_said() -> None:
    result = measured(SynBench(samples=64, scales=(1.0, 2.0, 3.0)), encoder(shape=(1, 10, 10)))
    assert any("100 features for 64 train samples" in warning for warning in result.findings.warnings)
    assert all(estimate.value >= 0 for estimate in scores(result))


def test_the_limit_on_encodings_says_what_it_bought() -> None:
    result = measured(replace(SMALL, samples="auto", encodings=3600), encoder())
    (said,) = result.findings.warnings
    assert said.startswith("The limit of 3,600 encodings bought 200 samples per set: standard errors up to 0.0")
    assert measured(replace(SMALL, samples="auto"), encoder()).estimates[0].n == 320


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scales": (1.0,)}, "scales.* two or more"),
        ({"scales": (1.0, 1.0)}, r"scales has 1\.0 twice; keep one"),
        ({"scales": (0.0, 1.0)}, "positive numbers"),
        ({"thresholds": (0.5,)}, r"between 0\.5 and 1, got 0\.5"),
        ({"thresholds": (1.0,)}, r"between 0\.5 and 1, got 1"),
        ({"thresholds": ()}, "thresholds needs at least one entry"),
        ({"budgets": (1.0,)}, r"\[0, 1\), got 1"),
        ({"direction": "one"}, "Did you mean 'ones'"),
        ({"mode": "publish"}, "Did you mean 'published'"),
        ({"samples": 10}, "64 or more per set, or auto, got 10"),
        ({"samples": "many"}, "64 or more per set, or auto, got 'many'"),
        ({"encodings": 100}, "encodings.*6272 for 49 scales, got 100"),
    ],
)
def test_senseless_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        SynBench(**settings)


def test_thresholds_out_of_reach_are_refused() -> None:
    with refused(HoldfastError, "larger", "threshold"):
        measured(SynBench(samples=64, scales=(0.1, 0.2)), encoder())


def test_memory_is_kept_by_chunks_not_by_samples() -> None:
    largest = []

    def watch(x: Tensor) -> Tensor:
        largest.append(len(x))
        return x

    measured(SynBench(samples=3000, scales=(1.0, 2.0)), encoder(watch), RunSettings(batch_size=128))
    assert max(largest) == 128


def test_a_run_keeps_each_scale_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the observation are scales, however few images there are."""
    monkeypatch.setattr(shards, "SHARD_OPERATIONS", 1)  # a shard for each, however small the network
    made, images, run = samples.builtin(), samples.digits(12), RunSettings()
    calls: list[str] = []

    class StoppedError(Exception):
        pass

    def stop(doing: str, share: float, left: float) -> None:
        calls.append(doing)
        if "synbench, 4 of 9" in doing:
            raise StoppedError

    with pytest.raises(StoppedError):
        fill_table([made], lambda _: images, [SMALL], run, Store(tmp_path), progress=stop)
    assert len(list(tmp_path.rglob("mixture-*/*.safetensors"))) == 4
    (continued,), _ = fill_table([made], lambda _: images, [SMALL], run, Store(tmp_path))
    assert len(list(tmp_path.rglob("mixture-*/*.safetensors"))) == 9
    assert continued.findings == SMALL(made, images, run).findings


def test_scales_are_observed_alike_alone_and_together() -> None:
    population = Population(samples.builtin(), samples.digits(4), RunSettings(precision="float64"))
    probe = SMALL.rules()
    together, alone = probe.observe(population, [2, 5]), probe.observe(population, [5])
    assert torch.allclose(together["products"][1], alone["products"][0], atol=1e-12)
    assert not torch.allclose(together["products"][0], alone["products"][0], atol=1e-3)


@pytest.mark.slow
def test_published_encoder_scores_alike_on_other_samples(reference: Path) -> None:
    """The authors' program drew other Gaussians: the scores agree within their intervals."""
    with np.load(reference / "synbench" / "official_rvcl_mnist_cnn_4layer_a_n2048_seed12.npz") as stored:
        known, at = stored["score"], stored["at"].tolist()
    made = samples.published(reference, "mnist_cnn_4layer_a", torch.float32)
    result = measured(SynBench(mode="published"), made)
    for estimate in scores(result):
        theirs = known[
            BUDGETS.index(float(estimate.conditions["budget"])), at.index(float(estimate.conditions["threshold"]))
        ]
        # Both are uncertain alike.
        assert abs(estimate.value - theirs) < 1.5 * (estimate.high - estimate.low), estimate.conditions


class Corner(nn.Module):
    """The mean of the first 4 x 4 pixels, of an image of any size."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :4, :4].mean((1, 2, 3))[:, None]


class Everything(nn.Module):
    """The mean of all pixels, of an image of any size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((1, 2, 3))[:, None]


def test_scores_at_other_input_sizes_are_those_of_the_closed_form() -> None:
    """Of ``d`` pixels with a mean of length ``s`` along all ones, the mean of 16 tells classes apart by ``s sqrt(16 / d)``.

    A mean over all pixels keeps everything at every size. On one direction all budgets share one rule.
    """
    tuned = replace(SMALL, samples=2048, input_sizes=(8, 6, 4))
    whole, corner = (measured(tuned, Encoder(module, "made", Domain((1, 4, 4)))) for module in (Everything(), Corner()))
    plain = measured(replace(tuned, input_sizes=()), Encoder(Corner(), "made", Domain((1, 4, 4))))
    number = len(plain.estimates)
    assert [each.value for each in plain.estimates] == [each.value for each in corner.estimates[:number]]
    scales = torch.tensor(SMALL.scales, dtype=torch.float64)
    best = reference(SMALL.scales)
    for size in tuned.input_sizes:
        right = torch.special.ndtr(scales * 4 / size)
        expected = float(score(right, expected_bound(right), best, SMALL.thresholds).mean())
        for budget in ("0", "0.4"):
            for made, value in ((whole, 1.0), (corner, expected)):
                for kind in ("", "_extrapolated"):
                    found = made.estimate(f"mean_synbench_score{kind}", budget=budget, input_size=str(size))
                    assert found.value == pytest.approx(value, abs=0.03), (size, budget, kind)
    assert expected == pytest.approx(1)  # of the last, the encoder's own size
    curves = [curve for curve in corner.findings.curves if curve.quantity == "mean_synbench_score_by_input_size"]
    assert [curve.x for curve in curves] == [(4, 6, 8)] * len(SMALL.budgets)
    assert curves[0].y[0] > curves[0].y[1] > curves[0].y[2]
    assert curves[0].y[2] == corner.estimate("mean_synbench_score_extrapolated", budget="0", input_size="8").value


def test_encoders_of_one_size_are_refused_at_another() -> None:
    fixed = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "fixed", Domain((1, 4, 4)))
    with pytest.raises(OutOfRange) as caught:
        measured(replace(SMALL, input_sizes=(8,)), fixed)
    assert (caught.value.argument, caught.value.got) == ("synbench.input_sizes of fixed", 8)
    wider = Encoder(nn.Sequential(nn.AvgPool2d(2), nn.Flatten()), "wider", Domain((1, 4, 4)))
    with pytest.raises(OutOfRange):
        measured(replace(SMALL, input_sizes=(8,)), wider)
    with pytest.raises(OutOfRange):
        replace(SMALL, input_sizes=(0,))


def test_input_sizes_are_stored_scale_by_scale(tmp_path: Path) -> None:
    """A run that stores what it observes has the numbers of a measurement in one go."""
    tuned = replace(SMALL, samples=64, scales=(1.0, 2.0, 3.0), input_sizes=(6,))
    made, images, run = Encoder(Corner(), "made", Domain((1, 4, 4))), Images(torch.rand(3, 1, 4, 4)), RunSettings()
    (stored,), failures = fill_table([made], lambda _: images, [tuned], run, Store(tmp_path))
    assert not failures
    assert stored.findings == tuned(made, images, run).findings
