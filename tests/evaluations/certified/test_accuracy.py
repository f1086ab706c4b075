"""Instance accuracy: closed forms, published against direct attack, generated negatives, contradictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds.methods.base import Interval
from holdfast.core.balls import L2, Linf
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.evaluations.certified.findings import series
from holdfast.evaluations.certified.instance_accuracy import InstanceAccuracy
from holdfast.evaluations.certified.pairwise.negatives import generated
from holdfast.evaluations.certified.pairwise.pairs import UNDEFINED, image_pairs, unit_ball
from holdfast.execution.request import build
from holdfast.protocol.evaluation import settings
from holdfast.protocol.population import Population
from tests.evaluations.certified.known import Boast, linear_case
from tests.samples import builtin, digits

SMALL = InstanceAccuracy(
    balls=(Linf(0.05), Linf(0.12)), samples=8, negatives=3, attack=AdaptiveAttack(restarts=1, steps=10)
)


def test_the_accuracy_of_a_linear_encoder_is_known() -> None:
    encoder, images, weight = linear_case()
    population = Population(encoder, images, RunSettings())
    pairs = image_pairs(population, population.choose(12), 4, 100)
    slope = unit_ball("linf").dual_norm((pairs.specifications @ weight.double()).flatten(0, 1))
    radii = (pairs.values(pairs.images) / slope).reshape(pairs.shape)
    eps = float(radii.median()) * 1.0001
    measured = replace(SMALL, balls=(Linf(eps),), samples=12, negatives=4)(encoder, images)
    certified, _, direct = measured.series
    expected = (radii > eps).double().mean(1).tolist()
    assert 0 < sum(expected) < 12, "vacuous"
    assert certified.values == pytest.approx(expected)
    assert direct.values == pytest.approx(expected)


def test_certified_is_below_attacked_and_the_direct_attack_is_the_stronger() -> None:
    result = SMALL(builtin(), digits())
    for k in (0, 1):
        certified, published, direct = result.series[3 * k : 3 * k + 3]
        assert [certified.claim, published.claim, direct.claim] == [Claim.LOWER, Claim.UPPER, Claim.UPPER]
        assert all(low <= high for low, high in zip(certified.values, direct.values, strict=True))
        assert all(low <= high for low, high in zip(certified.values, published.values, strict=True))
        assert sum(direct.values) <= sum(published.values)
    assert result.estimate("certified_instance_accuracy", ball="linf:0.12").value < 0.6
    assert result.estimate("certified_instance_accuracy", ball="linf:0.05").value > 0.8
    assert len(result.findings.curves) == 3
    assert all(curve.x == (0.05, 0.12) for curve in result.findings.curves)


def test_wider_balls_and_looser_bounds_certify_less() -> None:
    wide = replace(SMALL, balls=(Linf(0.08), L2(0.3)), method=Interval())(builtin(), digits())
    tight = replace(SMALL, balls=(Linf(0.08), L2(0.3)))(builtin(), digits())
    for ball in ("linf:0.08", "l2:0.3"):
        loose, better = (r.estimate("certified_instance_accuracy", ball=ball).value for r in (wide, tight))
        assert loose < better
    assert not tight.findings.curves  # of two norms there is no line


def test_generated_negatives_are_near_their_anchors_and_as_far_in_code_as_they_get() -> None:
    population = Population(builtin(), digits(), RunSettings())
    rows = population.choose(6)
    made, clean = generated(population, rows, Linf(0.3)), population.pixels(rows)
    assert Linf(0.3).norm(made - clean).max() <= 0.3 + 1e-6
    noise = (clean + 0.3 * torch.randn_like(clean).sign()).clamp(0, 1)
    moved, by_noise = (
        torch.linalg.vector_norm(population.encode(x) - population.codes[rows], dim=1) for x in (made, noise)
    )
    assert (moved > by_noise).all()
    result = replace(SMALL, generate=Linf(0.3), negatives=1)(builtin(), digits())
    others = replace(SMALL, negatives=1)(builtin(), digits())
    assert result.series[3].values != others.series[3].values
    assert build(InstanceAccuracy, {"generate": "linf:0.3"}) == InstanceAccuracy(generate=Linf(0.3))
    assert build(InstanceAccuracy, {"generate": "none"}) == InstanceAccuracy()


def test_a_bound_that_lies_is_found_out() -> None:
    result = replace(SMALL, balls=(Linf(0.05), Linf(0.5)), method=Boast())(builtin(), digits())
    (verdict,) = result.findings.verdicts
    assert verdict.status == "refuted"
    assert result.estimate("contradictions", ball="linf:0.05").value < 24
    assert result.estimate("contradictions", ball="linf:0.5").value == 24
    assert result.findings.warnings
    assert float(verdict.witness["value_in_float64"]) <= 0
    assert float(verdict.witness["distance"]) <= float(verdict.witness["certified_radius"]) * (1 + 1e-6)


@pytest.mark.parametrize("text", ["crown", "interval", "alpha:steps=5", "exact:seconds=0.5", "branch:parts=9"])
def test_methods_survive_their_spelling(text: str) -> None:
    assert settings(build(InstanceAccuracy, {"method": text}))["method"] == text


def test_each_attack_is_the_best_at_its_own_aim() -> None:
    population = Population(builtin(), digits(), RunSettings())
    observation = replace(SMALL, published=AdaptiveAttack(), attack=AdaptiveAttack()).pair_bounds(Linf(0.1))
    pair_attack = observation.pair_attack(population, population.choose(8))
    close, worst = observation.close(pair_attack), observation.worst(pair_attack)
    targets = population.encode(pair_attack.pairs.negatives.flatten(0, 1).float()).double()
    to_close, to_worst = (
        (pair_attack.pairs.encoder(found.points) - targets).norm(dim=1).mean() for found in (close, worst)
    )
    assert to_close < to_worst
    assert worst.values.mean() < close.values.mean()


def test_undefined_pairs_are_left_out_of_an_images_mean() -> None:
    values = torch.tensor([[1.0, torch.nan, 2.0], [torch.nan] * 3])
    means = series("q", {}, values, "1", Claim.LOWER, "q", UNDEFINED)
    assert means.values[0] == 1.5
    assert means.reasons == {1: UNDEFINED}


def test_keys_list_shared_settings_like_an_observations_own() -> None:
    listed = settings(SMALL.pair_bounds(Linf(0.1)))
    fields = {"ball", "samples", "negatives", "generate", "method", "published", "attack", "neurons", "arithmetic"}
    assert set(listed) == fields
    assert listed["samples"] == SMALL.samples
    assert listed["attack"] == str(SMALL.attack)


def test_nothing_is_certified_by_a_bound_that_is_not_positive() -> None:
    """The certified accuracy counts positive bounds alone, and only those can be contradicted."""
    evaluation = replace(SMALL, balls=(Linf(0.05),), negatives=1)
    population = Population(builtin(), digits(8), RunSettings())
    bounds = torch.tensor([-1.0, -1e-3, -5e-4, -1e-9, 0.0, 1e-12, 1.0, -torch.inf]).double()[:, None]
    observed = {"0.bound": bounds, "0.published": torch.ones_like(bounds), "0.direct": -torch.ones_like(bounds)}
    observed["0.direct"][6] = 1.0
    findings = evaluation.conclude(population, range(8), observed)
    certified, _, attacked = findings.series
    assert certified.values == (0, 0, 0, 0, 0, 1, 1, 0)
    assert attacked.values == (0, 0, 0, 0, 0, 0, 1, 0)
    (contradictions,) = [e.value for e in findings.estimates if e.quantity == "contradictions"]
    assert contradictions == 1
