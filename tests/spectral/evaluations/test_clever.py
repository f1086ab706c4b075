"""CLEVER on functions whose answer is known, and its distribution's end where that is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isnan
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import truncnorm, weibull_max
from torch import Tensor, nn
from torch.nn.functional import normalize

from holdfast.attacks.base import gain_and_gradient
from holdfast.attacks.gradient import random_start
from holdfast.core.balls import L1, L2, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Result, Series
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import settings
from holdfast.measure.population import Population
from holdfast.spectral.evaluations.clever import FARTHEST, NO_FIT, Clever, right_end
from tests.facts import says
from tests.samples import builtin, digits, linear

RUN = RunSettings(precision="float64")
CHEAP: dict[str, Any] = {"batches": 4, "draws": 3, "random": 5, "guided": 0}


def scores(found: Result) -> list[Series]:
    return [series for series in found.series if series.quantity == "clever_score"]


def images(count: int = 40, size: int = 5) -> Images:
    pixels = torch.rand(count, 1, 1, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Images(pixels)


@pytest.mark.parametrize("ball", [L1(9.0), L2(9.0), Linf(9.0)], ids=lambda ball: ball.name)
def test_the_score_of_a_linear_map_is_its_exact_distance(ball):
    """``w . A x`` reaches zero after exactly ``g(x) / |A' w|_q``."""
    a = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    encoder, shown = linear(a, (1, 1, 5)).to("cpu", torch.float64), images()
    encoder.module.double()
    found = Clever(balls=(ball,), rivals=2, **CHEAP)(encoder, shown, RUN)
    population = Population(encoder, shown, RUN)
    rows = population.choose(5)
    unit = normalize(population.codes, dim=1)
    other = population.partners[rows]
    w = unit[rows] - unit[other]
    expected = (w * population.codes[rows]).sum(1) / ball.dual_norm((w @ a)[:, None, None])
    targeted = next(s for s in found.series if s.conditions["margin"] == "targeted")
    assert targeted.values == pytest.approx(expected.clamp(max=9.0).tolist(), rel=1e-6)
    untargeted = next(s for s in found.series if s.conditions["margin"] == "untargeted")
    assert len(untargeted.values) == 5
    assert np.mean(untargeted.values) <= np.mean(targeted.values)


def test_a_shorter_radius_caps_the_score():
    found = Clever(balls=(L2(1e-3),), **CHEAP)(builtin(), digits(40))
    assert all(value == 1e-3 for value in found.series[0].values)
    for estimate in found.estimates:
        if estimate.quantity == "clever_score":
            assert 0 < estimate.low < estimate.value == estimate.high == 1e-3, "the interval leaves what can be"
    assert any("5 of 5 targeted CLEVER scores in l2:0.001 are the radius" in w for w in found.findings.warnings)


def test_scores_below_the_radius_are_no_warning():
    found = Clever(balls=(L2(1e3),), **CHEAP)(builtin(), digits(40))
    assert max(v for s in found.series for v in s.values if v == v) < 1e3
    assert not any("radius" in warning for warning in found.findings.warnings)


def test_some_capped_scores_are_counted_by_margin():
    free = Clever(balls=(Linf(9.0),), **CHEAP)(linear(torch.eye(5), (1, 1, 5)), images())
    scores = sorted(free.series[0].values)
    middle = (scores[2] + scores[3]) / 2
    found = Clever(balls=(Linf(middle),), **CHEAP)(linear(torch.eye(5), (1, 1, 5)), images())
    assert sum("2 of 5 targeted CLEVER scores" in warning for warning in found.findings.warnings) == 1


def test_too_few_images_for_a_graph_leave_the_random_ones():
    alone = Clever(balls=(L2(5.0),), **CHEAP)(builtin(), digits(20))
    found = Clever(balls=(L2(5.0),), **{**CHEAP, "guided": 10})(builtin(), digits(20))
    assert [s.model_dump_json() for s in found.series] == [s.model_dump_json() for s in alone.series]
    assert {e.conditions["samples"] for e in found.estimates if e.quantity == "clever_score"} == {"5 random"}
    said = next(warning for warning in found.findings.warnings if "SPADE" in warning)
    assert says(said, "10 neighbours", "least 30", "(3 k)", "got 20", "samples")
    assert "guided=0" in said


def test_fewer_images_than_wanted_are_not_blamed_on_the_score():
    found = Clever(balls=(L2(5.0),), **{**CHEAP, "guided": 50, "k": 4})(builtin(), digits(40), RUN)
    said = next(warning for warning in found.findings.warnings if "SPADE" in warning)
    assert says(said, "could use 40")


def test_logits_are_measured_against_the_runner_up():
    class Logits(nn.Module):
        """Three classes whose logits are the pixels."""

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    encoder = Encoder(Logits().eval(), "logits", Domain((1, 1, 3)))
    shown = images(40, 3)
    found = Clever(balls=(Linf(9.0), L2(9.0)), rivals=1, logits=True, **CHEAP)(encoder, shown, RUN)
    rows = Population(encoder, shown, RUN).choose(5)
    top = shown.pixels(rows, dtype=torch.float64).flatten(1).sort(1, descending=True).values
    gap = top[:, 0] - top[:, 1]
    series = {(s.conditions["ball"], s.conditions["margin"]): s.values for s in scores(found)}
    assert series["linf:9.0", "untargeted"] == pytest.approx((gap / 2).tolist())
    assert series["l2:9.0", "untargeted"] == pytest.approx((gap / np.sqrt(2)).tolist())
    choices = torch.stack([gap, top[:, 0] - top[:, 2]], 1) / 2
    assert all(
        any(value == pytest.approx(choice) for choice in row)
        for value, row in zip(series["linf:9.0", "targeted"], choices.tolist(), strict=True)
    )


def test_gairat_weights_count_the_points_of_an_attack_that_keep_the_class():
    """Logits are pixels, so each step lowers the highest pixel and raises the next one by a known length."""
    encoder, shown, eps = linear(torch.eye(3, dtype=torch.float64), (1, 1, 3)), images(40, 3), 0.2
    encoder.module.double()
    evaluation = Clever(balls=(L2(1.0),), logits=True, gairat=(Linf(eps),), **{**CHEAP, "random": 30})
    found = evaluation(encoder, shown, RUN)
    population = Population(encoder, shown, RUN)
    rows = population.choose(30)
    clean = shown.pixels(rows, dtype=torch.float64)
    noise = population.run.noise([shown.ids[row] for row in rows]).fork("gairat", str(Linf(eps)))
    starts = random_start(clean, Linf(eps), noise, 1.0, encoder.domain)
    expected, counts = [], set()
    for x, start in zip(clean.flatten(1).numpy(), starts.flatten(1).numpy(), strict=True):
        answer, z, kept = x.argmax(), start.copy(), 0
        for _ in range(10):
            kept += int(z.argmax() == answer)
            z[np.where(np.arange(3) == answer, -np.inf, z).argmax()] += 0.007 / 0.031 * eps
            z[answer] -= 0.007 / 0.031 * eps
            z = np.clip(np.clip(z, x - eps, x + eps), 0, 1)
        counts.add(kept)
        expected.append((1 + np.tanh(-1 + 5 * (1 - 2 * kept / 10))) / 2)
    assert len(counts) > 4, "vacuous: the images do not differ"
    series = next(s for s in found.series if s.quantity == "gairat_weight")
    assert series.values == pytest.approx(expected)
    assert found.estimate("gairat_weight", samples="30 random").value == pytest.approx(np.mean(expected))


def test_gairat_weights_stand_beside_those_of_the_images_that_spade_chose():
    few: dict[str, Any] = {"batches": 4, "draws": 2, "random": 5, "guided": 3, "least": 4, "rivals": 1}
    found = Clever(balls=(L2(5.0),), gairat=(Linf(0.05), Linf(0.1)), **few)(builtin(), digits(120), RUN)
    weights = [e for e in found.estimates if e.quantity == "gairat_weight"]
    groups = {"5 random", "3 by SPADE", "4 least by SPADE"}
    assert {(e.conditions["ball"], e.conditions["samples"]) for e in weights} == {
        (ball, group) for ball in ("linf:0.05", "linf:0.1") for group in groups
    }
    assert all(isnan(e.low) == e.conditions["samples"].endswith("SPADE") for e in weights)
    assert "gairat" not in settings(Clever()), "results stored before have this key"
    assert settings(Clever(gairat=(Linf(0.1),)))["gairat"] == ["linf:0.1"]


def test_one_logit_is_no_classifier():
    encoder = linear(torch.ones(1, 5), (1, 1, 5))
    with pytest.raises(HoldfastError, match="at least 2 logits"):
        Clever(logits=True, **CHEAP)(encoder, Images(images().pixels(range(40))))


def test_random_and_guided_images_are_both_printed():
    found = Clever(balls=(L2(5.0),), batches=4, draws=2, random=12, guided=3, rivals=1, k=4)(builtin(), digits(60), RUN)
    groups = {e.conditions["samples"]: e for e in found.estimates if e.conditions.get("margin") == "targeted"}
    assert set(groups) == {"12 random", "10 random", "3 by SPADE"}
    missing = {name: int((e.reason or "0").split()[0]) for name, e in groups.items()}
    assert {name: e.n + missing[name] for name, e in groups.items()} == {
        "12 random": 12,
        "10 random": 10,
        "3 by SPADE": 3,
    }
    assert groups["12 random"].series == "clever_score"
    assert groups["3 by SPADE"].series is None
    assert len(found.findings.ids) == 12


def test_the_images_with_the_smallest_scores_are_printed_beside():
    evaluation = Clever(balls=(L2(5.0),), batches=4, draws=2, random=5, guided=3, least=4, rivals=1)
    population = Population(builtin(), digits(120), RUN)
    found = evaluation.measured(population)
    groups = {e.conditions["samples"]: e for e in found.estimates if e.conditions.get("margin") == "targeted"}
    assert set(groups) == {"5 random", "3 by SPADE", "4 least by SPADE"}
    assert isnan(groups["4 least by SPADE"].low)
    observation = evaluation.observation()
    nodes = population.learned(*observation.fits())
    scores = dict(zip(nodes.rows, nodes.spade.node_scores(), strict=True))
    rows, why = observation.best(population)
    assert why == ""
    assert sorted(scores.values())[:4] == [scores[row] for row in rows]
    assert [scores[row] for row in observation.worst(population)[0]] == sorted(scores.values())[::-1][:3]


def test_an_infinite_score_leaves_unknown_who_has_the_smallest():
    population = Population(builtin(), digits(60), RUN)
    assert population.learned(*Clever(k=4).observation().fits()).spade.split is not None
    rows, why = Clever(least=4, k=4).observation().best(population)
    assert rows == []
    assert "infinite" in why


def test_guided_images_have_the_largest_node_scores():
    from holdfast.spectral.evaluations.spade import Spectral

    population = Population(builtin(), digits(60), RUN)
    evaluation = Clever(guided=5, k=4)
    worst, why = evaluation.observation().worst(population)
    assert why == ""
    scores = Spectral(k=4, subsets=0)(builtin(), digits(60), RUN).series
    node = next(s.values for s in scores if s.conditions.get("vectors") == "10")
    assert worst == np.argsort(-np.array(node), kind="stable")[:5].tolist()
    assert population.learned(*evaluation.observation().fits()).rows == list(range(60))


def test_copies_have_no_margin():
    pixels = digits(40).pixels(range(40))
    pixels[1:] = pixels[0]
    found = Clever(balls=(L2(5.0),), **CHEAP)(builtin(), Images(pixels))
    assert all(value != value for s in scores(found) for value in s.values)
    assert set(found.series[0].reasons) == set(range(5))


def test_an_encoder_without_gradients_is_refused():
    class Blind(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach().flatten(1)

    with pytest.raises(HoldfastError, match="passes no gradient"):
        Clever(**CHEAP)(Encoder(Blind().eval(), "blind", Domain((1, 8, 8))), digits(40))


@pytest.mark.parametrize("shape", [1.5, 3.0])
def test_the_end_of_a_reverse_weibull_is_found(shape):
    rng = np.random.default_rng(0)
    errors = []
    for count in (60, 2000):
        ends = [right_end(weibull_max.rvs(shape, loc=7, scale=2, size=count, random_state=rng)) for _ in range(15)]
        errors.append(abs(np.median([end.location for end in ends]) - 7))
        assert np.mean([end.accepted for end in ends]) > 0.8
    assert errors[1] < 0.1
    assert errors[1] <= errors[0] + 0.05


def test_an_end_is_never_below_the_largest_maximum():
    rng = np.random.default_rng(1)
    for values in (rng.beta(2, 5, size=30), rng.uniform(size=30), np.repeat([1.0, 2.0], 15), np.zeros(10)):
        assert right_end(values).location >= values.max()


def test_two_values_are_no_weibull():
    assert not right_end(np.repeat([1.0, 2.0], 100)).accepted


ENDS: dict[str, tuple[Callable[..., np.ndarray], float]] = {
    "flat": (lambda rng, size: rng.beta(2, 5, size), 1.0),
    "steeper": (lambda rng, size: rng.beta(2, 2, size), 1.0),
    "uniform": (lambda rng, size: rng.uniform(size=size), 1.0),
    "piled": (lambda rng, size: 1 + np.cos(rng.uniform(0, np.pi, size)) / 2, 1.5),
    "truncated normal": (lambda rng, size: truncnorm.rvs(-2, 2, size=size, random_state=rng), 2.0),
    "truncated exponential": (lambda rng, size: -np.log1p(-rng.uniform(size=size) * (1 - np.exp(-2))), 2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "draws", "bias", "spread", "without"), [
    (50, 8, 0.06, 0.5, 0.08), (50, 64, 0.05, 0.4, 0.12), (200, 64, 0.03, 0.2, 0.02), (500, 64, 0.03, 0.15, 0.01)
])  # fmt: skip
@pytest.mark.parametrize("name", ENDS)
def test_known_ends_are_found(name, batches, draws, bias, spread, without):
    """Of maxima whose law is a reverse Weibull's only in the limit: median within ``bias``, 90% within ``spread``."""
    draw, end = ENDS[name]
    rng = np.random.default_rng(0)
    found = np.array([right_end(draw(rng, (batches, draws)).max(1)).location for _ in range(100)])
    low, middle, high = np.nanquantile(found, [0.05, 0.5, 0.95]) / end
    assert np.isnan(found).mean() <= without
    assert abs(middle - 1) <= bias
    assert 1 - spread / 2 < low
    assert high < 1 + spread


def test_an_end_never_runs_away():
    """The likelihood of these maxima grows as the end goes to infinity, though the true end is 1."""
    maxima = np.random.default_rng(89).beta(2, 5, (50, 64)).max(1)
    assert np.isnan(right_end(maxima).location)
    assert not right_end(maxima).accepted
    rng = np.random.default_rng(0)
    for _ in range(20):
        maxima = rng.beta(2, 5, (50, 64)).max(1)
        location = right_end(maxima).location
        assert np.isnan(location) or location <= maxima.max() + FARTHEST * maxima.std()


def test_what_has_no_end_mostly_gets_none():
    rng = np.random.default_rng(0)
    found = [right_end(rng.exponential(size=(50, 64)).max(1)).location for _ in range(40)]
    assert np.isnan(found).mean() > 0.5


def test_an_end_moves_with_its_values():
    maxima = np.random.default_rng(0).beta(2, 2, (50, 8)).max(1)
    assert right_end(3 * maxima + 7).location == pytest.approx(3 * right_end(maxima).location + 7)


def test_images_without_a_fit_have_no_score_and_are_counted():
    found = Clever(balls=(L1(1.0),), batches=8, draws=3, random=20, guided=0, rivals=1)(builtin(), digits(40), RUN)
    targeted = next(s for s in found.series if s.conditions.get("margin") == "targeted")
    missing = np.flatnonzero(np.isnan(targeted.values)).tolist()
    assert 2 <= len(missing) < 20
    assert {targeted.reasons[row] for row in missing} == {NO_FIT}
    estimate = found.estimate("clever_score", margin="targeted", samples="20 random")
    assert estimate.n == 20 - len(missing)
    assert NO_FIT in (estimate.reason or "")
    failed = sum(list(s.reasons.values()).count(NO_FIT) for s in found.series)
    said = next(w for w in found.findings.warnings if w.startswith(f"{failed} of ") and "radius of the ball" not in w)
    assert "Raise batches" not in said
    assert "read l2 or linf" in said
    assert min(v for v in targeted.values if v == v) > 0


def test_more_batches_are_advised_where_they_help():
    cheap: dict[str, Any] = {"batches": 8, "draws": 8, "random": 20, "guided": 0, "rivals": 1}
    found = Clever(balls=(L2(5.0),), **cheap)(builtin(), digits(40), RUN)
    said = next(w for w in found.findings.warnings if "CLEVER scores" in w)
    assert "Raise batches" in said
    assert "l1" not in said


@pytest.mark.slow
def test_uniform_points_of_an_l1_ball_miss_its_steep_places():
    """Why its norms show no end: as many points with five changed pixels are steeper than all of them."""
    encoder, shown, ball = builtin(), digits(100), L1(5.0)
    population = Population(encoder, shown, RUN)
    gradients = Clever(balls=(ball,), batches=133, draws=3, random=20, guided=0).observation()
    rows = gradients.rows(population)
    largest = gradients.observe(population, rows)["maxima0"][:, 0].amax(1)
    weights, pixels = gradients.weights(population, rows)[:, 0], population.pixels(rows)
    steeper = 0
    for image, weight, norm in zip(pixels, weights, largest.tolist(), strict=True):
        places = torch.rand(399, 64, generator=torch.Generator().manual_seed(0)).topk(5, dim=1).indices
        points = image.flatten().repeat(399, 1)
        points.scatter_(1, places, (points.gather(1, places) < 0.5).to(points))
        points = points.reshape(-1, *image.shape)
        assert float(ball.norm(points - image).max()) <= 5
        _, gradient = gain_and_gradient(population.encoder, points, partial(torch.mv, vec=weight))
        steeper += float(ball.dual_norm(gradient).max()) > norm
    assert steeper >= 15


def test_fits_are_counted_image_by_image():
    """Two fits around one image are no two samples: the interval counts images, random ones alone."""
    found = Clever(balls=(L2(5.0),), batches=8, draws=2, random=12, guided=6, rivals=3, k=4)(builtin(), digits(60), RUN)
    fits = found.estimate("weibull_fits")
    assert fits.n == 12
    assert fits.series == "weibull_fits"
    assert fits.value == np.mean(next(s.values for s in found.series if s.quantity == "weibull_fits"))


def test_chosen_images_have_no_interval():
    found = Clever(balls=(L2(5.0),), batches=4, draws=2, random=12, guided=3, rivals=1, k=4)(builtin(), digits(60), RUN)
    guided = found.estimate("clever_score", margin="targeted", samples="3 by SPADE")
    assert np.isnan([guided.low, guided.high]).all()
    assert guided.method.startswith("no interval: ")
