"""Laws over every operation: the graph computes what the module does, and no point of a ball lies below a bound."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.bounds import Alpha, Crown, Interval, Lipschitz, Method, SdpCrown, lower_bound
from holdfast.bounds.methods.base import methods
from holdfast.bounds.network.tracing import trace
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.settings import fields_of
from tests.bounds.checks import lowest, points
from tests.bounds.networks import OPERATIONS, SHAPE, Apply, shared
from tests.marks import rest_slow

every = pytest.mark.parametrize("name", OPERATIONS)
FIRST = list(OPERATIONS)[::8]
"""Of each kind some, with a ball of each norm: the others say the same more slowly."""
few = pytest.mark.parametrize(
    "name", rest_slow([*FIRST, *(name for name in OPERATIONS if name not in FIRST)], len(FIRST))
)
BALLS: list[Ball] = [Linf(0.03), L2(0.3), L1(0.8)]
SHORT: dict[str, float] = {"seconds": 0.5, "steps": 3, "inner": 2}
KINDS: list[Method] = [
    kind(**{name: value for name, value in SHORT.items() if name in fields_of(kind)}) for kind in methods().values()
]
"""Every method there is, made quick."""
FAST: list[Method] = [*(method for method in KINDS if "seconds" not in fields_of(type(method))), Crown(joint=False)]
"""Those that need no time limit, for networks of every kind; the last is CROWN without intervals."""
BY_TIGHTNESS: list[Method] = [Interval(), Crown(joint=False), Crown(), Lipschitz(), Alpha(3, 2), SdpCrown(3, 2)]
"""The same, the loosest first, but for the two before the last, each of which may be the tighter."""


def context(name: str) -> tuple[Encoder, torch.Tensor, torch.Tensor]:
    encoder = shared(name)
    torch.manual_seed(1)
    x = torch.rand(2, *SHAPE, dtype=torch.float64).round(decimals=1)  # some pixels at the ends of the range
    specifications = torch.randn(2, 3, trace(encoder).nodes[-1].shape[1], dtype=torch.float64)
    return encoder, x, specifications


@every
def test_the_graph_computes_what_the_module_does(name: str) -> None:
    encoder, x, _ = context(name)
    assert torch.allclose(trace(encoder)(x), encoder.forward(x), rtol=1e-12, atol=1e-12)


def ball_of(name: str) -> Ball:
    """One ball for each network, since a ball meets nothing but pixels; the slow tests cross all with all."""
    return BALLS[list(OPERATIONS).index(name) % len(BALLS)]


@few
def test_no_point_of_the_ball_lies_below_a_bound_and_each_method_is_as_tight_as_simpler_ones(name: str) -> None:
    (encoder, x, specifications), ball = context(name), ball_of(name)
    least = torch.stack([lowest(encoder, x[i : i + 1], specifications[i], ball, 120) for i in range(2)])
    assert set(FAST) == set(BY_TIGHTNESS), "a method without its place"
    bounds = {str(method): lower_bound(encoder, x, specifications, ball, method) for method in BY_TIGHTNESS}
    for method, bound in bounds.items():
        # Without intervals CROWN does not know that a variance is positive, and says nothing of what is divided by it.
        assert bound.isfinite().all() or method == str(Crown(joint=False)), method
        assert (bound <= least + 1e-9).all(), (method, (bound - least).max())
    interval, plain, joint, norms, alpha, balls = (bounds[str(method)] for method in BY_TIGHTNESS)
    assert (joint >= torch.maximum(interval, plain) - 1e-9).all()
    assert (alpha >= joint - 1e-9).all()
    assert (norms >= joint - 1e-9).all()
    assert (balls >= torch.maximum(alpha, norms) - 1e-9).all()


@pytest.mark.parametrize("method", rest_slow(sorted(KINDS, key=lambda kind: kind not in FAST), len(FAST) - 1), ids=str)
def test_no_point_lies_below_a_bound_of_any_method(method: Method) -> None:
    torch.manual_seed(0)
    encoder, x, rows = context("linear")
    ball = BALLS[0]  # the ball that all of them take
    least = torch.stack([lowest(encoder, x[i : i + 1], rows[i], ball, 120) for i in range(2)])
    bound = lower_bound(encoder, x, rows, ball, method)
    assert (bound <= least + 1e-9).all()
    assert bound.isfinite().all(), "vacuous: nothing is bounded"


@pytest.mark.slow
@every
def test_no_point_of_many_lies_below_a_bound(name: str) -> None:
    encoder = shared(name)
    torch.manual_seed(0)  # after the network, which only the first test of it builds
    x = torch.rand(1, *SHAPE, dtype=torch.float64)
    specifications = torch.randn(1, 4, trace(encoder).nodes[-1].shape[1], dtype=torch.float64)
    # Each network meets every norm and every method; the radii take turns, since they are equal members of one law.
    turn = list(OPERATIONS).index(name)
    for ball in (Linf([0.003, 0.03, 0.3][turn % 3]), L2([0.1, 1.0][turn % 2]), L1([0.2, 3.0][turn // 2 % 2])):
        least = lowest(encoder, x, specifications[0], ball, 5000)
        for method in FAST:
            assert (lower_bound(encoder, x, specifications, ball, method)[0] <= least + 1e-9).all()


@every
def test_bounds_meet_the_value_in_a_tiny_ball(name: str) -> None:
    encoder, x, specifications = context(name)
    clean = torch.einsum("bsd,bd->bs", specifications, encoder.forward(x))
    bound = lower_bound(encoder, x, specifications, type(ball_of(name))(1e-7))
    assert torch.allclose(bound, clean, atol=2e-3, rtol=1e-3)


@pytest.mark.slow
@every
def test_single_precision_agrees_with_double(name: str) -> None:
    encoder, x, specifications = context(name)
    double = lower_bound(encoder, x, specifications, Linf(0.02))
    single = lower_bound(encoder, x, specifications.float(), Linf(0.02))
    # What single precision may round away is subtracted from its bounds.
    assert (single.double() <= double + 2e-3).all()
    assert (single.double() >= double - 0.03).all()


@pytest.mark.slow
@every
def test_images_are_bounded_alone_as_among_others(name: str) -> None:
    encoder, x, specifications = context(name)
    together = lower_bound(encoder, x, specifications, Linf(0.05))
    alone = torch.cat([lower_bound(encoder, x[i : i + 1], specifications[i : i + 1], Linf(0.05)) for i in range(2)])
    assert torch.allclose(together, alone, rtol=1e-9, atol=1e-9)


def test_points_reach_the_ball_and_stay_in_it() -> None:
    encoder, x, _ = context("conv")
    found = points(encoder, x[:1], Linf(0.1), 100)
    assert float((found - x[:1]).abs().max()) == pytest.approx(0.1)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1


REFUSED = {
    "sin": lambda x: torch.sin(x),
    "sort": lambda x: x.sort(1).values,
    "where": lambda x: torch.where(x > 0, x, -x),
    "cumsum": lambda x: x.cumsum(1),
    "round": lambda x: x.round(),
    "amin": lambda x: x.amin(1, keepdim=True),
    "argmax": lambda x: x.argmax(1, keepdim=True).to(x.dtype),
    "log": lambda x: torch.log(x + 1),
}


@pytest.mark.parametrize("name", rest_slow(REFUSED, fast=3))
def test_an_operation_that_is_not_listed_is_refused_by_name(name: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), Apply(REFUSED[name]))
    refused = "gt" if name == "where" else name
    with pytest.raises(HoldfastError, match=rf"operation '{refused}'.*docs/bounds.md"):
        trace(Encoder(module, "strange", Domain(SHAPE)))


SETTINGS_REFUSED = {
    "exponent 3": lambda x: x**3,
    "order 1": lambda x: x / x.norm(p=1, dim=1, keepdim=True),
    "weights depend": lambda x: nn.functional.linear(x, x.T @ x),
}


@pytest.mark.parametrize("said", SETTINGS_REFUSED)
def test_a_setting_that_cannot_be_bounded_is_refused(said: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), Apply(SETTINGS_REFUSED[said]))
    with pytest.raises(HoldfastError, match=said):
        trace(Encoder(module, "strange", Domain(SHAPE)))


def test_a_module_that_branches_on_values_is_refused_in_one_sentence() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), Apply(lambda x: x if x.sum() > 0 else -x))
    with pytest.raises(HoldfastError, match="cannot be traced"):
        trace(Encoder(module, "branching", Domain(SHAPE)))
