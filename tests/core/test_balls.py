"""The geometry that attacks and certificates rely on, over every ball."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize, stats
from torch import Tensor

from holdfast.core.balls import BALLS, L1, L2, Ball, Linf, column
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise

RADII = (8 / 255, 0.5, 3.0)
SHAPE = (2, 3)
every_ball = pytest.mark.parametrize("ball", [kind(r) for kind in BALLS.values() for r in RADII], ids=str)
unit_balls = pytest.mark.parametrize("ball", [kind(1.0) for kind in BALLS.values()], ids=str)


def rows(low: float = -4, high: float = 4) -> st.SearchStrategy[Tensor]:
    numbers = st.floats(low, high).filter(lambda x: x == 0 or abs(x) > 1e-6)
    return hnp.arrays(np.float64, (3, *SHAPE), elements=numbers).map(torch.from_numpy)


def around(ball: Ball, count: int = 50, dtype: torch.dtype = torch.float64) -> Tensor:
    """Points inside, near the edge of and far outside ``ball``."""
    noise = Noise.of(1, [str(k) for k in range(count)])
    points = noise.normal(SHAPE, dtype)
    lengths = ball.radius * (0.1 + 3 * noise.fork("length").uniform((1,), dtype)[:, 0])
    return points * column(lengths / ball.norm(points), points)


@every_ball
@given(delta=rows())
def test_a_projection_lies_inside_and_is_its_own_projection(ball: Ball, delta: Tensor):
    once = ball.project(delta)
    assert once.shape == delta.shape
    assert (ball.norm(once) <= ball.radius * (1 + 1e-12)).all()
    torch.testing.assert_close(ball.project(once), once, rtol=1e-12, atol=1e-15)


@every_ball
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_projection_keeps_type_and_moves_nothing_that_is_inside(ball: Ball, dtype: torch.dtype):
    points = around(ball, dtype=dtype)
    inside = ball.norm(points) < ball.radius * (1 - 8 * torch.finfo(dtype).eps)
    projected = ball.project(points)
    assert projected.dtype == dtype
    assert inside.any(), "vacuous fixture"
    assert not inside.all(), "vacuous fixture"
    assert torch.equal(projected[inside], points[inside])
    assert not torch.equal(projected[~inside], points[~inside])


@every_ball
def test_a_projection_is_the_nearest_point(ball: Ball):
    """The variational inequality: no point of the ball lies on the far side of the projection."""
    delta = around(ball)
    projected = ball.project(delta)
    outward = (delta - projected).flatten(1)
    # A linear function is largest over the ball at the steepest point, so this covers the whole ball, not a sample.
    furthest = ball.radius * ball.dual_norm(delta - projected)
    here = (outward * projected.flatten(1)).sum(1)
    assert (outward.abs().sum(1) > 0).any(), "vacuous fixture"
    torch.testing.assert_close(here, furthest, rtol=1e-10, atol=1e-12)


def nearest_in_l1(point: np.ndarray, radius: float) -> np.ndarray:
    """Return the projection of ``point``, shape (d,), by a general solver over its positive and negative parts."""
    d = len(point)

    def gap(parts: np.ndarray) -> float:
        return float(((parts[:d] - parts[d:] - point) ** 2).sum()) / 2

    inside = optimize.LinearConstraint(np.ones((1, 2 * d)), -inf, radius)
    solved = optimize.minimize(gap, np.full(2 * d, 1e-3), bounds=optimize.Bounds(0, inf), constraints=inside, tol=1e-14)
    assert solved.success
    return solved.x[:d] - solved.x[d:]


@pytest.mark.parametrize("radius", RADII)
def test_the_l1_projection_agrees_with_a_general_solver(radius: float):
    for point in around(L1(radius), 4):
        nearest = nearest_in_l1(point.flatten().numpy(), radius)
        np.testing.assert_allclose(L1(radius).project(point[None])[0].flatten().numpy(), nearest, atol=1e-4 * radius)


def test_l1_projection_by_hand():
    delta = torch.tensor([[3.0, 1.0, -2.0], [0.2, -0.3, 0.1], [-5.0, 0.0, 0.0], [1.0, -1.0, 1.0]])
    # Thresholds 2, none, 4 and 2/3; ties shrink alike.
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.2, -0.3, 0.1], [-1.0, 0.0, 0.0], [1 / 3, -1 / 3, 1 / 3]])
    torch.testing.assert_close(L1(1.0).project(delta), expected)
    torch.testing.assert_close(L1(2.0).project(delta[:1]), torch.tensor([[1.5, 0.0, -0.5]]))


def test_l2_and_linf_projections_by_hand():
    delta = torch.tensor([[3.0, -4.0], [0.3, 0.4]])
    torch.testing.assert_close(L2(1.0).project(delta), torch.tensor([[0.6, -0.8], [0.3, 0.4]]))
    torch.testing.assert_close(Linf(0.35).project(delta), torch.tensor([[0.35, -0.35], [0.3, 0.35]]))


def test_norms_by_hand():
    delta = torch.tensor([[[3.0, -4.0]], [[0.0, 0.0]]])
    for ball, norm, dual in ((Linf(1.0), 4.0, 7.0), (L2(1.0), 5.0, 5.0), (L1(1.0), 7.0, 4.0)):
        assert ball.norm(delta).tolist() == [norm, 0.0]
        assert ball.dual_norm(delta).tolist() == [dual, 0.0]


@unit_balls
@given(gradient=rows())
def test_the_steepest_step_has_unit_norm_and_attains_the_dual_norm(ball: Ball, gradient: Tensor):
    moving = ball.norm(gradient) > 0
    assume(bool(moving.any()))
    step = ball.steepest(gradient)
    gained = (gradient * step).flatten(1).sum(1)
    torch.testing.assert_close(gained, ball.dual_norm(gradient), rtol=1e-12, atol=0)
    torch.testing.assert_close(ball.norm(step), moving.double(), rtol=1e-12, atol=0)


@unit_balls
def test_no_point_of_the_ball_gains_more_than_the_dual_norm(ball: Ball):
    noise = Noise.of(0, [str(k) for k in range(2000)])
    gradient = noise.fork("gradient").normal(SHAPE, torch.float64)
    gained = (gradient * ball.sample(noise, SHAPE, torch.float64)).flatten(1).sum(1)
    assert (gained <= ball.dual_norm(gradient)).all()
    assert (gained / ball.dual_norm(gradient)).max() > 0.7, "vacuous fixture"


@unit_balls
@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-30, 1e-10, 1.0, 1e15])
def test_steepest_steps_neither_underflow_nor_overflow(ball: Ball, size: float):
    gradient = torch.tensor([[1.0, -2.0, 0.5]]) * size
    assert gradient.any(), "vacuous fixture"
    assert ball.norm(ball.steepest(gradient)).item() == pytest.approx(1, rel=1e-6)


@unit_balls
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_zero_gradient_gives_no_step_and_spoils_no_other(ball: Ball, dtype: torch.dtype):
    gradient = torch.zeros(2, *SHAPE, dtype=dtype)
    gradient[1, 0, 1] = -1e-7
    step = ball.steepest(gradient)
    assert step.dtype == dtype
    assert not step[0].any()
    assert ball.norm(step).tolist() == [0, 1]


@pytest.mark.parametrize(("spread", "used"), [(0.0, 1), (0.1, 1), (0.5, 3), (1.0, 6)])
def test_a_sparse_step_spreads_over_the_largest_entries(spread: float, used: int):
    gradient = torch.tensor([[[0.1, -6.0, 2.0], [-3.0, 0.5, 4.0]]])
    step = L1(1.0).steepest(gradient, spread)
    top = gradient.abs().flatten().topk(used).indices
    assert set(step.flatten().nonzero().flatten().tolist()) == set(top.tolist())
    torch.testing.assert_close(step.flatten()[top], gradient.flatten()[top].sign() / used)
    assert L1(1.0).norm(step).item() == pytest.approx(1)


@every_ball
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_samples_lie_inside(ball: Ball, dtype: torch.dtype):
    delta = ball.sample(Noise.of(0, [str(k) for k in range(500)]), SHAPE, dtype)
    assert delta.dtype == dtype
    assert delta.shape == (500, *SHAPE)
    assert torch.isfinite(delta).all()
    assert (ball.norm(delta) <= ball.radius * (1 + 4 * torch.finfo(dtype).eps)).all()


@every_ball
@pytest.mark.parametrize("shape", [(1,), SHAPE])
def test_samples_are_uniform(ball: Ball, shape: tuple[int, ...]):
    """``P(norm <= t radius) = t^d``, and each coordinate follows its marginal."""
    count = 4000
    delta = ball.sample(Noise.of(0, [str(k) for k in range(count)]), shape, torch.float64).flatten(1)
    d = delta.shape[1]
    share = ((ball.norm(delta) / ball.radius) ** d).numpy()
    assert stats.kstest(share, "uniform").pvalue > 0.005
    assert d == 1 or stats.kstest(share ** (1 / d), "uniform").pvalue < 0.001, "vacuous fixture"
    # By symmetry a coordinate's square (l2) or size (l1) is a Beta variable.
    edges = {
        "linf": lambda x: stats.uniform(-1, 2).cdf(x),
        "l2": lambda x: stats.beta((d + 1) / 2, (d + 1) / 2, loc=-1, scale=2).cdf(x),
        "l1": lambda x: 0.5 + 0.5 * np.sign(x) * stats.beta(1, d).cdf(np.abs(x)),
    }[ball.name]
    for column_ in (0, d - 1):
        assert stats.kstest((delta[:, column_] / ball.radius).numpy(), edges).pvalue > 0.005


@pytest.mark.parametrize("ball", [kind(5.0) for kind in BALLS.values()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_samples_and_projections_of_photographs_have_their_size_in_every_precision(ball: Ball, dtype: torch.dtype):
    shape = (3, 224, 224)
    noise = Noise.of(0, ["a"])
    tolerance = 1e-4 + 20 * torch.finfo(dtype).eps
    # In so many dimensions nearly all of the ball lies at its edge.
    assert ball.norm(ball.sample(noise, shape, dtype).double()).item() == pytest.approx(5, rel=tolerance)
    far = noise.normal(shape, dtype)
    assert ball.norm(ball.project(4 * far).double()).item() == pytest.approx(5, rel=tolerance)


@every_ball
def test_samples_do_not_depend_on_companions(ball: Ball):
    noise = Noise.of(0, ["a", "b", "c"])
    assert torch.equal(ball.sample(noise, SHAPE)[1:2], ball.sample(noise[1:2], SHAPE))
    assert not torch.equal(ball.sample(noise, SHAPE), ball.sample(noise.fork("again"), SHAPE)), "vacuous fixture"


@every_ball
def test_everything_scales_with_the_radius(ball: Ball):
    half, delta, noise = ball.scaled(0.5), around(ball), Noise.of(0, ["a"])
    assert type(half) is type(ball)
    assert half.radius == ball.radius / 2
    torch.testing.assert_close(half.project(delta / 2), ball.project(delta) / 2)
    torch.testing.assert_close(half.sample(noise, SHAPE), ball.sample(noise, SHAPE) / 2)


@pytest.mark.parametrize("kind", BALLS.values())
@pytest.mark.parametrize("radius", [0.0, -1.0, inf, nan])
def test_bad_radii_are_refused(kind: type[Ball], radius: float):
    with pytest.raises(HoldfastError, match=f"radius of a {kind.name} ball must be positive and finite, got"):
        kind(radius)


@pytest.mark.parametrize("kind", BALLS.values())
@given(radius=st.floats(1e-37, 1e300))
def test_text_is_read_back_exactly(kind: type[Ball], radius: float):
    ball = kind(radius)
    assert Ball.read(str(ball)) == ball
    assert Ball.read(f"{kind.name}:radius={radius!r}") == ball


@pytest.mark.parametrize("radius", [np.float64(0.05), np.float32(0.05), np.int64(2), Fraction(8, 255), 1])
def test_every_kind_of_number_makes_the_same_ball(unchecked: None, radius: Any):
    ball = Linf(radius)
    assert str(ball) == str(Linf(float(radius)))
    assert Ball.read(str(ball)) == ball == Linf(float(radius))


def test_an_unknown_ball_is_refused_with_a_suggestion():
    with pytest.raises(HoldfastError, match="Did you mean 'linf'"):
        Ball.read("linff:0.1")


@pytest.mark.parametrize("ball", [Linf(1.0), L2(4.0), L1(16.0)], ids=str)
def test_a_ball_that_just_holds_every_input_is_refused_and_a_smaller_one_is_not(ball: Ball):
    """Of 16 pixels in [0, 1] the farthest two inputs are 1, 4 and 16 apart."""
    domain = Domain((1, 4, 4))
    with pytest.raises(HoldfastError, match="holds every input"):
        ball.check(domain)
    ball.scaled(0.99).check(domain)


@pytest.mark.parametrize("seed", range(8))
@unit_balls
def test_the_smallest_step_onto_a_plane_is_that_of_a_solver(ball: Ball, seed: int) -> None:
    """A linear program for linf and l1, and the bisection of the multiplier for l2, with entries in a box."""
    generator = np.random.default_rng(seed)
    slope = generator.normal(size=6) * (generator.random(6) > 0.2)
    low, high = -generator.random(6), generator.random(6)
    low[0] = high[1] = 0  # at an edge of the range
    reach = [float(np.where(slope > 0, end, start) @ slope) for start, end in ((low, high), (high, low))]
    for rise in (0.7 * reach[0], 0.4 * reach[1], 1.5 * reach[0], 0.0):
        rows = [torch.tensor(each).reshape(1, *SHAPE) for each in (slope, low, high)]
        found = ball.onto_plane(rows[0], torch.tensor([rise]), rows[1], rows[2]).reshape(-1).numpy()
        assert (found >= low - 1e-9).all()
        assert (found <= high + 1e-9).all()
        assert found @ slope == pytest.approx(min(rise, reach[0]), abs=1e-6)
        if rise <= reach[0]:
            smallest = _onto_plane_slowly(ball, slope, rise, low, high)
            assert float(ball.norm(torch.tensor(found)[None])) == pytest.approx(smallest, abs=1e-6)


def _onto_plane_slowly(
    ball: Ball, slope: np.ndarray[Any, Any], rise: float, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any]
) -> float:
    """Return the smallest norm within the box along which ``slope`` rises by ``rise``, by a general solver."""
    n = len(slope)
    if isinstance(ball, L2):

        def moved(level: float) -> np.ndarray[Any, Any]:
            return np.clip(level * slope, low, high)

        level = optimize.brentq(lambda t: moved(t) @ slope - rise, -1e9, 1e9, xtol=1e-14)
        return float(np.linalg.norm(moved(level)))
    bounds = np.eye(n)
    sizes = np.ones((n, 1)) if isinstance(ball, Linf) else np.eye(n)
    cost = np.r_[np.zeros(n), np.ones(sizes.shape[1])]
    solved = optimize.linprog(
        cost,
        A_ub=np.r_[np.c_[bounds, -sizes], np.c_[-bounds, -sizes]],
        b_ub=np.zeros(2 * n),
        A_eq=np.r_[slope, np.zeros(sizes.shape[1])][None],
        b_eq=[rise],
        bounds=[*zip(low, high, strict=True), *[(0, None)] * sizes.shape[1]],
    )
    return float(np.asarray(solved.fun))
