"""Encoders that are too large to be bounded are refused after one image, and no other is."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.bounds import certified_pairs
from holdfast.bounds.certified_pairs import traced
from holdfast.bounds.network.size import nonlinear_entries
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.relaxations import Rule
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from tests.bounds.networks import OPERATIONS, SHAPE, shared
from tests.samples import builtin


def exactly(encoder: Encoder) -> int:
    return sum(prod(node.shape) for node in trace(encoder).nodes if isinstance(node.operation, Rule))


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_encoder_is_taken_for_larger_than_it_is(name: str) -> None:
    assert nonlinear_entries(shared(name)) <= exactly(shared(name))


def test_relus_are_counted_one_by_one() -> None:
    assert nonlinear_entries(builtin()) == exactly(builtin()) == 192


def test_what_does_not_depend_on_the_image_is_not_counted() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 72))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x.flatten(1), self.weight.sigmoid()).relu_()

    assert nonlinear_entries(Encoder(Gated(), "gated", Domain(SHAPE))) == 2


def test_what_cannot_be_called_is_left_to_tracing() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    broken = Encoder(Broken(), "broken", Domain(SHAPE))
    assert nonlinear_entries(broken) == 0
    with pytest.raises(HoldfastError, match=r"broken .* fails on 1 images"):
        traced(broken, 10, "cpu")


def test_a_network_too_large_is_refused_before_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: object) -> None:
        raise AssertionError("traced")

    monkeypatch.setattr(certified_pairs, "trace", slow)
    said = r"at least 192 nonlinear entries, more than the 191 .*--method smoothing.*raise the setting neurons"
    with pytest.raises(HoldfastError, match=said):
        traced(builtin(), 191, "cpu")
