"""The certified radius: closed forms, order of the bracket, contradictions, refusals, published numbers."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.pair_attacks import UnitBallModule
from holdfast.bounds.bound_findings import CrossCheck, label_share, verdict
from holdfast.bounds.certified_pairs import UNDEFINED, PairAttack, image_pairs, unit_ball
from holdfast.bounds.evaluations.certified_radius import CertifiedRadius
from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy
from holdfast.bounds.methods.base import Crown, Interval
from holdfast.bounds.pair_bounds import certified_radii, cross_check, nearest_confusion
from holdfast.core.balls import BALLS
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from tests.bounds.evaluations.known import Boast, linear_case, reference_pairs, sorting
from tests.filled import fill_table
from tests.marks import rest_slow
from tests.samples import builtin, digits

QUICK = AdaptiveAttack(restarts=1, steps=20)
SMALL = CertifiedRadius(samples=6, negatives=3, tolerance=1e-3, attack=QUICK)


@pytest.mark.parametrize("name", BALLS)
def test_the_radius_of_a_linear_encoder_is_known(name: str) -> None:
    encoder, images, weight = linear_case()
    population = Population(encoder, images, RunSettings())
    pairs = image_pairs(population, population.choose(5), 4, 100)
    slope = pairs.specifications @ weight.double()
    expected = pairs.values(pairs.images).reshape(pairs.shape) / unit_ball(name).dual_norm(slope.flatten(0, 1)).reshape(
        pairs.shape
    )
    certified = certified_radii(pairs, unit_ball(name), Crown(), 1e-6)
    assert (certified <= expected * (1 + 1e-9)).all()
    assert torch.allclose(certified, expected, rtol=1e-3)
    found = nearest_confusion(PairAttack(pairs, unit_ball(name), QUICK), certified)
    sizes = unit_ball(name).norm(found.points - pairs.images).reshape(pairs.shape)
    assert (found.values < 0).all()
    assert (sizes >= expected * (1 - 1e-9)).all()
    assert torch.allclose(sizes, expected, rtol=0.05)


def test_the_bracket_holds_its_images_and_shows_a_confusion() -> None:
    """The attacked point confuses the module itself, in the precision that users run it in."""
    population = Population(builtin("digits-robust"), digits(), RunSettings())
    pairs = image_pairs(population, population.choose(5), 3, 1000)
    pair_attack = PairAttack(pairs, unit_ball("linf"), QUICK)
    certified = certified_radii(pairs, pair_attack.ball, Crown(), 1e-4)
    found = nearest_confusion(pair_attack, certified)
    attacked = pair_attack.sizes(found.points).reshape(pairs.shape)
    assert (certified > 0.02).all()
    assert (certified < attacked).all()
    assert found.points.min() >= 0
    assert found.points.max() <= 1
    code = population.encoder(found.points.float())
    own, other = (population.encoder(pixels.float()) for pixels in (pairs.images, pairs.negatives.flatten(0, 1)))
    further = torch.cosine_similarity(code, other) - torch.cosine_similarity(code, own)
    assert (further > -1e-6).all()


@pytest.mark.slow
def test_more_effort_narrows_the_bracket() -> None:
    images = digits()
    loose = replace(SMALL, method=Interval(), attack=GradientAttack(steps=1))(builtin(), images)
    tight = SMALL(builtin(), images)
    for ours, theirs in zip(tight.series[0].values, loose.series[0].values, strict=True):
        assert ours >= theirs
    assert tight.estimate("average_certified_radius").value > 1.2 * loose.estimate("average_certified_radius").value
    assert tight.estimate("average_attacked_radius").value < loose.estimate("average_attacked_radius").value
    assert [series.claim for series in tight.series] == 2 * [Claim.LOWER, Claim.UPPER, Claim.LOWER]
    tightness = tight.estimate("tightness").value
    assert 0.4 < tightness < 1
    assert not tight.estimate("contradictions").value


def test_curves_hold_the_certified_below_the_attacked() -> None:
    certified, attacked = SMALL(builtin(), digits()).findings.curves
    assert certified.x == attacked.x
    assert certified.y[0] == attacked.y[0] == 1
    assert all(low <= high for low, high in zip(certified.y, attacked.y, strict=True))
    assert certified.y[40] < attacked.y[40]
    assert 0 < certified.x[0] < 0.1
    assert attacked.y[-1] == 0


def test_a_bound_that_lies_is_found_out() -> None:
    result = replace(SMALL, method=Boast())(builtin(), digits())
    (verdict,) = result.findings.verdicts
    assert result.estimate("contradictions").value == 6 * 3
    assert verdict.status == "refuted"
    assert "contradictions: 18 of 18" in verdict.reason
    assert result.findings.warnings[0].startswith("CONTRADICTION")
    pixels = np.frombuffer(b64decode(verdict.witness["pixels_float64_base64"])).reshape(1, 1, 8, 8)
    images, code = digits(), builtin()(torch.tensor(pixels).float())
    own, other = (builtin()(images.pixels([images.ids.index(verdict.witness[name])])) for name in ("image", "negative"))
    assert torch.cosine_similarity(code, other) > torch.cosine_similarity(code, own)
    assert float(verdict.witness["value_in_float32"]) == pytest.approx(
        float(verdict.witness["value_in_float64"]), rel=1e-3
    )


def test_an_attack_inside_a_certificate_counts_even_where_the_cross_check_misses_it() -> None:
    from holdfast.bounds.pair_bounds import refuted

    seen = {"certified": torch.tensor([[0.1, 0.1, 0.0]]), "attacked": torch.tensor([[0.2, 0.05, 0.2]])}
    assert refuted({**seen, "lowest": torch.ones(1, 3)}).tolist() == [[False, True, False]]
    assert refuted({**seen, "lowest": -torch.ones(1, 3)}).tolist() == [[True, True, False]]


def test_honest_certificates_leave_no_contradiction() -> None:
    result = SMALL(builtin("digits-robust"), digits())
    (verdict,) = result.findings.verdicts
    assert verdict.reason.startswith("contradictions: 0 of 18 certificates")
    assert verdict.status == "no violation found"
    assert not result.findings.warnings


def test_of_no_certificates_nothing_is_known() -> None:
    none = torch.zeros(2, 3, dtype=torch.bool)
    assert verdict([CrossCheck(none, none, {}).estimate()], {}).status == "unknown"
    many = CrossCheck(none, torch.tensor(51_462), {}).estimate()
    assert verdict([many], {}).reason.startswith("contradictions: 0 of 51,462 certificates")


def test_every_attack_stays_in_its_own_ball() -> None:
    population = Population(builtin(), digits(), RunSettings())
    pairs = image_pairs(population, [0, 1], 2, 1000)
    eps = torch.tensor([0.01, 0.3, 0.0, 1.5], dtype=torch.float64)
    for name in BALLS:
        pair_attack = PairAttack(pairs, unit_ball(name), QUICK)
        points = pair_attack(eps, "test").points
        assert (pair_attack.sizes(points) <= eps * (1 + 1e-9)).all()
        assert points.min() >= 0
        assert points.max() <= 1
        assert (pair_attack(eps, "test").values[[0, 1, 3]] < pairs.values(pairs.images)[[0, 1, 3]]).all()


def test_trying_a_radius_copies_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    population = Population(builtin(), digits(), RunSettings())
    pairs = image_pairs(population, [0, 1], 2, 1000)
    pair_attack = PairAttack(pairs, unit_ball("linf"), QUICK)
    eps = torch.full((4,), 0.1, dtype=torch.float64)
    module = UnitBallModule(pairs.encoder, pairs.images, eps).eval()
    copied = Encoder(module, "copied", Domain((1, 8, 8), -1.0, 1.0))
    noise, start = pairs.noise.fork("test"), torch.zeros_like(pairs.images)
    expected = module.pixels(QUICK(copied, start, pairs.objective, pair_attack.ball, noise))

    def refuse(*_: object) -> None:
        pytest.fail("weights were copied")

    monkeypatch.setattr("copy.deepcopy", refuse)
    assert torch.equal(pair_attack(eps, "test").points, expected)
    assert pairs.encoder.domain == Domain((1, 8, 8))


def test_gradients_pass_the_edge_of_the_range_only_inward() -> None:
    encoder = Encoder(nn.Flatten(), "pixels", Domain((1, 1, 3)))
    around = UnitBallModule(encoder, torch.tensor([[[[0.0, 1.0, 0.5]]]]), torch.tensor([2.0]))
    delta = torch.tensor([[[[-0.5, 0.5, 0.0]]]], requires_grad=True)
    codes = around(delta)
    assert codes.tolist() == [[0.0, 1.0, 0.5]]
    up, down = (torch.autograd.grad(sign * codes.sum(), delta, retain_graph=True)[0].flatten() for sign in (1, -1))
    assert up.tolist() == [2.0, 0.0, 2.0]
    assert down.tolist() == [0.0, -2.0, -2.0]


def test_pairs_that_point_alike_are_undefined() -> None:
    pixels = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels[2:] = pixels[1:2]
    images = Images(pixels, ids=list("abcdef"))
    result = replace(SMALL, negatives=1)(builtin(), images)
    values = dict(zip(result.findings.ids, result.series[0].values, strict=True))
    assert sum(map(isnan, values.values())) == 4
    assert set(result.series[0].reasons.values()) == {UNDEFINED}
    assert result.estimate("average_certified_radius").n == 2
    assert "4 of 6 samples undefined" in (result.estimate("average_certified_radius").reason or "")


def test_labels_tell_how_many_negatives_are_none() -> None:
    images = digits(20)
    labelled = Images(images.pixels(range(20)), images.ids, torch.arange(20) % 2)
    (found,) = label_share(Population(builtin(), labelled, RunSettings()), [0, 7], 19)
    assert found.value == pytest.approx(9 / 19)
    assert label_share(Population(builtin(), images, RunSettings()), [0, 7], 19) == ()
    measured = replace(SMALL, samples=2, attack=GradientAttack(steps=1))(builtin(), labelled)
    assert 0 <= measured.estimate("same_label_negatives").value <= 1


def test_an_encoder_that_cannot_be_bounded_is_one_failed_cell(tmp_path: Path) -> None:
    images = digits(20)
    results, failures = fill_table([sorting(), builtin()], lambda _: images, [SMALL], RunSettings(), Store(tmp_path))
    assert [result.encoder.name for result in results] == ["digits-contrastive"]
    (failure,) = failures
    assert "'sort'" in failure.reason
    assert "cannot be bounded" in failure.reason


def test_an_encoder_too_large_to_bound_is_refused() -> None:
    with pytest.raises(HoldfastError, match="192 nonlinear entries, more than the 191"):
        replace(SMALL, neurons=191)(builtin(), digits())


def test_unknown_norms_are_refused() -> None:
    with pytest.raises(HoldfastError, match="Did you mean 'linf'"):
        replace(SMALL, norm="linff")(builtin(), digits())


@pytest.mark.parametrize("name", rest_slow(["mnist_base", "mnist_cnn_4layer_a_adv1"]))
def test_radii_are_those_of_independent_programs(reference: Path, name: str) -> None:
    pairs, expected = reference_pairs(reference, name, 3)
    certified = certified_radii(pairs, unit_ball("linf"), Crown(), 1e-4)
    assert (certified >= torch.tensor(expected["crown"]) - 1.1e-4).all()
    assert (certified < torch.tensor(expected["attacked"])).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "anchors"), [("mnist_base", 10), ("mnist_cnn_4layer_a_adv1", 4)])
def test_mean_radii_of_many_pairs(reference: Path, name: str, anchors: int) -> None:
    pairs, expected = reference_pairs(reference, name, anchors)
    pair_attack = PairAttack(pairs, unit_ball("linf"), AdaptiveAttack(restarts=2, steps=50))
    certified = certified_radii(pairs, pair_attack.ball, Crown(), 1e-5)
    # The bound of one pair is zero once more, just below the root that bisection found.
    assert (certified >= torch.tensor(expected["crown"]) - 1.1e-4).all()
    assert certified.mean().item() == pytest.approx(expected["crown"].mean(), abs=1.5e-4)
    attacked = pair_attack.sizes(nearest_confusion(pair_attack, certified).points)
    assert attacked.mean().item() == pytest.approx(expected["attacked"].mean(), rel=0.04)
    assert (cross_check(pair_attack, certified).values > 0).all()


@pytest.mark.parametrize("claim", rest_slow([torch.nan, torch.inf]))
def test_what_overflows_proves_nothing(claim: float) -> None:
    result = replace(SMALL, method=Boast(claim))(builtin(), digits())
    assert set(result.series[0].values) == {0.0}
    assert result.estimate("contradictions").n == 0
    accuracy = InstanceAccuracy(samples=3, negatives=2, method=Boast(claim), attack=QUICK)(builtin(), digits())
    assert accuracy.estimate("certified_instance_accuracy", ball="linf:0.05").value == 0
