"""SDP-CROWN: balls that hold each layer, norms that are upper bounds, and bounds far above those of boxes in l2."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import Alpha, SdpCrown, certified_radius, lower_bound
from holdfast.bounds.methods import alpha as sdp_crown
from holdfast.bounds.methods.crown import NetworkRelaxation, relax
from holdfast.bounds.methods.lipschitz import EnclosingBall, enclosing_balls
from holdfast.bounds.network.network_graph import Affine, Convolution
from holdfast.bounds.network.norms import matrix, spectral_norms
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import region
from holdfast.bounds.rounding.arithmetic import rigorous
from holdfast.bounds.rounding.executed import executed_encoder
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from tests.bounds.checks import lowest, points
from tests.bounds.networks import OPERATIONS, SHAPE, shared
from tests.marks import rest_slow

RECTIFIED = ("linear", "conv", "residual", "strided", "batch norm", "max pool", "leaky relu", "clamp", "global pool")
every = pytest.mark.parametrize("name", rest_slow(RECTIFIED, 2))


def wide(seed: int) -> tuple[Encoder, Tensor, Tensor]:
    """A network whose layers are wide, so that boxes of l2 balls are loose, with an image and specifications."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(30, 80), nn.ReLU(), nn.Linear(80, 60), nn.ReLU(), nn.Linear(60, 3))
    encoder = Encoder(module.eval(), "wide", Domain((30,))).to("cpu", torch.float64)
    return encoder, torch.rand(1, 30, dtype=torch.float64), torch.randn(1, 3, 3, dtype=torch.float64)


@every
def test_norms_are_the_largest_singular_values(name: str) -> None:
    graph = trace(shared(name))
    for node in graph.nodes:
        if not isinstance(node.operation, Affine):
            continue
        shapes = [graph.nodes[i].shape for i in node.inputs]
        zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes]
        for position, norm in enumerate(spectral_norms(graph, node)):
            largest = torch.linalg.svdvals(matrix(node.operation, zeros, position))[0]
            assert largest * (1 - 1e-12) <= norm <= largest * (1 + 1e-5), node.name


def test_norms_of_large_operations_are_upper_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(shared("conv"))
    monkeypatch.setattr("holdfast.bounds.network.norms.LARGEST", 1)
    monkeypatch.setattr("holdfast.bounds.network.norms._NORMS", {})
    for node in graph.nodes:
        if isinstance(node.operation, Affine):
            shapes = [graph.nodes[i].shape for i in node.inputs]
            zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes]
            (norm,) = spectral_norms(graph, node)
            assert torch.linalg.svdvals(matrix(node.operation, zeros, 0))[0] <= norm


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (4, 3), "stride": (2, 1), "padding": (1, 2)},
        {"kernel_size": (3, 2), "stride": (2, 3), "dilation": (3, 2), "groups": 2},
        {"kernel_size": 1, "stride": 2},
    ],
)
def test_norms_of_large_convolutions_are_nearly_those_of_their_matrices(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(8)
    convolution = nn.Conv2d(4, 6, **settings)
    encoder = Encoder(nn.Sequential(convolution, nn.Flatten()).eval(), "conv", Domain((4, 13, 12)))
    graph = trace(encoder.to("cpu", torch.float64))
    node = next(node for node in graph.nodes if isinstance(node.operation, Convolution))
    shapes = [graph.nodes[i].shape for i in node.inputs]
    zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes]
    assert isinstance(node.operation, Affine)
    largest = torch.linalg.svdvals(matrix(node.operation, zeros, 0))[0]
    (exact,) = spectral_norms(graph, node)
    monkeypatch.setattr("holdfast.bounds.network.norms.LARGEST", 1)
    monkeypatch.setattr("holdfast.bounds.network.norms._NORMS", {})
    (norm,) = spectral_norms(graph, node)
    assert largest * (1 - 1e-12) <= exact <= largest * (1 + 1e-5)
    assert largest <= norm <= 1.1 * largest


@every
@pytest.mark.parametrize("ball", [L2(0.3), L1(0.8), Linf(0.03)], ids=str)
def test_balls_hold_the_values_of_every_layer(name: str, ball: Ball) -> None:
    encoder = shared(name)
    graph, x = rigorous(trace(encoder)), torch.rand(1, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        network = relax(graph, region(x, type(ball), torch.tensor([ball.radius]).double(), encoder.domain))
    values = graph.values(points(encoder, x, ball, 500))
    ratios = []
    for node, around, value in zip(graph.nodes, enclosing_balls(network), values, strict=True):
        distance = (value - around.centre).flatten(1).norm(dim=1)
        assert (distance <= around.radius).all(), node.name
        ratios.append(float(distance.max() / around.radius))
    assert max(ratios) > 0.15, "vacuous: far too large"


class Twice(nn.Module):
    """A residual block whose branches are the same: what they return moves twice as far as their input."""

    def forward(self, x: Tensor) -> Tensor:
        h = x + 1.0
        return h + torch.relu(h)


def test_the_ball_of_a_sum_is_as_large_as_those_of_its_branches_together() -> None:
    encoder = Encoder(Twice().eval(), "twice", Domain((30,))).to("cpu", torch.float64)
    graph, x = trace(encoder), torch.full((1, 30), 0.5, dtype=torch.float64)
    with torch.no_grad():
        network = relax(graph, region(x, L2, torch.tensor([0.3]).double(), encoder.domain))
    ball = enclosing_balls(network)[-1]
    moved = points(encoder, x, L2(0.3), 50)
    ends = x + 0.3 * (moved[1:] - x) / (moved[1:] - x).norm(dim=1, keepdim=True)
    distance = (encoder.forward(ends) - ball.centre.flatten(1)).norm(dim=1)
    assert distance.min() == pytest.approx(0.6)
    assert (distance <= ball.radius).all()
    assert ball.radius.item() == pytest.approx(0.6, rel=1e-4), "so large that it says nothing"


def test_balls_hold_layers_as_they_are_executed() -> None:
    """Of a ball so small that rounding alone moves anything."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(30, 80), nn.ReLU(), nn.Linear(80, 3))
    executed = executed_encoder(Encoder(module.eval(), "executed", Domain((30,))), torch.bfloat16, "cpu")
    x = torch.rand(1, 30).bfloat16().double()
    with torch.no_grad():
        network = relax(executed.graph, region(x, L2, torch.tensor([1e-9]).double(), executed.encoder.domain))
        hidden = executed.encoder.module[0](x.bfloat16()).double()  # type: ignore[index]
    node = next(node for node in executed.graph.nodes if isinstance(node.operation, Affine))
    ball = enclosing_balls(network)[node.index]
    distance = (hidden - ball.centre).norm()
    assert distance > 1e-4, "vacuous: nothing was rounded"
    assert distance <= ball.radius


@every
@pytest.mark.parametrize("radius", rest_slow([0.5, 0.05, 2.0]))
def test_no_point_lies_below_the_bound(name: str, radius: float) -> None:
    encoder, ball = shared(name), L2(radius)
    x = torch.rand(2, *SHAPE, dtype=torch.float64).round(decimals=1)
    specifications = torch.randn(2, 3, trace(encoder).nodes[-1].shape[1], dtype=torch.float64)
    bound = lower_bound(encoder, x, specifications, ball, SdpCrown(steps=20))
    for image in range(2):
        least = lowest(encoder, x[image : image + 1], specifications[image], ball, 200)
        assert (bound[image] <= least + 1e-9).all()
    assert bound.isfinite().all()


@pytest.mark.parametrize("seed", rest_slow(range(5)))
@pytest.mark.parametrize("radius", rest_slow([1.6, 0.8]))
def test_bounds_of_wide_layers_lie_between_those_of_boxes_and_attacks(seed: int, radius: float) -> None:
    encoder, x, specifications = wide(seed)
    alpha, bound = (lower_bound(encoder, x, specifications, L2(radius), method) for method in (Alpha(), SdpCrown()))
    least = lowest(encoder, x, specifications[0], L2(radius), 500)
    assert (bound[0] <= least + 1e-9).all()
    assert ((least - bound[0]) < 0.85 * (least - alpha[0])).all(), "no gain"


@pytest.mark.slow
def test_radii_grow_and_hold() -> None:
    encoder, x, specifications = wide(0)
    specifications = specifications * (specifications @ encoder.forward(x)[0]).sign()[..., None]
    alpha, radii = (
        certified_radius(encoder, x, specifications, L2(2.0), method, 1e-2) for method in (Alpha(10, 10), SdpCrown(10))
    )
    assert (radii > 1.01 * alpha).all()
    for row, radius in zip(specifications[0], radii[0].tolist(), strict=True):
        assert lowest(encoder, x, row[None], L2(radius), 200) > 0


def test_a_ball_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above would see if the radii were wrong."""

    def shrunk(network: NetworkRelaxation) -> list[EnclosingBall]:
        return [EnclosingBall(ball.centre, 0.2 * ball.radius) for ball in enclosing_balls(network)]

    monkeypatch.setattr(sdp_crown, "enclosing_balls", shrunk)
    encoder, x, _ = wide(0)
    first = nn.Sequential(*list(encoder.module.children())[:2], nn.Linear(80, 3).double())
    encoder = Encoder(first, "one layer", encoder.domain)
    specifications = torch.randn(1, 8, 3, dtype=torch.float64)
    bound = lower_bound(encoder, x, specifications, L2(1.6), SdpCrown())
    assert (bound[0] > lowest(encoder, x, specifications[0], L2(1.6), 500)).any()


@pytest.mark.parametrize("name", rest_slow(["gelu", "softmax", "products"]))
def test_layers_other_than_relus_keep_their_lines(name: str) -> None:
    assert name in OPERATIONS
    encoder, x = shared(name), torch.rand(1, *SHAPE, dtype=torch.float64)
    specifications = torch.randn(1, 2, trace(encoder).nodes[-1].shape[1], dtype=torch.float64)
    alpha, bound = (
        lower_bound(encoder, x, specifications, L2(0.2), method) for method in (Alpha(8, 4), SdpCrown(8, 4))
    )
    assert (bound >= alpha - 1e-9).all()
    assert (bound[0] <= lowest(encoder, x, specifications[0], L2(0.2), 200) + 1e-9).all()


@pytest.mark.parametrize(
    ("name", "memory"), rest_slow([("linear", 2**15), *product(("conv", "linear"), (2**26, 2**15))])
)
def test_a_batch_is_bounded_as_its_images_are(name: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.bounds.methods.crown.MEMORY", memory)
    encoder, x = shared(name), torch.rand(3, *SHAPE, dtype=torch.float64)
    specifications = torch.randn(3, 2, trace(encoder).nodes[-1].shape[1], dtype=torch.float64)
    together = lower_bound(encoder, x, specifications, L2(0.3), SdpCrown(3, 2))
    alone = [lower_bound(encoder, x[i : i + 1], specifications[i : i + 1], L2(0.3), SdpCrown(3, 2)) for i in range(3)]
    assert torch.allclose(together, torch.cat(alone), rtol=1e-6, atol=1e-6)
