"""Every setting and overload of an operation is bounded as what it is, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.bounds import Crown, Interval, Method, lower_bound, read_method
from holdfast.bounds.network.network_graph import Affine, Graph
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.relaxations import Rule
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.encoders.wrappers import PerImage
from holdfast.run.catalog import everything
from tests.bounds.checks import points
from tests.bounds.networks import SHAPE as NETWORK_SHAPE
from tests.bounds.networks import Apply, shared, trained
from tests.outside import installed

SHAPE = (4, 4, 4)
Function = Callable[[Tensor], Tensor]


def attention(x: Tensor, **settings: Any) -> Tensor:
    query, key, value = (x.flatten(2) * scale for scale in (0.4, 1.0, 2.0))
    return functional.scaled_dot_product_attention(query, key, value, **settings)


def grouped(x: Tensor) -> Tensor:
    """Four heads of queries on two of keys and values."""
    return functional.scaled_dot_product_attention(x, 2 * x[:, :2], x[:, 2:], enable_gqa=True)


def masked(x: Tensor, mask: Tensor) -> Tensor:
    return attention(x, attn_mask=mask.to(x) if mask.is_floating_point() else mask)


def far_keys(x: Tensor) -> Tensor:
    """The mask leaves out a key whose scores lie more than 709 from the others, beyond which exp overflows."""
    scale = torch.tensor([1.0, 1.0, 1.0, 1e4])[:, None].to(x)
    seen = torch.tensor([[True, True, True, False]])
    return functional.scaled_dot_product_attention(x, scale * (x + 1), x, attn_mask=seen)


LATE = torch.full((4, 4), -torch.inf).triu(1)  # what a query must not see of later keys
KERNEL = torch.linspace(-1, 1, 4 * 2 * 9).reshape(4, 2, 3, 3)
UNITS = torch.linspace(-2, 2, 4)

MAPS: dict[str, Function] = {
    "pad": lambda x: functional.pad(x, (1, 0, -1, 2), value=-0.3),
    "constant_pad_nd": lambda x: torch.constant_pad_nd(x, (1, 2), 0.3),
    "reflected": lambda x: functional.pad(x, (1, 2, 1, 0), mode="reflect"),
    "circular": lambda x: functional.pad(x, (1, 2, 1, 0), mode="circular"),
    "replicated": lambda x: functional.pad(x, (1, 2, 1, 0), mode="replicate"),
    "mean over negative axes": lambda x: x.mean((-1, 1), keepdim=True),
    "mean of all": lambda x: x.mean((1, 2, 3))[:, None],
    "sum in another precision": lambda x: x.sum(-1, dtype=torch.float32).to(x.dtype),
    "flatten": lambda x: x.flatten(-2, -1).unflatten(-1, (2, -1)).squeeze(0).unsqueeze(-1).mT[None],
    "repeat": lambda x: x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2).repeat(1, 2, 1, 1).tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, -1).flip(-1, 1).roll((1, 2), (2, -1)),
    "windows": lambda x: functional.unfold(x, 2, 1, 1, 2),
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0, 2])).narrow(-1, 1, 2)[..., ::2],
    "index": lambda x: x[:, torch.tensor([2, 0, 2])][..., torch.tensor([3, 1])],
    "index of pairs": lambda x: x[:, :, torch.tensor([[0], [3]]), torch.tensor([1, 1, 2])].flatten(2),
    "gather": lambda x: x.gather(-1, torch.tensor([3, 0]).expand(1, 4, 4, 2)),
    "parts": lambda x: torch.stack([*x.split([1, 3], 1)[1].unbind(-1), *x[:, 1:].chunk(4, 2)[0].unbind(2)], 2),
    "pixel shuffle": lambda x: functional.pixel_unshuffle(functional.pixel_shuffle(x, 2), 4).flip(1),
    "channel shuffle": lambda x: functional.channel_shuffle(x, 2),
    "average pool": lambda x: functional.avg_pool2d(x, (3, 2), 2, (1, 1), ceil_mode=True),
    "average pool without padding": lambda x: functional.avg_pool2d(x, 3, 2, 1, True, count_include_pad=False),
    "average pool by a divisor": lambda x: functional.avg_pool2d(x, 3, 2, 1, divisor_override=2),
    "average pool 1d": lambda x: functional.avg_pool1d(x.flatten(2), 3, 2, 1, True, False),
    "average pool 3d": lambda x: functional.avg_pool3d(x[None], (3, 2, 2), 2, (1, 0, 1), True, False, 5)[0],
    "adaptive average pool": lambda x: functional.adaptive_avg_pool2d(x, (3, None)),
    "adaptive average pool 1d": lambda x: functional.adaptive_avg_pool1d(x.flatten(2), 5),
    "adaptive average pool 3d": lambda x: functional.adaptive_avg_pool3d(x[None], (3, 2, 1))[0],
    "nearest": lambda x: functional.interpolate(x, scale_factor=1.7),
    "nearest 1d": lambda x: functional.interpolate(x.flatten(2), 7),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=(1.5, 0.8), mode="bilinear"),
    "bilinear by the given scale": lambda x: functional.interpolate(
        x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=True
    ),
    "bilinear with aligned corners": lambda x: functional.interpolate(x, (7, 3), mode="bilinear", align_corners=True),
    "bilinear with filter": lambda x: functional.interpolate(x, (3, 2), mode="bilinear", antialias=True),
    "linear": lambda x: functional.interpolate(x.flatten(2), 7, mode="linear"),
    "trilinear": lambda x: functional.interpolate(x[None], (3, 5, 3), mode="trilinear", align_corners=True)[0],
    "area": lambda x: functional.interpolate(x, (3, 3), mode="area"),
    "conv": lambda x: functional.conv2d(x, KERNEL.to(x), UNITS.to(x), (2, 1), (1, 2), (1, 2), 2),
    "same conv": lambda x: functional.conv2d(x, KERNEL.to(x)[..., :2], None, 1, "same", 2, 2),
    "conv of tiles": lambda x: functional.conv2d(x.reshape(2, 2, 4, 4), KERNEL.to(x), UNITS.to(x)).flatten(0, 1)[None],
    "conv of one image": lambda x: functional.conv2d(x[0], KERNEL.to(x), None, 1, 1, 1, 2)[None],
    "conv 3d": lambda x: functional.conv3d(x[None], KERNEL.to(x)[:, None, :1], UNITS.to(x), 2, 1),
    "transposed": lambda x: functional.conv_transpose2d(x, KERNEL.to(x), UNITS.to(x), 2, 1, 1, 2, 2),
    "transposed 1d": lambda x: functional.conv_transpose1d(x.flatten(2), KERNEL.to(x)[..., 0], None, 3, 1, 2),
    "transposed 3d": lambda x: functional.conv_transpose3d(x[:, :, None], KERNEL.to(x)[:, :, None], None, 2),
    "add": lambda x: torch.add(torch.add(UNITS.to(x), x, alpha=-2), x.mT, alpha=0.5),
    "sub": lambda x: torch.sub(1, torch.sub(x, x.mT, alpha=3), alpha=2) - torch.rsub(x, 2, alpha=-4),
    "divided": lambda x: x / -UNITS.to(x) * torch.tensor([2, 1, 0, -1]),
    "matmul with a vector": lambda x: torch.stack([x @ UNITS.to(x), UNITS.to(x) @ x], 1),
    "addmm": lambda x: torch.addmm(torch.eye(4).to(x), x[0, 0], torch.ones(4, 4).to(x), beta=-2, alpha=3)[None],
    "addmm to the input": lambda x: torch.addmm(x[0, 0], torch.eye(4).to(x), x[0, 1], beta=-2, alpha=3)[None],
    "baddbmm": lambda x: torch.baddbmm(x[0], x[0] * 2, torch.ones(4, 4, 4).to(x), beta=0.5, alpha=-1)[None],
    "batch norm": lambda x: functional.batch_norm(x, UNITS.to(x), 1 + UNITS.to(x) ** 2, UNITS.to(x), None, eps=0.1),
    "stored instance norm": lambda x: functional.instance_norm(
        x, UNITS.to(x), 1 + UNITS.to(x) ** 2, UNITS.to(x), None, use_input_stats=False
    ),
    "type_as": lambda x: x.type_as(torch.ones(1).to(x)).contiguous().detach(),
}
FUNCTIONS: dict[str, Function] = {
    "convs of tiles": lambda x: functional.conv2d(
        torch.relu(functional.conv2d(x.reshape(2, 2, 4, 4), KERNEL.to(x), None, 1, 1)), KERNEL.to(x), None, 2, groups=2
    ).flatten(0, 1)[None],
    "max pool": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max pool with ceil mode": lambda x: functional.max_pool2d(x, (3, 2), (2, 3), (1, 0), ceil_mode=True),
    "max pool that begins in the padding": lambda x: functional.max_pool2d(x, 2, 3, 1, ceil_mode=True),
    "dilated max pool": lambda x: functional.max_pool2d(x, 2, 1, 1, 3),
    "max pool of one image": lambda x: functional.max_pool2d(x[0], 2)[None],
    "max pool with places": lambda x: functional.max_pool2d(x, 2, 1, return_indices=True)[0],
    "max pool 1d": lambda x: functional.max_pool1d(x.flatten(2), 4, 3, 2, 2, True),
    "max pool 3d": lambda x: functional.max_pool3d(x[None], (2, 3, 1), 2, (1, 1, 0))[0],
    "adaptive max pool": lambda x: functional.adaptive_max_pool2d(x, (3, 2)),
    "adaptive max pool 1d": lambda x: functional.adaptive_max_pool1d(x.flatten(2), 5),
    "amax": lambda x: torch.cat(
        [x.amax((-1, 1), keepdim=True).flatten(1), x.amax(2).flatten(1), x.amax()[None, None]], 1
    ),
    "clamp": lambda x: x.clamp(0.7, 0.2) + x.clamp(max=0.4) + x.clip(min=0.3),
    "clamp with tensors": lambda x: torch.clamp(x, UNITS.to(x), torch.full((4, 1), 0.4).to(x)),
    "clamp with inputs": lambda x: torch.clamp(x, x.mT - 0.2, x.flip(-1)) + torch.clamp_max(x, x.flip(1)),
    "larger and smaller": lambda x: (
        torch.maximum(x, x.mT) - torch.minimum(x.flip(1), x) + torch.minimum(x, UNITS.to(x))
    ),
    "hardtanh": lambda x: (
        functional.hardtanh(x, 0.2, 0.5) + functional.relu6(8 * x) + functional.hardsigmoid(8 * x - 4)
    ),
    "leaky relu": lambda x: functional.leaky_relu(x - 0.5, -1.5) + functional.leaky_relu(x - 0.3, 2.5),
    "prelu": lambda x: functional.prelu(x - 0.5, UNITS.to(x)) + functional.prelu(x - 0.3, UNITS[:1].to(x)),
    "elu": lambda x: functional.elu(4 * x - 2) + functional.elu(x - 0.5, 2.5) - functional.elu(2 * x - 1, -0.5),
    "selu": lambda x: functional.selu(4 * x - 2) + functional.celu(3 * x - 2, 0.4) - functional.celu(2 * x - 1, 3.0),
    "softplus": lambda x: functional.softplus(x - 0.5, 8, 3) - functional.softplus(x - 0.3, -2, 0.1),
    "log sigmoid": lambda x: functional.logsigmoid(6 * x - 3),
    "gelu": lambda x: functional.gelu(4 * x - 2) + functional.gelu(3 * x - 2, approximate="tanh"),
    "mish": lambda x: functional.mish(8 * x - 5),
    "hardswish": lambda x: functional.hardswish(9 * x - 5),
    "silu": lambda x: functional.silu(9 * x - 5),
    "softsign": lambda x: functional.softsign(4 * x - 2),
    "pow": lambda x: (x - 1).pow(2) + (x.abs() + 1).pow(-0.5) + (x.abs() + 1) ** 0.5 + (x.abs() + 1).pow(-1),
    "norms": lambda x: torch.cat([x.norm(dim=-2), torch.linalg.vector_norm(x, 2, (2, 3), True).flatten(2)], 2),
    "norm of all that keeps axes": lambda x: torch.linalg.vector_norm(x, keepdim=True),
    "softmax": lambda x: torch.softmax(3 * x, -3, dtype=torch.float64).to(x.dtype),
    "instance norm": lambda x: functional.instance_norm(x, weight=UNITS.to(x), bias=UNITS.to(x), eps=0.1),
    "group norm": lambda x: functional.group_norm(x, 2, UNITS.to(x), None, 0.01),
    "layer norm": lambda x: functional.layer_norm(x, (4, 4), None, torch.eye(4).to(x), 0.01),
    "attention": lambda x: attention(x.mT, scale=0.3),
    "causal attention": lambda x: attention(x, is_causal=True),
    "attention with a mask": lambda x: masked(x, torch.linspace(-3, 3, 4)),
    "attention with an infinite mask": lambda x: masked(x, LATE),
    "attention with a Boolean mask": lambda x: masked(x, LATE == 0),
    "attention without a key far from others": far_keys,
    "attention of groups": grouped,
    "attention of a fixed query": lambda x: functional.scaled_dot_product_attention(
        torch.eye(4).to(x)[None], x[:, 0], x[:, 1]
    ),
    "products": lambda x: torch.stack([x[0, 0] @ x[0, 1, 0], x[0, 2, 1] @ x[0, 0], torch.mv(x[0, 0], x[0, 1, 1])], 0)[
        None
    ],
    "dot": lambda x: torch.dot(UNITS.to(x), x[0, 0, 2])[None, None],
    "addmm of products": lambda x: torch.addmm(x[0, 2], x[0, 0], x[0, 1], beta=2, alpha=-0.5)[None],
}


class Inside(nn.Module):
    """A function between a map of the pixels and a ReLU."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first, self.function = nn.Conv2d(4, 4, 1), function
        self.norm = trained(nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.norm(self.first(x)))
        return torch.relu(y.flatten(1) - 0.1)


def inside(function: Function) -> Encoder:
    torch.manual_seed(0)
    # Some functions here take one image only.
    return Encoder(PerImage(Inside(function)).eval(), "settings", Domain(SHAPE)).to("cpu", torch.float64)


def pixels(count: int) -> Tensor:
    return torch.rand(count, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def check_affine(graph: Graph) -> None:
    """Each affine operation's magnitude is its matrix with absolute entries, and its form's transpose is exact."""
    for node in graph.nodes:
        if not isinstance(node.operation, Affine):
            continue
        shapes = [graph.nodes[i].shape for i in node.inputs]
        zeros = [torch.zeros(1, *shape, dtype=graph.dtype) for shape in shapes]
        for which, shape in enumerate(shapes):
            n = torch.Size(shape).numel()
            units = [zero.expand(n, *zero.shape[1:]) for zero in zeros]
            units[which] = torch.eye(n, dtype=graph.dtype).reshape(n, *shape)
            matrix = node.operation.forward(*units) - node.operation.forward(*zeros)
            assert torch.allclose(node.operation.magnitude(*units), matrix.abs(), atol=1e-12), node.name


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS | FUNCTIONS)
def test_every_setting_is_bounded_as_what_it_is(name: str) -> None:
    encoder = inside((MAPS | FUNCTIONS)[name])
    graph, x = trace(encoder), pixels(2)
    codes = encoder.forward(x)
    tolerance = 1e-5 if "precision" in name else 1e-12
    assert torch.allclose(graph(x), codes, rtol=tolerance, atol=tolerance)
    if name in MAPS:
        kinds = [node.name for node in graph.nodes if isinstance(node.operation, Rule)]
        assert kinds == ["relu"], "affine in the input"
        check_affine(graph)
    specifications = torch.randn(2, 3, codes.shape[1], dtype=torch.float64)
    ball = Linf(0.1)
    seen = torch.stack(
        [(encoder.forward(points(encoder, x[i : i + 1], ball, 60)) @ specifications[i].T).amin(0) for i in range(2)]
    )
    methods: list[Method] = [Interval(), Crown()]
    for method in methods:
        bound = lower_bound(encoder, x, specifications, ball, method)
        assert bound.isfinite().all(), method
        assert (bound <= seen + 1e-9 + tolerance).all(), method


REFUSED: dict[str, tuple[Function, str]] = {
    "type_as an integer": (lambda x: (4 * x).type_as(torch.ones(1, dtype=torch.int32)).to(x), "cast to torch.int32"),
    "int": (lambda x: (4 * x).int().to(x), "cast to torch.int32"),
    "half": (lambda x: x.half().to(x), "cast to torch.float16"),
    "sum in bfloat16": (lambda x: x.sum(1, dtype=torch.bfloat16).to(x), "cast to torch.bfloat16"),
    "mean in float16": (lambda x: x.mean((1, 2), dtype=torch.float16).to(x), "cast to torch.float16"),
    "softmax in bfloat16": (lambda x: x.softmax(1, dtype=torch.bfloat16).to(x), "cast to torch.bfloat16"),
    "a negative divisor": (lambda x: functional.avg_pool2d(x, 2, divisor_override=-3), "negative factor"),
    "rounding": (lambda x: torch.div(x, 0.3, rounding_mode="floor"), "rounding_mode='floor'"),
    "places of maxima": (
        lambda x: functional.max_pool2d(x, 2, return_indices=True)[1].to(x),
        "indices or statistics of max_pool2d",
    ),
    "a mask that leaves nothing": (lambda x: masked(x, torch.full((4, 4), -torch.inf)), "query without a key"),
    "a mask that depends": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, x),
        "'scaled_dot_product_attention'",
    ),
    "weights that depend": (lambda x: functional.layer_norm(x, [4], x[0, 0, 0]), "'layer_norm'"),
    "a falling exponential": (lambda x: functional.celu(x, -1.0), "celu"),
    "one number for all images": (lambda x: x / x.norm(), "a single number"),
    "bicubic": (lambda x: functional.interpolate(x, (3, 3), mode="bicubic"), "'upsample_bicubic2d'"),
    "statistics of the batch": (lambda x: functional.batch_norm(x, None, None, training=True), "'_native_batch_norm"),
    "dropout": (lambda x: functional.dropout(x, 0.5, training=True), "dropout"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bounded_is_refused_in_a_sentence(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(HoldfastError, match=said):
        trace(Encoder(nn.Sequential(Apply(function), nn.Flatten()), "settings", Domain(SHAPE)))


NORMS = '''"""The norm of each specification times that of the largest code: what codes of that length cannot fall below."""

from dataclasses import dataclass
from typing import final

from holdfast.bounds.methods.base import Method
from holdfast.bounds.methods.interval import intermediate_bounds


@final
@dataclass(frozen=True)
class Norms(Method):
    """The Cauchy-Schwarz inequality on interval bounds."""

    share: float = 1.0
    name = "norms"

    def __call__(self, graph, region, specifications):
        lower, upper = intermediate_bounds(graph, region)[-1]
        largest = lower.abs().maximum(upper.abs()).flatten(1).norm(dim=1)
        return -specifications.norm(dim=2) * largest[:, None] / self.share
'''


def test_another_package_adds_a_method(tmp_path: Path) -> None:
    encoder, x, rows = shared("linear"), torch.rand(1, *NETWORK_SHAPE), torch.randn(1, 2, 3, dtype=torch.float64)
    points = {"holdfast.bounds.methods": {"norms": "their_bounds.norms:Norms"}}
    with installed(tmp_path, "their_bounds", {"norms": NORMS}, points):
        method = read_method("norms:share=0.5")
        assert str(method) == "norms:share=0.5"
        assert everything()["bounds"]["norms"] == "The Cauchy-Schwarz inequality on interval bounds."
        bound = lower_bound(encoder, x, rows, Linf(0.01), "norms")
        assert bool((bound < lower_bound(encoder, x, rows, Linf(0.01))).all())
        assert torch.allclose(lower_bound(encoder, x, rows, Linf(0.01), method), 2 * bound)
    with pytest.raises(HoldfastError, match=r"method.*'norms'"):
        read_method("norms")
