"""How far codes move: brute force over corners, order of the bracket, contradictions, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any, final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.evaluations.overlap import Overlap
from holdfast.attacks.gradient import GradientAttack
from holdfast.bounds.bound_findings import BracketEvaluation
from holdfast.bounds.certified_pairs import CertifiedEncoder
from holdfast.bounds.evaluations.certified_displacement import SHARE, CertifiedDisplacement
from holdfast.bounds.evaluations.certified_overlap import CertifiedOverlap
from holdfast.bounds.methods.base import Crown, Interval, Method
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.outputs import OutputBounds, across, one_minus_cosine, principal
from holdfast.bounds.regions import Region
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, L1Distance, L2Distance, LinfDistance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import Evaluation, parts
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from tests.bounds.evaluations.known import Boast, linear_case, sorting
from tests.filled import fill_table
from tests.samples import builtin, digits, doubled, linear

QUICK = AdaptiveAttack(restarts=1, steps=20)
DISPLACEMENT = CertifiedDisplacement(balls=(Linf(0.03), Linf(0.1)), samples=8, attack=QUICK)
OVERLAP = CertifiedOverlap(balls=(Linf(0.02), Linf(0.15)), samples=8, attack=QUICK)
DIVERGENCES = (L2Distance(), LinfDistance(), Cosine())
each = pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)


def reach_of(encoder: Encoder, ball: Ball, method: Method | None = None) -> OutputBounds:
    double = doubled(encoder)
    return OutputBounds(CertifiedEncoder(double, trace(double, torch.float64)), method or Crown(), ball)


def corners(x: Float[Tensor, "1 ..."], eps: float) -> Float[Tensor, "c ..."]:
    """Every corner of a small box: where a convex function of a linear code is largest."""
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=x.numel())), dtype=x.dtype)
    return (x + eps * signs.reshape(-1, *x.shape[1:])).clamp(0, 1)


@each
def test_a_linear_encoder_moves_as_far_as_its_farthest_corner(divergence: Divergence) -> None:
    encoder, images, _ = linear_case()
    x, ball = images.pixels(range(6)).double(), Linf(0.05)
    reach = reach_of(encoder, ball)
    bound = reach.farthest(divergence, x)
    for k in range(6):
        codes = reach.certified.encoder(corners(x[k : k + 1], 0.05))
        worst = divergence(codes, reach.certified.encoder(x[k : k + 1]).expand_as(codes)).max()
        assert worst <= bound[k] * (1 + 1e-9)
        assert bound[k] <= worst * {"linf": 1 + 1e-9, "l2": 1.4, "cosine": 3.5}[divergence.name]


def test_an_l2_ball_moves_a_linear_code_into_an_ellipsoid() -> None:
    encoder, images, weight = linear_case()
    x = images.pixels(range(3)).double()
    exact = 0.05 * torch.linalg.svdvals(weight.double())
    pairs = torch.stack([exact[0], exact[2], exact[4]])  # the longer axis of each plane
    bound = reach_of(encoder, L2(0.05)).farthest(L2Distance(), x)
    assert torch.allclose(bound, pairs.norm().expand(3), rtol=0.04)
    assert (bound > exact[0]).all()


@each
@pytest.mark.parametrize("ball", [Linf(0.08), L2(0.4), L1(0.6)], ids=str)
def test_codes_stay_within_what_is_proved(divergence: Divergence, ball: Ball) -> None:
    """Of points from all over the ball, none moves farther, or comes nearer to another code, than bounds allow."""
    x = digits().pixels(range(6)).double()
    generator = torch.Generator().manual_seed(0)
    reach = reach_of(builtin(), ball)
    clean = reach.certified.encoder(x)
    far, near = reach.farthest(divergence, x), reach.nearest(divergence, x, clean.roll(1, 0))
    assert (near > 0).any(), "vacuous"
    for k in range(6):
        steps = torch.randn(400, 1, 8, 8, generator=generator).double()
        steps = torch.cat([ball.steepest(steps), ball.steepest(steps) * 0.5]) * ball.radius
        codes = reach.certified.encoder((x[k] + steps).clamp(0, 1))
        assert (divergence(codes, clean[k].expand_as(codes)) <= far[k]).all()
        assert (divergence(codes, clean.roll(1, 0)[k].expand_as(codes)) >= near[k]).all()


@each
def test_tighter_bounds_come_nearer_to_the_truth(divergence: Divergence) -> None:
    x = digits().pixels(range(4)).double()
    loose, tight = (reach_of(builtin(), Linf(0.03), m) for m in (Interval(), Crown()))
    targets = tight.certified.encoder(x).roll(1, 0)
    assert (tight.farthest(divergence, x) < loose.farthest(divergence, x)).all()
    assert (tight.nearest(divergence, x, targets) >= loose.nearest(divergence, x, targets)).all()


def test_the_axes_are_orthonormal_and_the_first_is_the_one_asked_for() -> None:
    encoder, x = doubled(builtin()), digits().pixels(range(3)).double()
    axes = principal(encoder, x)
    eye = torch.eye(axes.shape[1], dtype=torch.float64).expand_as(axes)
    assert torch.allclose(axes @ axes.mT, eye, atol=1e-10)
    codes = encoder(x)
    rows = across(codes / codes.norm(dim=1, keepdim=True), axes)
    assert rows.shape[1] == axes.shape[1] - 1
    assert torch.allclose(rows @ rows.mT, eye[:, 1:, 1:], atol=1e-10)
    assert (rows @ codes[..., None]).abs().max() < 1e-10


def test_one_minus_cosine_keeps_its_digits() -> None:
    found = one_minus_cosine(torch.tensor([1.0, 1.0, 3.0]).double(), torch.tensor([1e-9, torch.inf, 4.0]).double())
    assert found.tolist() == pytest.approx([5e-19, 1.0, 0.4], rel=1e-9)


def test_the_bracket_of_displacement_is_in_order() -> None:
    result = replace(DISPLACEMENT, divergences=DIVERGENCES)(builtin(), digits())
    assert len(result.series) == 2 * 3 * 4
    for k in range(0, len(result.series), 4):
        share, moved, tau, distance = result.series[k : k + 4]
        assert [s.claim for s in (share, moved, tau, distance)] == 2 * [Claim.UPPER, Claim.LOWER]
        assert all(low <= high for low, high in zip(moved.values, share.values, strict=True))
        assert all(0 < low <= high for low, high in zip(distance.values, tau.values, strict=True))
        ratios = {round(a / b, 9) for a, b in zip(tau.values, share.values, strict=True)}
        assert len(ratios) == 1, "shares are distances in one unit"
    near, far = (result.estimate("certified_displacement", ball=b, divergence="l2") for b in ("linf:0.03", "linf:0.1"))
    assert 0 < near.value < far.value / 2
    assert near.unit == SHARE
    assert result.estimate("certified_tau", ball="linf:0.03", divergence="l2").better == "neither"
    assert len(result.findings.curves) == 6
    assert all(e.value == 0 for e in result.estimates if e.quantity == "contradictions")


def test_the_bracket_of_overlap_is_in_order() -> None:
    result = OVERLAP(builtin(), digits())
    for k in range(0, len(result.series), 4):
        proved, struck, margin, left = result.series[k : k + 4]
        assert [s.claim for s in (proved, struck)] == [Claim.UPPER, Claim.LOWER]
        assert [s.claim for s in (margin, left)] == [Claim.LOWER, Claim.UPPER]
        assert all(low <= high for low, high in zip(struck.values, proved.values, strict=True))
        assert all(low <= high < 1 for low, high in zip(margin.values, left.values, strict=True))
    assert result.estimate("certified_overlap_risk", ball="linf:0.02", divergence="l2").value == 0
    assert result.estimate("certified_overlap_risk", ball="linf:0.15", divergence="l2").value == 1
    assert result.estimate("attacked_overlap_risk", ball="linf:0.15", divergence="cosine").value >= 0.5
    assert not result.findings.warnings


def test_no_two_pairs_that_may_overlap_share_an_image() -> None:
    """Their intervals take pairs to be independent."""
    population = Population(builtin(), digits(30), RunSettings())
    rows = replace(OVERLAP, samples=12).observation().rows(population)
    assert len(rows) == 12
    assert len({*rows, *population.partners[rows].tolist()}) == 24


@pytest.mark.parametrize("evaluation", [DISPLACEMENT, OVERLAP], ids=lambda e: e.name)
def test_a_bound_that_lies_is_found_out(evaluation: CertifiedDisplacement | CertifiedOverlap) -> None:
    result = replace(evaluation, method=Boast(9.0))(builtin(), digits())
    (verdict,) = result.findings.verdicts
    assert verdict.status == "refuted"
    assert result.findings.warnings
    assert float(verdict.witness["distance"]) <= 0.15 * (1 + 1e-9)
    assert sum(e.value for e in result.estimates if e.quantity == "contradictions") >= 8


@pytest.mark.parametrize("claim", [-torch.inf, torch.nan])
def test_what_nothing_is_known_of_is_never_certified(claim: float) -> None:
    """A method that says nothing leaves an infinite reach, a cosine of -1, and every pair to overlap."""
    x = digits().pixels(range(2)).double()
    reach = reach_of(builtin(), Linf(0.1), Boast(claim))
    assert reach.farthest(L2Distance(), x).isinf().all()
    assert reach.farthest(LinfDistance(), x).isinf().all()
    assert (reach.farthest(Cosine(), x) == 2).all()
    for divergence in DIVERGENCES:
        assert (reach.nearest(divergence, x, reach.certified.encoder(x).flip(0)) == 0).all()
    result = replace(OVERLAP, method=Boast(claim))(builtin(), digits())
    assert set(result.series[0].values) == {1.0}


def test_copies_and_zero_codes_are_undefined() -> None:
    pixels = digits().pixels([0, 0, 0])
    result = OVERLAP(builtin(), Images(pixels, ids=list("abc")))
    assert all(isnan(value) for series in result.series for value in series.values)
    dark = Encoder(nn.Sequential(nn.Flatten(), nn.ReLU()).eval(), "dark", Domain((1, 8, 8), -1.0, 1.0))
    assert reach_of(dark, Linf(0.1)).farthest(Cosine(), -torch.ones(1, 1, 8, 8).double()).isnan().all()


@pytest.mark.slow
def test_others_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="no certificates are known under l1"):
        replace(DISPLACEMENT, divergences=(L1Distance(),))(builtin(), digits())
    _, failures = fill_table([sorting()], lambda _: digits(), [DISPLACEMENT, OVERLAP], RunSettings(), Store(tmp_path))
    assert ["'sort'" in failure.reason for failure in failures] == [True, True]


@pytest.mark.parametrize("turn", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_corner_between_two_directions_is_not_cut_off(turn: float) -> None:
    """The identity maps a square to itself; turned, its corners fall everywhere between the twelve directions."""
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.001]]).double()
    angle = torch.tensor(turn).double()
    rotation = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    reach = reach_of(linear((rotation @ weight).float(), (1, 1, 2)), Linf(0.1))
    x = torch.full((1, 1, 1, 2), 0.5).double()
    worst = (reach.certified.encoder(corners(x, 0.1)) - reach.certified.encoder(x)).norm(dim=1).max()
    bound = reach.farthest(L2Distance(), x)[0]
    assert worst <= bound * (1 + 1e-9)
    assert bound <= 1.04 * worst


@each
def test_codes_too_long_for_their_axes_are_refused(divergence: Divergence) -> None:
    pixels = Encoder(nn.Flatten(), "pixels", Domain((3, 48, 48)))
    with pytest.raises(HoldfastError, match=r"an axis for each of 6,912 features of pixels, more than the 5,000"):
        reach_of(pixels, Linf(0.1)).farthest(divergence, torch.rand(1, 3, 48, 48, dtype=torch.float64))


@pytest.mark.parametrize(
    ("proof", "attack", "ours", "theirs"),
    [
        (CertifiedDisplacement, Displacement, ("attacked_tau",), ("displacement",)),
        (CertifiedOverlap, Overlap, ("attacked_margin",), ("adversarial_margin",)),
    ],
)
def test_the_attacks_of_the_certified_event_close_the_bracket(
    proof: type[BracketEvaluation], attack: type[Evaluation], ours: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    """On the same images, whatever the own attack of the certificates reaches: here nothing."""
    strong = AdaptiveAttack(restarts=1, steps=20)
    shared: dict[str, Any] = {
        "balls": (Linf(0.05),),
        "divergences": (L2Distance(),),
        "samples": 6,
        "attacks": (strong,),
    }
    idle = GradientAttack(steps=1, step=1e-9)
    bracket, own = proof(**shared, attack=idle), attack(**shared)
    assert set(parts(own.observation())) <= set(parts(bracket.observation()))
    proved, found = bracket(builtin(), digits(100)), own(builtin(), digits(100))
    assert proved.findings.ids == found.findings.ids
    (left,) = (series for series in proved.series if series.quantity in ours)
    (right,) = (series for series in found.series if series.quantity in theirs)
    sign = 1 if proof is CertifiedDisplacement else -1
    assert all(sign * a >= sign * b - 1e-6 for a, b in zip(left.values, right.values, strict=True))
    weak = proof(**{**shared, "attacks": (idle,)}, attack=idle)(builtin(), digits(100))
    (without,) = (series for series in weak.series if series.quantity in ours)
    assert all(sign * a > sign * b for a, b in zip(left.values, without.values, strict=True)), "vacuous"
    assert proved.estimate("contradictions").value == 0


@final
@dataclass(frozen=True)
class TooSmall(Method):
    """Bounds a third of the region's width, and claims that they hold for all of it."""

    name = "too-small"

    def __call__(self, graph: Graph, around: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        low, high = (around.centre + (end - around.centre) / 3 for end in (around.low, around.high))
        return Crown()(graph, replace(around, low=low, high=high, eps=around.eps / 3), rows)


@pytest.mark.parametrize("proof", [CertifiedDisplacement, CertifiedOverlap])
def test_these_attacks_alone_can_refute_a_bound_that_lies(proof: type[BracketEvaluation]) -> None:
    strong, idle = AdaptiveAttack(restarts=1, steps=20), GradientAttack(steps=1, step=1e-9)
    case: dict[str, Any] = {"balls": (Linf(0.1),), "divergences": (L2Distance(),), "samples": 4, "attack": idle}
    blind, seeing = (
        replace(proof(**case), attacks=(a,), method=TooSmall())(builtin(), digits(60)) for a in (idle, strong)
    )
    assert blind.estimate("contradictions").value < seeing.estimate("contradictions").value
    (verdict,) = seeing.findings.verdicts
    assert float(verdict.witness["distance"]) <= 0.1 * (1 + 1e-6)
