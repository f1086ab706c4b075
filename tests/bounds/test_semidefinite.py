"""Semidefinite bounds: below the minimum, above those of single neurons, and proved by a matrix that is what it claims."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import Alpha, Crown, Exact, Interval, SdpCrown, Semidefinite, certified_radius, lower_bound
from holdfast.bounds.methods.crown import relax
from holdfast.bounds.methods.lagrangian import KINDS, RANGE, Ascent, Lagrangian, positive
from holdfast.bounds.methods.lipschitz import EnclosingBall
from holdfast.bounds.methods.semidefinite import ball_multipliers
from holdfast.bounds.network.operations import cast
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import region
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from tests.bounds.checks import lowest
from tests.bounds.networks import Residual
from tests.bounds.test_exact import SHAPE, context, tiny
from tests.marks import rest_slow
from tests.samples import builtin, digits


@pytest.mark.parametrize("seed", rest_slow(range(3)))
def test_bounds_lie_between_single_neurons_and_the_minimum(seed: int) -> None:
    encoder, x, specifications, ball = context(seed)
    found = lower_bound(encoder, x, specifications, ball, Semidefinite(steps=60, rank=4))
    assert (found <= lowest(encoder, x, specifications[0], ball, 20_000) + 1e-9).all()
    assert (found <= lower_bound(encoder, x, specifications, ball, Exact()) + 1e-6).all()
    assert (found >= lower_bound(encoder, x, specifications, ball, Alpha(10, 10)) - 1e-9).all()


@pytest.mark.slow
def test_radii_are_larger_than_those_of_single_neurons_and_proved() -> None:
    encoder, x = builtin("digits-robust"), digits(3).pixels([0, 1])
    codes = torch.nn.functional.normalize(encoder(x).double(), dim=1)
    specifications = (codes[0] - codes[1])[None, None]
    single = certified_radius(encoder, x[:1], specifications, Linf(0.35), Alpha(), 1e-3)
    together = certified_radius(
        encoder, x[:1], specifications, Linf(1.3 * single.item()), Semidefinite(steps=150), 1e-3
    )
    assert together > single
    assert lowest(encoder.to("cpu", torch.float64), x[:1].double(), specifications[0], Linf(together.item()), 100) > 0
    ball = Linf(1.6 * single.item())
    bound = lower_bound(encoder, x[:1], specifications, ball, Semidefinite(steps=300))
    assert lower_bound(encoder, x[:1], specifications, ball, Alpha()) < bound
    assert bound <= lowest(encoder.to("cpu", torch.float64), x[:1].double(), specifications[0], ball, 100)


def test_without_time_radii_are_those_of_crown() -> None:
    encoder, x, specifications, _ = context(2)
    specifications = specifications * (specifications @ encoder.forward(x)[0]).sign()[..., None]
    found, crown = (
        certified_radius(encoder, x, specifications, Linf(0.9), m) for m in (Semidefinite(seconds=0.0), Crown())
    )
    assert torch.equal(found, crown)


@pytest.mark.slow
@pytest.mark.parametrize("seed", rest_slow(range(3)))
@pytest.mark.parametrize("radius", rest_slow([0.5, 0.15]))
def test_bounds_of_l2_balls_lie_between_intervals_and_attacks(seed: int, radius: float) -> None:
    encoder, x, specifications, _ = context(seed)
    found = lower_bound(encoder, x, specifications, L2(radius), Semidefinite(steps=60, rank=4))
    assert (found <= lowest(encoder, x, specifications[0], L2(radius), 20_000) + 1e-9).all()
    assert (found >= lower_bound(encoder, x, specifications, L2(radius), Interval())).all()


@pytest.mark.slow
def test_bounds_of_l2_balls_gain_by_tying_layers_together() -> None:
    encoder, x = builtin("digits-robust"), digits(3).pixels([0, 1])
    codes = torch.nn.functional.normalize(encoder(x).double(), dim=1)
    specifications = (codes[0] - codes[1])[None, None]
    ball = L2(0.5)
    single, together = (
        lower_bound(encoder, x[:1], specifications, ball, method) for method in (SdpCrown(), Semidefinite(steps=200))
    )
    assert together > single
    assert together <= lowest(encoder.to("cpu", torch.float64), x[:1].double(), specifications[0], ball, 200)


def lagrangian(module: nn.Module, x: Tensor, specifications: Tensor, ball: type[Ball] = Linf) -> Lagrangian:
    graph = trace(Encoder(module.eval(), "net", Domain(tuple(x.shape[1:]))).to("cpu", torch.float64))
    around = region(x, ball, torch.full((len(x),), 0.3, dtype=torch.float64), Domain(tuple(x.shape[1:])))
    with torch.no_grad():
        boxes = relax(graph, around).intermediate_bounds
    return Lagrangian(graph, boxes, specifications, EnclosingBall(around.centre, around.eps) if ball is L2 else None)


@pytest.mark.parametrize("residual", rest_slow([True, False]))
@pytest.mark.parametrize("ball", [Linf, L2])
def test_constraints_never_add_where_they_hold(residual: bool, ball: type[Ball]) -> None:
    """At the variables of a real input the Lagrangian is at most what the row is there, whatever the multipliers."""
    torch.manual_seed(0)
    if residual:
        module: nn.Module = nn.Sequential(Residual(2), nn.Flatten(), nn.Linear(36, 2))
        x = torch.rand(1, 2, 6, 6, dtype=torch.float64)
    else:
        module, x = tiny(0).module, torch.rand(1, *SHAPE, dtype=torch.float64)
    problem = lagrangian(module, x, torch.randn(1, 2, dtype=torch.float64), ball)
    duals = {(n, kind): 5 * torch.rand_like(problem.unstable[n].double()) for n in problem.unstable for kind in KINDS}
    for key, value in duals.items():
        duals[key] = torch.where(problem.unstable[key[0]], value, 0.0)
    if problem.ball is not None:
        duals[RANGE] = 5 * torch.rand_like(problem.spans[0][0])
    low, high = problem.intermediate_bounds[0]
    for _ in range(20):
        point = low + (high - low) * torch.rand_like(low)
        if problem.ball is not None:
            step = point - problem.ball.centre
            point = problem.ball.centre + step * (0.3 / step.norm()).clamp_max(1)
        parts = [torch.ones(1, 1, dtype=torch.float64)]
        values = problem.graph.values(point[:, 0])
        for index, (middle, half) in problem.spans.items():
            scaled = torch.where(half > 0, (values[index] - middle) / half.clamp_min(1e-300), 0.0)
            assert (scaled.abs() <= 1 + 1e-9).all()
            parts.append(scaled.flatten(1))
        v = torch.cat(parts, 1)[:, None]
        assert (problem.lengths(v) <= 1 + 1e-9).all()
        row = (values[-1].flatten(1) * problem.specifications).sum(1)
        assert (problem.value(v, duals) <= row + 1e-9).all()
        specifications, kept = problem.matrix(duals), problem.kept
        pixels = (kept > 0) & (kept <= low.numel())
        matrix = torch.zeros(len(kept), len(kept), dtype=torch.float64)
        matrix[~pixels], matrix[:, ~pixels] = specifications, specifications.T
        matrix.diagonal()[pixels] = problem.pixel_diagonal(duals)
        assert torch.allclose(v[0, 0, kept] @ matrix @ v[0, 0, kept] / 2, problem.value(v, duals)[0])
        none = {key: torch.zeros_like(value) for key, value in duals.items()}
        assert torch.allclose(problem.value(v, none), row)


def test_a_matrix_is_called_positive_only_if_it_is() -> None:
    torch.manual_seed(0)
    for pixels, shift in product((0, 3), (-0.1, -1e-9, 1e-3)):
        half = torch.randn(8, 8, dtype=torch.float64)
        whole = half @ half.T
        whole[1 : 1 + pixels, 1 : 1 + pixels] = torch.diag(whole.diagonal()[1 : 1 + pixels])
        whole = whole + (shift - torch.linalg.eigvalsh(whole)[0]) * torch.eye(8, dtype=torch.float64)
        added = torch.full((8,), 0.5, dtype=torch.float64)
        added[1 : 1 + pixels] = whole.diagonal()[1 : 1 + pixels]
        specifications = (whole - torch.diag(added))[[0, *range(1 + pixels, 8)]]
        assert positive(specifications, added, pixels) == (shift > 0)
    assert not positive(torch.full((2, 2), torch.nan), torch.ones(2), 0)
    assert not positive(torch.eye(2)[:1], torch.tensor([1.0, 0.0]), 1)


def test_another_precision_computes_the_same() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Residual(2), nn.Flatten(), nn.Linear(36, 2))
    x = torch.rand(3, 2, 6, 6, dtype=torch.float64)
    graph = trace(Encoder(module.eval(), "net", Domain((2, 6, 6))).to("cpu", torch.float64))
    single = cast(graph, torch.float32)(x.float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), graph(x), atol=1e-5)


def test_what_cannot_be_bounded_together_is_refused() -> None:
    encoder, x, specifications, _ = context(0)
    with pytest.raises(HoldfastError, match="linf and l2 balls, got l1"):
        lower_bound(encoder, x, specifications, L1(0.1), Semidefinite())
    for method, ball in ((Semidefinite(), L1), (Exact(), L2)):
        with pytest.raises(HoldfastError, match="linf"):  # though CROWN alone may prove all of it
            certified_radius(encoder, x, specifications, ball(1e-6), method)
    smooth = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Sigmoid()), "smooth", Domain(SHAPE))
    with pytest.raises(HoldfastError, match="sigmoid"):
        lower_bound(smooth, x, specifications, Linf(0.1), Semidefinite())


def test_half_precision_and_execution_are_refused() -> None:
    encoder, x, specifications, ball = context(0)
    half = encoder.to("cpu", torch.bfloat16)
    for bounded, arithmetic in ((half, "real"), (half, "executed"), (encoder, "executed")):
        with pytest.raises(HoldfastError, match="semidefinite bounds are those of real arithmetic; use crown"):
            lower_bound(bounded, x, specifications, ball, Semidefinite(), arithmetic=arithmetic)


@torch.no_grad()
def start_in_ball(encoder: Encoder, x: Tensor, specifications: Tensor, radius: float) -> list[float]:
    """What the multipliers of SDP-CROWN prove without any ascent."""
    graph, around = trace(encoder), region(x, L2, torch.full((len(x),), radius, dtype=x.dtype), encoder.domain)
    network, ball = relax(graph, around), EnclosingBall(around.centre, around.eps)
    problem = Lagrangian(graph, network.intermediate_bounds, specifications, ball)
    start = {}
    for key, value in ball_multipliers(network, specifications, 20)[0].items():
        kept = problem.unstable[key[0]] if key != RANGE else torch.ones_like(value, dtype=torch.bool)
        start[key] = torch.where(kept, value, 0.0).float()
    noise = torch.randn(len(x), 6, 1 + problem.widths.shape[1])
    ascent = Ascent(problem, start, start, noise / problem.lengths(noise), 0.1)
    ascent.descend(300)
    return [ascent.proved(index, kappa, 20) for index, kappa in enumerate(ascent.kappa())]


@pytest.mark.slow
def test_multipliers_in_a_ball_begin_where_sdp_crown_ends() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(30, 80), nn.ReLU(), nn.Linear(80, 60), nn.ReLU(), nn.Linear(60, 3))
    encoder = Encoder(module.eval(), "wide", Domain((30,))).to("cpu", torch.float64)
    x, rows = torch.rand(2, 30, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    alone = lower_bound(encoder, x, rows[:, None], L2(1.0), Alpha(20, 0))[:, 0].tolist()
    for index, bound in enumerate(start_in_ball(encoder, x, rows, 1.0)):
        assert alone[index] + 0.1 < bound
        assert bound <= lowest(encoder, x[index : index + 1], rows[index : index + 1], L2(1.0), 500)
