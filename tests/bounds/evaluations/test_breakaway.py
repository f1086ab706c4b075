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
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.presets import U_PGD
from holdfast.bounds.certified_pairs import CertifiedEncoder, certified_encoder
from holdfast.bounds.evaluations.certified_breakaway import (
    UNDEFINED,
    BreakawayBounds,
    BreakawayPairs,
    CertifiedBreakaway,
)
from holdfast.bounds.methods.base import Crown, Interval
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.outputs import AT_ONCE, OutputBounds, bisector_hyperplanes
from holdfast.bounds.own_match import OwnMatch
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

FAST, LIGHT = AdaptiveAttack(restarts=1, steps=1), AdaptiveAttack(restarts=1, steps=10)
SMALL = CertifiedBreakaway(
    balls=(Linf(0.05), Linf(0.1)), samples=6, weakest=5, attack=LIGHT, attacks=(U_PGD, LIGHT), pairwise=LIGHT
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
    escape = BreakawayBounds(Certification(12, Crown(), AdaptiveAttack(), 100), ball, divergence, 11)
    found = escape.breakaway_pairs(population, range(12))
    planes = bisector_hyperplanes(divergence, population.codes, population.codes.expand(12, -1, -1))
    slope = (planes.normals @ weight.double()).flatten(0, 1)
    least = planes.signed_distances(population.codes[:, None])[..., 0] - ball.radius * ball.dual_norm(slope).reshape(
        12, 12
    )
    others = ~torch.eye(12, dtype=torch.bool)
    assert torch.equal(found.match.counted, others)
    # A box around the embeddings settles images far away, by a smaller bound.
    open_ = (found.bound <= 0) & others
    assert torch.allclose(found.bound[open_], least[open_], atol=1e-9)
    assert (found.bound[others] <= least[others] + 1e-9).all()
    assert torch.equal(found.certified, (least > 0) & others)
    assert (found.passed <= ((least < 0) & others)).all()
    assert (found.passed == ((least < -1e-3) & others)).double().mean() > 0.95
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
    found = BreakawayBounds(certification, Linf(0.08), L2Distance(), 3).breakaway_pairs(population, range(4))
    assert 0.2 < found.certified.double().mean() < 1, "vacuous"
    generator = torch.Generator().manual_seed(0)
    for row in range(4):
        x = population.pixels([row])
        noise = 2 * torch.rand(500, 1, 8, 8, generator=generator).double() - 1
        points = torch.cat([x + 0.08 * noise, x + 0.08 * noise.sign()]).clamp(0, 1)
        codes, others = population.encode(points), population.codes
        own = (codes - population.codes[row]).norm(dim=1)
        passed = (torch.cdist(codes, others) < own[:, None]).any(0)
        assert not (passed & found.certified[row]).any()


@pytest.mark.slow
def test_looser_bounds_prove_less_and_more_aims_find_more() -> None:
    tight, loose = SMALL(builtin(), digits()), replace(SMALL, method=Interval())(builtin(), digits())
    name, case = "certified_breakaway_risk", {"ball": "linf:0.05", "divergence": "cosine"}
    assert loose.estimate(name, **case).value > tight.estimate(name, **case).value
    one, many = (replace(SMALL, weakest=k)(builtin(), digits()) for k in (1, 50))
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
    assert sum(map(isnan, some.series[0].values)) == 1, "the first of two copies stands for both"


def test_other_divergences_are_refused() -> None:
    with pytest.raises(HoldfastError, match="no half-space"):
        replace(SMALL, divergences=(L1Distance(),))(builtin(), digits())


def test_many_rows_are_bounded_as_few() -> None:
    encoder, x = builtin(), digits().pixels(range(3)).double()
    graph = trace(encoder, torch.float64)
    rows = torch.randn(3, AT_ONCE, graph.nodes[-1].shape[-1], generator=torch.Generator().manual_seed(0)).double()
    bounds = OutputBounds(CertifiedEncoder(encoder, graph), Crown(), Linf(0.05))
    whole = bounds.lower(x, rows)
    for image in range(3):
        one = bounds.lower(x[image : image + 1], rows[image : image + 1, -5:])
        assert torch.allclose(one[0], whole[image, -5:])
    low, high = bounds.lower_and_upper(x, rows[:, :4])
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
    bounds = OutputBounds(CertifiedEncoder(encoder, graph), Crown(joint=False), Linf(eps))
    bound = bounds.lower(x[:10], planes.normals) - planes.offsets
    assert low <= (bound <= 0).double().mean() <= high


def test_of_a_pair_without_a_hyperplane_nothing_is_claimed() -> None:
    """Nor of a bound of zero, nor of an image that is no other one."""
    match = OwnMatch(
        certified=certified_encoder(
            Population(builtin(), digits(3), RunSettings()), 1000, "real", digits(3).pixels([0])
        ),
        divergence=L2Distance(),
        method=Crown(),
        ball=Linf(0.05),
        anchors=torch.zeros(1, 1, 8, 8).double(),
        own=torch.tensor([[0.0, 0.0]]).double(),
        gallery=torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [-2.0, 0.0]]).double(),
        counted=torch.tensor([[True, True, True, False]]),
    )
    pairs = BreakawayPairs(match, torch.tensor([[0.0, 0.5, 0.0, 0.5]]).double(), match.anchors[:, None])
    assert pairs.certified.tolist() == [[False, True, False, False]]
    assert match.passed(torch.tensor([[3.0, 3.0]]).double()).tolist() == [[False, True, True, False]]
    assert match.passed(torch.tensor([[-3.0, 0.0]]).double()).tolist() == [[False, False, False, False]]


def test_images_gallery_and_attacks_are_those_of_breakaway() -> None:
    """So the risk of any single attack lies below the certified one, and the stronger attack closes the bracket."""
    attack = Breakaway(balls=SMALL.balls, attacks=SMALL.attacks, samples=6, pairwise=SMALL.pairwise)
    proof, found = SMALL(builtin(), digits(100)), attack(builtin(), digits(100))
    assert proof.findings.ids == found.findings.ids
    assert set(attack.observation().parts) <= set(SMALL.observation().parts)
    for ball in SMALL.balls:
        for divergence in SMALL.divergences:
            case = {"ball": str(ball), "divergence": str(divergence)}
            (attacked,) = (
                s for s in proof.series if s.quantity == "attacked_breakaway" and case.items() <= s.conditions.items()
            )
            (kept,) = (
                s
                for s in proof.series
                if s.quantity == "attacked_nearest_neighbour" and case.items() <= s.conditions.items()
            )
            for one in found.series:
                if not case.items() <= one.conditions.items():
                    continue
                if one.quantity == "breakaway_share":
                    assert all(a >= b - 1e-12 for a, b in zip(attacked.values, one.values, strict=True))
                if one.quantity == "nearest_neighbour_kept":
                    assert all(a <= b for a, b in zip(kept.values, one.values, strict=True))
    assert found.estimate("breakaway_risk", ball="linf:0.1", divergence="l2", attack="u-pgd").value > 0, "vacuous"


def test_an_attack_of_breakaway_alone_can_refute_a_bound_that_lies() -> None:
    """The own attack of these certificates is too weak for that here."""
    weak = replace(SMALL, balls=(Linf(0.1),), divergences=(L2Distance(),), attack=FAST, weakest=1, method=Boast(9.0))
    blind = replace(weak, attacks=(FAST,), pairwise=FAST)
    strong = replace(weak, attacks=(AdaptiveAttack(),), pairwise=AdaptiveAttack())
    few, many = (each(builtin(), digits(60)).estimate("contradictions").value for each in (blind, strong))
    assert few < many
    (verdict,) = strong(builtin(), digits(60)).findings.verdicts
    assert float(verdict.witness["margin"]) < 0
