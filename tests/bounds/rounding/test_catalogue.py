"""Laws over every operation: it has a rule for its rounding or is refused, and no execution is farther off than the rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holdfast.bounds import lower_bound
from holdfast.bounds.network.network_graph import Graph, Node, Step, Var
from holdfast.bounds.network.operations import OPERATIONS
from holdfast.bounds.network.tracing import CASTS
from holdfast.bounds.relaxations import Box
from holdfast.bounds.rounding.errors import EXACT, ROUNDING, ULPS, UNKNOWN, local_error
from holdfast.bounds.rounding.executed import executed_encoder
from holdfast.bounds.rounding.formats import Format
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.errors import HoldfastError
from tests.bounds.checks import points
from tests.bounds.networks import OPERATIONS as NETWORKS
from tests.bounds.networks import SHAPE, shared
from tests.marks import rest_slow

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
BALLS: list[Ball] = [Linf(0.03), L2(0.3), L1(0.8)]
REFUSED = {
    "attention": "scaled_dot_product_attention",
    "prelu": "linspace",
    "layer norm": "linspace",
    "group norm": "linspace",
}
"""What machines may round in different ways, by the operation that says so."""

NARROW = {"transposed": "conv_transpose2d", "instance norm": "instance_norm"}
"""What kernels of half precision may compute in half precision."""
LOST: tuple[str, ...] = ()


def test_every_operation_has_one_rule_for_its_rounding() -> None:
    kinds = [set(EXACT), set(CASTS), set(ROUNDING), set(UNKNOWN)]
    assert set.union(*kinds) == set(OPERATIONS)
    assert sum(map(len, kinds)) == len(OPERATIONS), "an operation is of two kinds"


FIRST = ("linear", "conv", "max pool", "sigmoid")
"""Sums, shared values, pooling and functions, in each precision; the others say the same in float32 and a half precision."""
CASES = [(name, PRECISIONS[turn % 3]) for turn, name in enumerate(NETWORKS)]
CASES.sort(key=lambda case: case[0] not in FIRST)
CASES += [(name, dtype) for name in FIRST for dtype in PRECISIONS if (name, dtype) not in CASES]
CASES += [
    (name, PRECISIONS[0] if turn % 3 else PRECISIONS[1 + turn % 2])
    for turn, name in enumerate(NETWORKS)
    if name not in FIRST
]


@pytest.mark.parametrize(("name", "dtype"), rest_slow(CASES, fast=len(FIRST)), ids=str)
def test_no_executed_code_lies_outside_its_bounds(name: str, dtype: torch.dtype) -> None:
    encoder = shared(name).to("cpu", dtype)
    if name == "padding" and dtype != torch.float32:
        with pytest.raises(HoldfastError, match="padding computes with numbers of two types"):
            executed_encoder(encoder, dtype, "cpu")
        return
    if name in REFUSED:
        with pytest.raises(HoldfastError, match=f"operation '{REFUSED[name]}'|by '{REFUSED[name]}'"):
            executed_encoder(encoder, dtype, "cpu")
        return
    if name in NARROW and dtype != torch.float32:
        with pytest.raises(HoldfastError, match=rf"operation '{NARROW[name]}' .*half precision"):
            executed_encoder(encoder, dtype, "cpu")
        return
    executed = executed_encoder(encoder, dtype, "cpu")
    torch.manual_seed(0)
    x = torch.rand(1, *SHAPE, dtype=torch.float64).round(decimals=1)
    ball = BALLS[list(NETWORKS).index(name) % len(BALLS)]
    moved = torch.cat([x, points(executed.reference, x, ball, 60)])
    with torch.no_grad():
        codes = executed.forward(moved)
    if name in LOST:
        with pytest.raises(HoldfastError, match="may lose all digits"):
            executed.codes(x)
        return
    box = executed.codes(x)
    assert ((box.lower <= codes[:1]) & (codes[:1] <= box.upper)).all()
    rows = torch.randn(1, 4, codes.shape[1], dtype=torch.float64)
    bound = lower_bound(encoder, x, rows, ball, "crown", "executed")
    real = lower_bound(executed.reference, x, rows, ball)
    assert (bound <= (codes @ rows[0].T).amin(0)).all()
    assert (bound < real + 1e-9).all()


def entries(dtype: torch.dtype) -> Tensor:
    """All numbers of a half precision; of float32 a million of all sizes."""
    if dtype == torch.float32:
        bits = torch.randint(-(2**31), 2**31, (2**19,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
        usual = torch.randn(2**19, generator=torch.Generator().manual_seed(1)) * 8
        return torch.cat([bits.view(torch.float32), usual])
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


FUNCTIONS: dict[str, list[tuple[Callable[[Tensor], Tensor], tuple[float, ...]]]] = {
    "exp": [(torch.exp, ())],
    "sigmoid": [(torch.sigmoid, ())],
    "tanh": [(torch.tanh, ())],
    "log_sigmoid": [(functional.logsigmoid, ())],
    "softplus": [
        (functional.softplus, ()),
        (lambda x: functional.softplus(x, 9), (9,)),
        (lambda x: functional.softplus(x, 0.3, 8), (0.3, 8)),
    ],
    "gelu": [(functional.gelu, ()), (lambda x: functional.gelu(x, approximate="tanh"), ())],
    "silu": [(functional.silu, ())],
    "mish": [(functional.mish, ())],
    "hardswish": [(functional.hardswish, ())],
    "hardsigmoid": [(functional.hardsigmoid, ())],
    "elu": [(functional.elu, ()), (lambda x: functional.elu(x, 0.5), (0.5,))],
    "selu": [(functional.selu, ())],
    "celu": [(functional.celu, ()), (lambda x: functional.celu(x, 0.2), (0.2,))],
    "sqrt": [(torch.sqrt, ())],
    "rsqrt": [(torch.rsqrt, ())],
    "reciprocal": [(torch.reciprocal, ())],
    "square": [(torch.square, ())],
    "pow": [(lambda x: x**2, (2,)), (lambda x: x**-0.5, (-0.5,)), (lambda x: x**0.5, (0.5,)), (lambda x: x**-1, (-1,))],
    "leaky_relu": [(functional.leaky_relu, ()), (lambda x: functional.leaky_relu(x, 0.2), (0.2,))],
    "prelu": [(lambda x: functional.prelu(x, torch.tensor([0.3], dtype=x.dtype)), ())],
}


def test_every_function_is_tried() -> None:
    assert FUNCTIONS.keys() == ULPS.keys()


@pytest.mark.parametrize("dtype", rest_slow(PRECISIONS), ids=str)
@pytest.mark.parametrize("name", rest_slow(FUNCTIONS, fast=5))
def test_functions_are_as_accurate_as_is_assumed(name: str, dtype: torch.dtype) -> None:
    x = entries(dtype)
    x = x[x.isfinite() & ((x.abs() >= torch.finfo(dtype).smallest_normal) | (x == 0))]
    for function, settings in FUNCTIONS[name]:
        # One after another and with gaps, for which torch has other loops.
        executed = torch.stack([function(x), function(torch.stack([x, x], 1)[:, 0])]).double()
        wide = x.double()
        exact = function(wide)
        if name == "prelu":
            exact = torch.where(wide > 0, wide, wide * float(torch.tensor(0.3).to(dtype)))
        kept = exact.isfinite()
        wide, exact, executed = wide[kept][None, None], exact[kept][None, None], executed[:, None, kept]
        var = Var(1, tuple(wide.shape[1:]))
        step = Step(name, name, (Var(0, var.shape), *settings), {}, var, dtype, (dtype,))
        graph = Graph((Node(0, "input", var.shape), Node(1, name, var.shape, (0,))), torch.float64, torch.device("cpu"))
        for sums in {Format(torch.float32), Format(dtype)}:
            allowed = local_error(graph, step, [Box(wide, wide), Box(exact, exact)], sums)
            off = ~((executed - exact).abs() <= allowed)
            where = (
                [float(part.expand(off.shape)[off][0]) for part in (wide, exact, executed, allowed)]
                if off.any()
                else []
            )
            assert not off.any(), (int(off.sum()), where)
            assert (allowed.isfinite()).double().mean() > 0.3, "vacuous"
