"""Boxes of inner layers by branch and bound on what each neuron sees, against the whole network and exact programs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import Branch, Exact, lower_bound
from holdfast.bounds.certified_search import bisect_radii
from holdfast.bounds.methods.base import RadiusProblem
from holdfast.bounds.methods.branch import _branch_and_bound, receptive_field, refine_node, relax_and_refine
from holdfast.bounds.methods.branch_and_bound import Subdomains
from holdfast.bounds.methods.crown import NetworkRelaxation, relax
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import Region, region
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from tests.bounds.checks import lowest, points
from tests.bounds.networks import Residual, shared, trained
from tests.marks import rest_slow

SHAPE = (2, 6, 7)


def chain() -> nn.Sequential:
    """Strides, dilation, groups, uneven padding, batch norm: whatever crops must follow."""
    torch.manual_seed(5)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, (1, 2), (1, 0)), trained(nn.BatchNorm2d(4)), nn.ReLU()),
        *(nn.Conv2d(4, 4, (3, 2), 1, (2, 1), (2, 1), groups=2), nn.ReLU()),
        *(nn.Conv2d(4, 3, 2, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(105, 2)),
    )


def padded() -> nn.Sequential:
    """A layer of its own pads, as in CNN-B."""
    torch.manual_seed(7)
    first = (nn.ZeroPad2d((1, 2, 2, 0)), nn.Conv2d(2, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 5, 2, 1, 1), nn.ReLU())
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(100, 2))


def dense() -> nn.Sequential:
    torch.manual_seed(6)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(84, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU()),
        nn.Linear(6, 2),
    )


class Fold(nn.Module):
    """Each pixel, and its row once more."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.flip(3)], 3)


def net(module: nn.Module) -> Encoder:
    return Encoder(module.eval(), "net", Domain(SHAPE), mean=(0.4, 0.6), std=(0.3, 0.5)).to("cpu", torch.float64)


def around(encoder: Encoder, x: Tensor, eps: float, ball: type[Ball] = Linf) -> Region:
    return region(x, ball, torch.full((len(x),), eps, dtype=x.dtype), encoder.domain)


def sources(encoder: Encoder) -> list[int]:
    """The inputs of ReLUs."""
    return [node.inputs[0] for node in trace(encoder).nodes if node.name == "relu"]


@torch.no_grad()
@pytest.mark.parametrize("ball", rest_slow([Linf, L2]))
@pytest.mark.parametrize("make", [chain, padded, dense])
def test_at_radius_zero_a_crop_computes_what_the_network_does_at_every_place(
    make: Callable[[], nn.Module], ball: type[Ball]
) -> None:
    encoder = net(make())
    x = torch.rand(3, *SHAPE, dtype=torch.float64)
    network = relax(trace(encoder), around(encoder, x, 0.0, ball))
    for source in sources(encoder)[1:]:
        every = torch.ones_like(trace(encoder).values(x)[source], dtype=torch.bool).nonzero()
        tasks = _branch_and_bound(network, source, every)
        assert tasks is not None
        low, high = tasks.root(0).bounds.chunk(2)
        expected = trace(encoder).values(x)[source][every.unbind(1)]
        assert torch.allclose(low, expected, atol=1e-9)
        assert torch.allclose(-high, expected, atol=1e-9)


def unrefined(encoder: Encoder, x: Tensor, eps: float, ball: type[Ball] = Linf) -> NetworkRelaxation:
    return relax_and_refine(trace(encoder), around(encoder, x, eps, ball), 10, 0.25, 0.0)


SMALL = [Linf(0.08), Linf(0.02), L2(0.3)]
LARGE = [Linf(1.0), L2(2.0)]
"""Balls that the domain cuts: of the chain, whose crops are the hardest to split, they say what the others do."""


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "ball"),
    [*product([chain, padded, dense], SMALL), (padded, LARGE[0]), (padded, LARGE[1]), (dense, LARGE[0])],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_refined_boxes_are_tighter_and_hold_every_value(make: Callable[[], nn.Module], ball: Ball) -> None:
    encoder, eps = net(make()), ball.radius
    x = torch.rand(2, *SHAPE, dtype=torch.float64)
    x[1] = x[1].round()
    before = unrefined(encoder, x, eps, type(ball))
    after = relax_and_refine(trace(encoder), around(encoder, x, eps, type(ball)), 10, 0.25, 1e6)
    first = sources(encoder)[1]  # what follows has other slopes
    old, new = before.intermediate_bounds[first], after.intermediate_bounds[first]
    assert (new.lower >= old.lower).all()
    assert (new.upper <= old.upper).all()
    assert (new.lower > old.lower).any() or ball in (Linf(0.02), L2(0.3))
    for image in range(2):
        seen = trace(encoder).values(points(encoder, x[image : image + 1], ball, 3000))
        for source in sources(encoder):
            low, high = (end[image] for end in after.intermediate_bounds[source])
            assert (low <= seen[source] + 1e-9).all()
            assert (high >= seen[source] - 1e-9).all()


@torch.no_grad()
@pytest.mark.slow
def test_given_time_boxes_of_neurons_that_see_little_are_exact() -> None:
    encoder = net(chain())
    x, eps = torch.rand(1, *SHAPE, dtype=torch.float64), 0.3
    before = unrefined(encoder, x, eps)
    source = sources(encoder)[1]
    found = refine_node(before, source, math.inf)
    box = before.intermediate_bounds[source]
    free = ((box.lower < 0) & (box.upper > 0)).nonzero()[:12]
    ended = net(nn.Sequential(*list(chain())[:4], nn.Flatten()))
    units = torch.eye(box.lower[0].numel(), dtype=torch.float64)
    flat = torch.arange(len(units)).reshape(box.lower[0].shape)[free[:, 1:].unbind(1)]
    exact = lower_bound(ended, x, torch.cat([units[flat], -units[flat]])[None], Linf(eps), Exact())[0]
    low, high = exact.clamp_max(0).chunk(2)
    width = (box.upper - box.lower)[free.unbind(1)]
    assert ((found.lower[free.unbind(1)] - low).abs() <= 5e-3 * width).all()
    assert ((found.upper[free.unbind(1)] + high).abs() <= 5e-3 * width).all()
    assert (width - (found.upper - found.lower)[free.unbind(1)] > 1e-2 * width).any()


def test_entries_are_apart_only_where_no_two_share_a_pixel() -> None:
    steps = {
        "factors": (nn.BatchNorm2d(2), True),
        "view": (nn.Flatten(1), True),
        "zeros around": (nn.ZeroPad2d((1, 0, 2, 1)), True),
        "pixels repeated": (nn.ReplicationPad2d(1), False),
        "means": (nn.AvgPool2d(2), False),
        "sums of two": (Fold(), False),
    }
    for name, (step, apart) in steps.items():
        module = nn.Sequential(step, nn.Flatten(), nn.LazyLinear(2)).eval()
        module(torch.zeros(1, *SHAPE))
        graph = trace(net(module))
        (before,) = (node.inputs[0] for node in graph.nodes if node.name == "linear")
        assert (before in graph.pixelwise) == apart, name


def test_what_cannot_be_cropped_is_left_as_it_is() -> None:
    torch.manual_seed(0)
    encoder = net(nn.Sequential(Residual(2), Residual(4), nn.Flatten(), nn.Linear(16, 2)))
    graph = trace(encoder)
    joined = [i for i in sources(encoder) if len(graph.nodes[i].inputs) == 2]
    assert joined
    assert all(receptive_field(graph, i) is None for i in joined)
    x = torch.rand(1, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        network = relax(graph, around(encoder, x, 0.1))
        assert all(refine_node(network, i, math.inf) is network.intermediate_bounds[i] for i in joined)


@pytest.mark.slow
@pytest.mark.parametrize("make", [chain, padded, dense])
def test_rows_gain_from_refined_boxes_and_from_splits_and_stay_below_every_value(make: Callable[[], nn.Module]) -> None:
    encoder = net(make())
    x, specifications, ball = (
        torch.rand(1, *SHAPE, dtype=torch.float64),
        torch.randn(1, 3, 2, dtype=torch.float64),
        Linf(0.3),
    )
    least = lowest(encoder, x, specifications[0], ball, 3000)
    alone = Branch(seconds=3.0, target=torch.inf, boxes=0.0, parts=1)
    methods = (alone, replace(alone, boxes=0.5), replace(alone, boxes=0.5, parts=4000))
    found = [lower_bound(encoder, x, specifications, ball, method)[0] for method in methods]
    assert (found[0] <= found[1] + 1e-3 * found[0].abs()).all()
    assert (found[1] <= found[2] + 1e-3 * found[0].abs()).all()
    assert (found[2] > found[0]).any()
    assert (found[2] <= least + 1e-9).all()


def test_radii_are_sought_together_up_to_what_can_be_proved() -> None:
    true = torch.tensor([0.05, 0.0503, 0.2, 0.0, 0.9], dtype=torch.float64)
    low, high = torch.full_like(true, 0.01), torch.full_like(true, 0.5)
    low[3], high[3] = 0.0, 0.0
    asked: list[int] = []

    def trial(place: Region, specifications: Tensor, where: Tensor, end: float) -> Tensor:
        asked.append(len(place.eps))
        return place.eps[where] < true[specifications]

    def place(eps: Tensor) -> Region:
        centre = torch.zeros(len(eps), 1, 1, dtype=torch.float64)
        return Region(centre, centre, centre, eps, Linf)

    problem = RadiusProblem(trace(shared("linear")), place, torch.ones(5, 1), low, high)
    found = bisect_radii(trial, problem, 4, 60.0).radii
    assert (found <= true.clamp_max(0.5)).all()
    assert (found >= torch.minimum(true, high) * 0.98)[[0, 1, 2, 4]].all()
    assert found[3] == 0
    assert asked[0] == 1
    assert len(asked) < 20
    assert torch.equal(bisect_radii(trial, problem, 4, 0.0).radii, low)


@pytest.mark.slow
def test_splitting_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = net(chain())
    x, specifications = torch.rand(1, *SHAPE, dtype=torch.float64), torch.randn(1, 2, 2, dtype=torch.float64)
    split, rounds = Subdomains.split, list[int]()

    def counted(parts: Subdomains) -> Subdomains:
        rounds[-1] += 1
        return split(parts)

    monkeypatch.setattr(Subdomains, "split", counted)
    monkeypatch.setattr(time, "monotonic", map(float, count()).__next__)  # a second for each look at it
    for seconds in (0.0, 10.0, 25.0):
        rounds.append(0)
        lower_bound(encoder, x, specifications, Linf(0.9), Branch(seconds=seconds, target=torch.inf))
    assert rounds[0] == 0
    assert 0 < rounds[1] < 10
    assert rounds[1] < rounds[2] < 25
