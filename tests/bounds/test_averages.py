"""Averages weighted by a softmax: the fast range against all vertices, samples, and the network that uses it."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from holdfast.bounds import lower_bound
from holdfast.bounds.methods.interval import intermediate_bounds
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import region
from holdfast.bounds.relaxations import Box, averages_box, least_averages
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from tests.bounds.checks import lowest
from tests.bounds.networks import SHAPE
from tests.marks import rest_slow


def by_vertices(low: Tensor, high: Tensor, values: Tensor) -> Tensor:
    """The least average over all 2^n corners of the box of scores."""
    corners = torch.tensor(list(product((False, True), repeat=low.shape[-1])))
    scores = torch.where(corners[:, None], high, low)
    return (torch.softmax(scores, -1) @ values).amin(0)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_thresholds_find_the_least_vertex(n: int, scale: float) -> None:
    torch.manual_seed(n)
    for _ in range(10):
        middle, values = scale * torch.randn(3, n, dtype=torch.float64), torch.randn(n, 4, dtype=torch.float64)
        radius = scale * torch.rand(3, n, dtype=torch.float64)
        fast, slow = (f(middle - radius, middle + radius, values) for f in (least_averages, by_vertices))
        assert (fast <= slow + 1e-15).all()
        assert torch.allclose(fast, slow, rtol=1e-9, atol=1e-9)


def test_no_sample_lies_outside_and_ties_and_masks_are_allowed() -> None:
    torch.manual_seed(0)
    low, high = torch.randn(2, 3, 5, dtype=torch.float64), torch.rand(2, 3, 5, dtype=torch.float64)
    scores, values = Box(low, low + 3 * high), torch.randn(2, 5, 4, dtype=torch.float64)
    values[:, 1] = values[:, 0]
    kept = torch.ones(3, 5, dtype=torch.bool).tril(2)
    box = averages_box(scores, Box(values - 0.1, values + 0.2), kept)
    share = torch.rand(4000, 2, 3, 5, dtype=torch.float64)
    drawn = (low + 3 * high * torch.where(share > 0.7, 1.0, torch.where(share < 0.3, 0.0, share))).masked_fill(
        ~kept, -torch.inf
    )
    moved = values - 0.1 + 0.3 * torch.rand(4000, 2, 5, 4, dtype=torch.float64).round()
    averages = torch.softmax(drawn, -1) @ moved
    assert (averages >= box.lower).all()
    assert (averages <= box.upper).all()


def test_scores_that_may_be_anything_leave_the_range_of_the_values() -> None:
    values = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64)
    infinite = torch.full((1, 3), torch.inf, dtype=torch.float64)
    assert least_averages(-infinite, infinite, values) == 1
    assert least_averages(torch.zeros(1, 3).double(), torch.tensor([[0.0, torch.nan, 0.0]]).double(), values) == 1


def test_gradients_reach_scores_and_values_and_are_finite() -> None:
    torch.manual_seed(0)
    low, values = torch.randn(3, 5).double().requires_grad_(), torch.randn(5, 4).double().requires_grad_()
    box = averages_box(Box(low, low + 1), Box(values, values + 0.5), torch.ones(3, 5, dtype=torch.bool).tril())
    for part in torch.autograd.grad((box.upper - box.lower).sum(), (low, values)):
        assert part.isfinite().all()
        assert (part != 0).any()


class Attends(nn.Module):
    """Attention among four patches whose scores and values depend on the pixels, with or without a mask."""

    def __init__(self, causal: bool = False, apart: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.qkv, self.out = nn.Conv2d(2, 4, 3, 3), nn.Linear(4, 12), nn.Linear(16, 3)
        self.causal, self.apart = causal, apart

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(3 * self.patches(x).flatten(2).mT).unflatten(2, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        if self.apart:
            return self.out((torch.softmax(q @ k.mT, -1) @ v).transpose(1, 2).flatten(1))
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(1))


@pytest.mark.parametrize(
    "module", rest_slow([Attends(), Attends(causal=True), Attends(apart=True)]), ids=["fused", "causal", "apart"]
)
@pytest.mark.parametrize("eps", rest_slow([0.1, 0.01, 0.4]))
def test_bounds_of_attention_hold_and_boxes_are_those_of_averages(module: nn.Module, eps: float) -> None:
    encoder = Encoder(module, "attends", Domain(SHAPE)).to("cpu", torch.float64)
    x = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    specifications = torch.eye(3, dtype=torch.float64)[None]
    least = lowest(encoder, x, specifications[0], Linf(eps))
    for method in ("interval", "crown", "alpha:steps=3,inner=2"):
        assert (lower_bound(encoder, x, specifications, Linf(eps), method)[0] <= least + 1e-12).all()
    graph = trace(encoder)
    (node,) = [node for node in graph.nodes if node.context]
    boxes = intermediate_bounds(graph, region(x, Linf, torch.tensor([eps], dtype=torch.float64), encoder.domain))
    products, averages, values = (boxes[i] for i in (node.inputs[0], node.index, node.context[1]))
    assert not (averages.upper - averages.lower >= products.upper - products.lower).all(), "the rule adds nothing"
    assert (averages.lower >= values.lower.amin(-2, keepdim=True) - 1e-9).all()
    assert (averages.upper <= values.upper.amax(-2, keepdim=True) + 1e-9).all()
