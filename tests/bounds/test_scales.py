"""Exact bounds lie below the minimum at every scale of weights and codes; the solver's tolerances are absolute."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import Alpha, Exact, certified_radius, lower_bound
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from tests.marks import rest_slow

GRID = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 201).double()] * 2, indexing="ij"), -1).reshape(-1, 2)
X = torch.tensor([[0.4, 0.6]]).double()


def first(module: nn.Sequential) -> nn.Linear:
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    return layer


def plane(seed: int, *widths: int) -> nn.Sequential:
    """A ReLU network on two pixels."""
    torch.manual_seed(seed)
    parts = [part for a, b in pairwise([2, *widths]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*parts[:-1]).double()


@cache
def deep(seed: int) -> Encoder:
    return Encoder(plane(seed, 8, 8, 1), "t", Domain((2,)))


def around(encoder: Encoder, radius: float) -> Tensor:
    with torch.no_grad():
        return encoder.forward(X + radius * GRID)


@pytest.mark.parametrize("scale", rest_slow([1e-8, 1e6, 1.0, 1e-3, 1e-6]))
@pytest.mark.parametrize("seed", rest_slow(range(3)))
def test_rows_of_any_size(seed: int, scale: float) -> None:
    encoder = deep(seed)
    specifications, codes = torch.full((1, 1, 1), scale, dtype=torch.float64), around(encoder, 0.3)
    exact, alpha = (lower_bound(encoder, X, specifications, Linf(0.3), method).item() for method in (Exact(), Alpha()))
    least, spread = scale * codes.min().item(), scale * (codes.max() - codes.min()).item()
    assert exact <= least + 1e-12 * scale
    assert exact >= least - 0.02 * spread  # the grid's own coarseness
    assert exact >= alpha


@pytest.mark.parametrize("scale", rest_slow([1e10, 1e-8, 1e3, 1e-6]))
@pytest.mark.parametrize("seed", rest_slow(range(3)))
def test_small_layers_before_large_ones(seed: int, scale: float) -> None:
    module = plane(seed, 6, 2)
    last = module[2]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        first(module).weight.mul_(scale)
        first(module).bias.mul_(scale)
        last.weight.div_(scale)
    encoder = Encoder(module, "t", Domain((2,)))
    codes = around(encoder, 0.3)[:, 0]
    specifications = torch.eye(2).double()[None, :1]
    exact, spread = lower_bound(encoder, X, specifications, Linf(0.3), Exact()).item(), codes.max() - codes.min()
    assert codes.min() - 0.02 * spread <= exact <= codes.min() + 1e-12 * spread


@pytest.mark.slow
@pytest.mark.parametrize("scale", rest_slow([1e5, 1.0, 1e3], fast=2))
@pytest.mark.parametrize("seed", rest_slow(range(5, 8)))
def test_tiny_radii(seed: int, scale: float) -> None:
    module = plane(seed, 8, 8, 1)
    with torch.no_grad():
        first(module).weight.mul_(scale)
        first(module).bias.sub_(first(module).weight @ X[0])
    encoder = Encoder(module, "steep", Domain((2,)))
    row = encoder(X).sign()[:, None]
    radius = certified_radius(encoder, X, row, Linf(0.3), Exact()).item()
    assert radius > 0 or scale > 1e4  # there CROWN finds none, and the solver could let pass what is to be proved
    assert (around(encoder, radius * (1 - 1e-9)) * row[0, 0]).min() > 0


@pytest.mark.parametrize("scale", rest_slow([1e5, 1e3]))
@pytest.mark.parametrize("seed", rest_slow(range(3)))
def test_large_weights_that_cancel(seed: int, scale: float) -> None:
    """Pairs of neurons differ by 1 / scale, and the next layer takes scale times their difference."""
    module = plane(seed, 8, 4, 1)
    one, two = module[0], module[2]
    assert isinstance(one, nn.Linear)
    assert isinstance(two, nn.Linear)
    with torch.no_grad():
        one.bias[:4] = 0.05 * one.bias[:4] - one.weight[:4] @ X[0]
        one.weight[4:] = one.weight[:4] + one.weight[4:] / scale
        one.bias[4:] = one.bias[:4] + one.bias[4:] / scale
        two.weight[:, :4] *= scale
        two.weight[:, 4:] = -two.weight[:, :4]
    encoder = Encoder(module, "cancelling", Domain((2,)))
    codes = around(encoder, 0.1)
    exact = lower_bound(encoder, X, torch.ones(1, 1, 1).double(), Linf(0.1), Exact()).item()
    assert codes.min() - 2 * (codes.max() - codes.min()) <= exact <= codes.min()


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.dtype = nn.Linear(2, 2, bias=False).double(), dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.linear((x * 4).to(self.dtype).to(x.dtype) / 4)


CASTS = [torch.int64, torch.float16, torch.int32, torch.uint8, torch.bool, torch.bfloat16]


@pytest.mark.parametrize("dtype", rest_slow(CASTS))
def test_casts_that_round_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(HoldfastError, match="cast"):
        lower_bound(Encoder(Cast(dtype), "q", Domain((2,))), X, torch.ones(1, 1, 2).double(), Linf(0.01))


def test_casts_that_keep_precision_are_bounded() -> None:
    encoder = Encoder(Cast(torch.float64), "q", Domain((2,)))
    bound = lower_bound(encoder, X, torch.ones(1, 1, 2).double(), Linf(0.01)).item()
    assert bound <= around(encoder, 0.01).sum(1).min() <= bound + 1e-6
