"""Certified breakaway: closed forms, planes against distances, order of the bracket, contradictions, published numbers."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds.evaluations.certified_breakaway import (
    UNDEFINED,
    BreakawayBounds,
    BreakawayPairs,
    CertifiedBreakaway,
)
from holdfast.bounds.methods.base import Crown, Interval
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.outputs import AT_ONCE, bisector_hyperplanes, lower_and_upper_bounds, lower_bounds
from holdfast.bounds.pair_bounds import Certification
from holdfast.core.balls import L2, Linf
from holdfast.core.divergences import Cosine, Divergence, L1Distance, L2Distance
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from tests.bounds.evaluations.known import Boast, linear_case
from tests.marks import rest_slow
from tests.samples import builtin, digits, published

SMALL = CertifiedBreakaway(
    balls=(Linf(0.05), Linf(0.1)), samples=6, rivals=5, attack=AdaptiveAttack(restarts=1, steps=10)
)
both = pytest.mark.parametrize("divergence", [L2Distance(), Cosine()])


@both
def test_a_plane_parts_the_codes_nearer_to_one_image_from_those_nearer_to_the_other(divergence: Divergence) -> None:
    z = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).double() + 0.5
    own, others, moved = z[:3], z[3:7].expand(3, -1, -1), z[10:40].reshape(3, 10, 5)
    planes = bisector_hyperplanes(divergence, own, others)
    assert planes.defined.all()
    for b in range(3):
        for m in range(4):
            for p in range(10):
                code = moved[b, p][None]
                closer = divergence(code, others[b, m][None]) < divergence(code, own[b][None])
                assert bool(planes.signed_distances(moved)[b, m, p] < 0) == bool(closer)
    assert 0 < (planes.signed_distances(moved) < 0).double().mean() < 1, "vacuous"


@both
@pytest.mark.parametrize("ball", [Linf(0.015), L2(0.035)])
def test_the_risk_of_a_linear_encoder_is_known(divergence: Divergence, ball: Linf | L2) -> None:
    """In a ball that meets no edge of the range, bounds and attacks agree with the closed form, pair by pair."""
    encoder, images, weight = linear_case()
    population = Population(encoder, images, RunSettings(precision="float64"))
    escape = BreakawayBounds(Certification(12, Crown(), AdaptiveAttack(), 100), ball, divergence, 11, 11)
    found = escape.breakaway_pairs(population, range(12))
    planes = bisector_hyperplanes(divergence, population.codes, population.codes[found.others])
    slope = (planes.normals @ weight.double()).flatten(0, 1)
    least = planes.signed_distances(population.codes[:, None])[..., 0] - ball.radius * ball.dual_norm(slope).reshape(
        12, 11
    )
    assert torch.allclose(found.bound, least, atol=1e-9)
    assert torch.equal(found.certified, least > 0)
    assert (found.passed <= (least < 0)).all()
    assert (found.passed == (least < -1e-3)).double().mean() > 0.95
    assert 0 < found.passed.double().mean() < 0.8, "vacuous"


def test_the_bracket_is_in_order_and_its_ends_say_what_they_are() -> None:
    result = SMALL(builtin(), digits(200))
    for ball in SMALL.balls:
        for divergence in SMALL.divergences:
            proved, struck, clear, kept = (
                s for s in result.series if {str(ball), str(divergence)} <= set(s.conditions.values())
            )
            assert [s.claim for s in (proved, struck, clear, kept)] == [
                Claim.UPPER,
                Claim.LOWER,
                Claim.LOWER,
                Claim.UPPER,
            ]
            assert all(low <= high for low, high in zip(struck.values, proved.values, strict=True))
            assert all(low <= high for low, high in zip(clear.values, kept.values, strict=True))
    far = result.estimate("certified_breakaway_risk", ball="linf:0.1", divergence="l2")
    near = result.estimate("certified_breakaway_risk", ball="linf:0.05", divergence="l2")
    assert far.value > 2 * near.value > 0
    assert result.estimate("attacked_breakaway_risk", ball="linf:0.1", divergence="l2").value > 0.01
    assert not result.findings.warnings
    curves = {(c.quantity, c.conditions["divergence"], c.conditions["attack"]): c for c in result.findings.curves}
    assert {quantity for quantity, _, _ in curves} == {"breakaway_risk", "nearest_neighbour_accuracy"}
    assert len(curves) == 8
    proved_curve = curves["breakaway_risk", "l2", "certified by crown"]
    assert proved_curve.x == (0.05, 0.1)
    assert proved_curve.y == (near.value, far.value)


def test_no_point_of_the_ball_is_where_a_certificate_says_that_none_is() -> None:
    population = Population(builtin(), digits(100), RunSettings(precision="float64"))
    certification = Certification(4, Crown(), AdaptiveAttack(), 1000)
    found = BreakawayBounds(certification, Linf(0.08), L2Distance(), 99, 3).breakaway_pairs(population, range(4))
    assert 0.2 < found.certified.double().mean() < 1, "vacuous"
    generator = torch.Generator().manual_seed(0)
    for row in range(4):
        x = population.pixels([row])
        noise = 2 * torch.rand(500, 1, 8, 8, generator=generator).double() - 1
        points = torch.cat([x + 0.08 * noise, x + 0.08 * noise.sign()]).clamp(0, 1)
        codes, others = population.encode(points), population.codes[found.others[row]]
        own = (codes - population.codes[row]).norm(dim=1)
        passed = (torch.cdist(codes, others) < own[:, None]).any(0)
        assert not (passed & found.certified[row]).any()


@pytest.mark.slow
def test_looser_bounds_prove_less_and_more_rivals_find_more() -> None:
    tight, loose = SMALL(builtin(), digits()), replace(SMALL, method=Interval())(builtin(), digits())
    name, case = "certified_breakaway_risk", {"ball": "linf:0.05", "divergence": "cosine"}
    assert loose.estimate(name, **case).value > tight.estimate(name, **case).value
    one, many = (replace(SMALL, rivals=k)(builtin(), digits()) for k in (1, 50))
    name, case = "attacked_breakaway_risk", {"ball": "linf:0.1", "divergence": "l2"}
    assert many.estimate(name, **case).value > one.estimate(name, **case).value


def test_a_bound_that_lies_is_found_out() -> None:
    result = replace(SMALL, balls=(Linf(0.3),), method=Boast(9.0))(builtin(), digits())
    assert result.estimate("contradictions", divergence="l2").value > 6
    (verdict,) = result.findings.verdicts
    assert verdict.status == "refuted"
    assert result.findings.warnings
    pixels = torch.tensor(np.frombuffer(b64decode(verdict.witness["pixels_float64_base64"])).reshape(1, 1, 8, 8))
    code, images = builtin()(pixels.float()), digits()
    own, other = (builtin()(images.pixels([images.ids.index(verdict.witness[name])])) for name in ("image", "other"))
    assert (code - other).norm() < (code - own).norm()
    assert float(verdict.witness["distance"]) <= 0.3 * (1 + 1e-6)


def test_copies_and_zero_codes_are_undefined() -> None:
    planes = bisector_hyperplanes(
        Cosine(), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[[1.0, 1.0]], [[2.0, 0.0]]])
    )
    assert not planes.defined.any()
    pixels = digits(4).pixels([0, 1, 2, 3])
    result = SMALL(builtin(), Images(pixels[[0, 0, 0, 0]], ids=list("abcd")))
    assert all(isnan(value) for series in result.series for value in series.values)
    assert set(result.series[0].reasons.values()) == {UNDEFINED}
    some = SMALL(builtin(), Images(pixels[[0, 0, 1, 2]], ids=list("abcd")))
    assert not any(map(isnan, some.series[0].values))


def test_other_divergences_are_refused() -> None:
    with pytest.raises(HoldfastError, match="no half-space"):
        replace(SMALL, divergences=(L1Distance(),))(builtin(), digits())


def test_many_rows_are_bounded_as_few() -> None:
    encoder, x = builtin(), digits().pixels(range(3)).double()
    graph = trace(encoder, torch.float64)
    rows = torch.randn(3, AT_ONCE, graph.nodes[-1].shape[-1], generator=torch.Generator().manual_seed(0)).double()
    whole = lower_bounds(graph, Crown(), x, Linf(0.05), encoder.domain, rows)
    for image in range(3):
        one = lower_bounds(
            graph, Crown(), x[image : image + 1], Linf(0.05), encoder.domain, rows[image : image + 1, -5:]
        )
        assert torch.allclose(one[0], whole[image, -5:])
    low, high = lower_and_upper_bounds(graph, Crown(), x, Linf(0.05), encoder.domain, rows[:, :4])
    assert torch.allclose(low, whole[:, :4])
    assert (low < high).all()


@pytest.mark.parametrize(
    ("name", "eps", "low", "high"),
    rest_slow(
        [
            ("mnist_base", 0.05, 0.65, 0.95),
            ("mnist_base", 0.02, 0.0, 0.03),
            ("mnist_base_adv1", 0.1, 0.0, 0.0),
            ("mnist_base_adv1", 0.3, 1.0, 1.0),
        ]
    ),
)
def test_risks_are_those_of_an_independent_program(
    reference: Path, name: str, eps: float, low: float, high: float
) -> None:
    """That program looked at 25 images unknown to us, so only sampling may tell the two apart."""
    theirs = json.loads((reference / "unsupervised" / "crown_breakaway.json").read_text())[f"{name}@{eps:g}"]
    assert low <= theirs["upper_bound_worstcase_breakaway"] <= high
    x = torch.tensor(np.load(reference / "images" / "mnist_test.npz")["images"][:200]).double() / 255
    encoder = published(reference, name, torch.float64)
    codes = encoder(x)
    planes = bisector_hyperplanes(L2Distance(), codes[:10], codes[10:].expand(10, -1, -1))
    graph = trace(encoder, torch.float64)
    bound = lower_bounds(graph, Crown(joint=False), x[:10], Linf(eps), encoder.domain, planes.normals) - planes.offsets
    assert low <= (bound <= 0).double().mean() <= high


def test_of_a_pair_without_a_hyperplane_nothing_is_claimed() -> None:
    """Nor of a bound of zero; an attack refutes a certificate where one of its points is on the other side."""
    pairs = BreakawayPairs(
        others=torch.tensor([[1, 2, 3, 4]]),
        defined=torch.tensor([[False, True, True, True]]),
        bound=torch.tensor([[0.5, 0.5, 0.0, 0.5]]),
        attacked=torch.tensor([[[-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [0.0, 1.0]]]),
        points=torch.zeros(1, 2, 3),
    )
    assert pairs.certified.tolist() == [[False, True, False, True]]
    assert pairs.passed.tolist() == [[False, True, True, False]]
    assert pairs.refuted.tolist() == [[False, True, False, False]]
