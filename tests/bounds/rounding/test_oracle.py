"""Executions in every order, rounded operation by operation, beside codes in rational numbers."""

from __future__ import annotations

import gc
import random
import weakref
from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import Alpha, Branch, Crown, Exact, Interval, Method, SdpCrown, lower_bound
from holdfast.bounds.rounding.executed import ExecutedEncoder, executed_encoder
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from tests.marks import rest_slow

METHODS: list[Method] = [
    *(Interval(), Crown(), Crown(joint=False), Alpha(3, 2), SdpCrown(3, 2)),
    *(Branch(seconds=0.3), Exact(seconds=2.0)),
]
WIDTHS = (5, 9, 7, 3)
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def module(seed: int, scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in pairwise(WIDTHS):
        linear = nn.Linear(before, after)
        nn.init.normal_(linear.bias, std=scale)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@cache
def executed(
    seed: int, dtype: torch.dtype, scale: float = 1.0, sums: torch.dtype | None = torch.float32
) -> ExecutedEncoder:
    return executed_encoder(Encoder(module(seed, scale), "tiny", Domain((WIDTHS[0],))), dtype, "cpu", sums)


def layers_of(encoder: Encoder) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight, layer.bias) for layer in encoder.module.children() if isinstance(layer, nn.Linear)]


def exact_code(encoder: Encoder, x: Tensor) -> list[Fraction]:
    """The code in rational numbers."""
    values = [Fraction(value) for value in x.double().tolist()]
    layers = layers_of(encoder)
    for k, (weight, bias) in enumerate(layers):
        sums = [
            sum((Fraction(w) * v for w, v in zip(line, values, strict=True)), Fraction(b))
            for line, b in zip(weight.double().tolist(), bias.double().tolist(), strict=True)
        ]
        values = [max(value, Fraction(0)) for value in sums] if k + 1 < len(layers) else sums
    return values


def some_code(encoder: Encoder, x: Tensor, sums: torch.dtype, draw: random.Random) -> Tensor:
    """What some machine computes: sums in the type ``sums`` in a random order, by pairs or one by one, fused or not."""
    values, dtype = x.clone(), x.dtype
    layers = layers_of(encoder)
    for k, (weight, bias) in enumerate(layers):
        results = []
        for line, b in zip(weight, bias, strict=True):
            order = draw.sample(range(len(line)), len(line))
            terms = [(line[i].to(sums), values[i].to(sums)) for i in order]
            first = draw.random() < 0.5  # the bias is the first term, or added to the rounded sum of the others
            total = b.to(sums) if first else torch.zeros((), dtype=sums)
            for w, v in terms:
                # Fused: the product is not rounded, which float64 and a last rounding stand for.
                fused = draw.random() < 0.5
                total = (total.double() + w.double() * v.double()).to(sums) if fused else total + w * v
            result = total.to(dtype)
            results.append(result if first else (result.to(sums) + b.to(sums)).to(dtype))
        values = torch.stack(results)
        values = values.relu() if k + 1 < len(layers) else values
    return values.double()


@pytest.mark.parametrize("dtype", rest_slow(TYPES), ids=str)
@pytest.mark.parametrize("sums", rest_slow([torch.float32, None]), ids=str)
def test_every_execution_lies_within_the_bounds_of_the_code(dtype: torch.dtype, sums: torch.dtype | None) -> None:
    draw, farthest = random.Random(0), 0.0
    for seed in range(4):
        encoder = executed(seed, dtype, 10.0**seed, sums)
        x = torch.rand(1, WIDTHS[0], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        box = encoder.codes(x)
        converted = x.to(dtype)[0]
        middle = torch.tensor([float(value) for value in exact_code(encoder.encoder, converted)], dtype=torch.float64)
        for _ in range(40):
            code = some_code(encoder.encoder, converted, sums or dtype, draw)
            assert ((box.lower[0] <= code) & (code <= box.upper[0])).all()
            farthest = max(farthest, float(((code - middle).abs() / (box.upper[0] - middle)).max()))
    assert 0.02 < farthest <= 1, "vacuous: executions are exact, or the bounds are far too wide"


@pytest.mark.parametrize("method", rest_slow(METHODS, fast=2), ids=str)
@pytest.mark.parametrize("dtype", rest_slow([torch.bfloat16, torch.float32, torch.float16]), ids=str)
def test_no_execution_of_any_point_lies_below_a_bound(method: Method, dtype: torch.dtype) -> None:
    draw = random.Random(1)
    for seed in range(2):
        encoder = executed(seed, dtype)
        x = torch.rand(1, WIDTHS[0], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        rows = torch.randn(1, 2, WIDTHS[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        bound = lower_bound(encoder.encoder, x, rows, Linf(0.05), method, "executed")[0]
        assert bound.isfinite().all()
        noise = torch.rand(60, WIDTHS[0], dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        noise[::2] = noise[::2].sign()
        for point in (x + 0.05 * noise).clamp(0, 1):
            code = some_code(encoder.encoder, point.to(dtype), torch.float32, draw)
            assert (rows[0] @ code >= bound).all()


@cache
def line(seed: int) -> tuple[Encoder, nn.Linear, Tensor]:
    """A network of one layer, that layer, and an image."""
    torch.manual_seed(seed)
    linear = nn.Linear(12, 1).double()
    with torch.no_grad():
        linear.bias.mul_(10.0 ** (seed % 8))
    return Encoder(linear, "linear", Domain((12,), -10.0, 10.0)), linear, torch.rand(1, 12, dtype=torch.float64)


@pytest.mark.parametrize("method", rest_slow(METHODS), ids=str)
def test_bounds_of_linear_networks_never_exceed_the_exact_minimum(method: Method) -> None:
    """In rational numbers; without what is subtracted for rounding, CROWN exceeds it in half of these cases."""
    close = 0
    for seed in range(30 if not hasattr(method, "seconds") else 4):
        encoder, linear, x = line(seed)
        bound = lower_bound(encoder, x, torch.ones(1, 1, 1, dtype=torch.float64), Linf(0.1), method).item()
        radius = Fraction(0.1)
        weights = [Fraction(w) for w in linear.weight[0].tolist()]
        minimum = sum(
            (w * Fraction(v) for w, v in zip(weights, x[0].tolist(), strict=True)), Fraction(linear.bias.item())
        )
        minimum -= radius * sum((abs(w) for w in weights), Fraction(0))
        assert Fraction(bound) <= minimum, seed
        close += float(minimum - Fraction(bound)) < 1e-9 * (1 + abs(float(minimum)))
    assert close or isinstance(method, Exact), "vacuous: bounds are loose"


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_sums_of_few_terms_hold_every_execution(terms: int) -> None:
    """A product and a constant are two roundings already: few terms leave a count of roundings no room to be too small."""
    torch.manual_seed(terms)
    encoder = Encoder(nn.Sequential(nn.Linear(terms, 300)), "few", Domain((terms,)))
    built, draw, farthest = executed_encoder(encoder, torch.float32, "cpu"), random.Random(terms), 0.0
    x = torch.rand(1, terms).double()
    box = built.codes(x)
    middle = torch.tensor([float(v) for v in exact_code(built.encoder, x[0].float())], dtype=torch.float64)
    for _ in range(6):
        code = some_code(built.encoder, x[0].float(), torch.float32, draw)
        assert ((box.lower[0] <= code) & (code <= box.upper[0])).all()
        farthest = max(farthest, float(((code - middle).abs() / (box.upper[0] - middle)).max()))
    assert farthest > 0.2, "vacuous: bounds are far too wide"


@pytest.mark.parametrize("method", [Interval(), Crown()], ids=str)
def test_rounding_of_earlier_layers_counts_where_their_sums_cancel(method: Method) -> None:
    """In rational numbers: the last layer sees small values, and nothing of the large ones that they were made of."""
    close = 0
    for seed in range(12):
        torch.manual_seed(seed)
        first, last = nn.Linear(2, 6).double(), nn.Linear(6, 1).double()
        with torch.no_grad():
            first.weight.copy_(1e6 * torch.randn(6, 1) * torch.tensor([1.0, -1.0]) + torch.rand(6, 2))
        x = torch.full((1, 2), 0.3, dtype=torch.float64) + 0.4 * torch.rand(1, 1, dtype=torch.float64)
        encoder = Encoder(nn.Sequential(first, last), "two layers", Domain((2,)))
        bound = lower_bound(encoder, x, torch.ones(1, 1, 1, dtype=torch.float64), Linf(1e-13), method).item()
        outer = [Fraction(w) for w in last.weight[0].tolist()]
        inner = [[Fraction(w) for w in row] for row in first.weight.tolist()]
        biases = [Fraction(b) for b in first.bias.tolist()]
        coefficients = [sum((o * row[k] for o, row in zip(outer, inner, strict=True)), Fraction(0)) for k in range(2)]
        minimum = sum((o * b for o, b in zip(outer, biases, strict=True)), Fraction(last.bias.item()))
        minimum += sum((c * Fraction(v) for c, v in zip(coefficients, x[0].tolist(), strict=True)), Fraction(0))
        minimum -= Fraction(1e-13) * sum(map(abs, coefficients), Fraction(0))
        assert Fraction(bound) <= minimum, seed
        close += float(minimum - Fraction(bound)) < 1e-3
    assert close, "vacuous: bounds are loose"


@cache
def cancelling(seed: int, scale: float) -> tuple[Encoder, nn.Linear, nn.Linear, Tensor]:
    """Two neurons with biases of ``scale`` whose difference is the code, their layer and the last, and an image."""
    torch.manual_seed(seed)
    first, last = nn.Linear(3, 2).double(), nn.Linear(2, 1).double()
    with torch.no_grad():
        first.bias.fill_(scale)
        last.weight.copy_(torch.tensor([[1.0, -1.0]]))
        x = torch.rand(1, 3, dtype=torch.float64)
        last.bias.copy_(1e-3 - (first.weight[0] - first.weight[1]) @ x[0])
    return Encoder(nn.Sequential(first, nn.ReLU(), last), "cancelling", Domain((3,))), first, last, x


@pytest.mark.parametrize("scale", rest_slow([1e6, 1e2, 1e12]))
@pytest.mark.parametrize("method", [Crown(), Alpha(3, 2), Exact(seconds=2.0)], ids=str)
def test_large_biases_that_cancel_give_no_false_radius(method: Method, scale: float) -> None:
    """Rounding of the bound is as large as the code."""
    from holdfast.bounds import certified_radius

    proved = 0.0
    for seed in range(6):
        encoder, first, last, x = cancelling(seed, scale)
        radius = certified_radius(encoder, x, torch.ones(1, 1, 1, dtype=torch.float64), Linf(0.5), method).item()
        slope = [Fraction(a) - Fraction(b) for a, b in zip(*first.weight.tolist(), strict=True)]
        margin = sum((s * Fraction(v) for s, v in zip(slope, x[0].tolist(), strict=True)), Fraction(last.bias.item()))
        # Both neurons are active: the code is linear, and 0 at the distance margin / |slope|.
        robust = margin / sum((abs(s) for s in slope), Fraction(0))
        assert Fraction(radius) <= max(robust, Fraction(0)), (seed, radius, float(robust))
        proved = max(proved, radius)
    assert (proved > 0) == (scale < 1e12) or isinstance(method, Exact), "vacuous"


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_known_of_an_execution_ends_with_the_encoder(dtype: torch.dtype) -> None:
    encoder = Encoder(module(0), "ends", Domain((WIDTHS[0],)))
    executed_encoder(encoder, dtype, "cpu")
    ended = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert ended() is None
