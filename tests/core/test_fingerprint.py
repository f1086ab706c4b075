"""Encoders that compute different codes have different fingerprints; the same encoder always has the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.core.fingerprint import fingerprint


class Keeps(nn.Module):
    """A hand-written module that keeps ``kept`` as a plain attribute."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        return x


class Scaler:
    """Multiplies the codes of a module: what a forward hook often is."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scale(self, module: nn.Module, given: Any, codes: Tensor) -> Tensor:
        return self.factor * codes


class Slotted:
    __slots__ = ("value",)


def twice(factor: float) -> Any:
    return lambda x: factor * x


PAIRS = [
    (1, 2),
    ("mean", "max"),
    (None, 0),
    (torch.tanh, torch.relu),
    (torch.ones(2), torch.zeros(2)),
    (np.ones(2), np.zeros(2)),
    ({"a": 1}, {"a": 2}),
    ({"a": [1, {"b": (2,)}]}, {"a": [1, {"b": (3,)}]}),
    (torch.float32, torch.float64),
    (twice(2.0), twice(3.0)),
    (lambda x: x + 1, lambda x: x + 2),
    (partial(torch.clamp, min=0), partial(torch.clamp, min=1)),
    ([nn.Linear(2, 2)], [nn.Linear(2, 2)]),
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda kept: type(kept).__name__)
def test_what_a_module_keeps_tells_it_apart(left: Any, right: Any) -> None:
    assert fingerprint(Keeps(left)) != fingerprint(Keeps(right))
    assert fingerprint(Keeps(left)) == fingerprint(Keeps(left))


def test_hooks_tell_modules_apart() -> None:
    def hooked(hook: Any) -> nn.Module:
        module = nn.Sequential(nn.Flatten())
        module[0].register_forward_hook(hook)
        return module

    plain, double, triple = nn.Sequential(nn.Flatten()), hooked(Scaler(2.0).scale), hooked(Scaler(3.0).scale)
    assert not torch.equal(double(torch.ones(1, 2)), triple(torch.ones(1, 2))), "vacuous: the hooks do not differ"
    assert len({fingerprint(module) for module in (plain, double, triple)}) == 3
    assert fingerprint(double) == fingerprint(hooked(Scaler(2.0).scale))
    before, after = nn.Flatten(), nn.Flatten()
    before.register_forward_pre_hook(lambda module, given: None)
    after.register_full_backward_hook(lambda module, given, gradient: None)
    assert len({fingerprint(module) for module in (nn.Flatten(), before, after)}) == 3


def test_buffers_that_are_not_saved_count() -> None:
    def buffered(value: float) -> nn.Module:
        module = Keeps(None)
        module.register_buffer("mean", torch.tensor(value), persistent=False)
        return module

    assert not buffered(1.0).state_dict(), "vacuous: the buffer is saved"
    assert fingerprint(buffered(1.0)) != fingerprint(buffered(2.0))
    assert fingerprint(buffered(1.0)) == fingerprint(buffered(1.0))


def test_code_tells_classes_of_one_name_apart() -> None:
    def built(sign: int) -> nn.Module:
        if sign > 0:

            class Same(nn.Module):
                def forward(self, x: Tensor) -> Tensor:
                    return x

        else:

            class Same(nn.Module):  # type: ignore[no-redef]
                def forward(self, x: Tensor) -> Tensor:
                    return -x

        return Same()

    assert fingerprint(built(1)) != fingerprint(built(-1))


def test_what_cannot_be_described_is_never_confused() -> None:
    module = Keeps(Slotted())
    assert fingerprint(module) != fingerprint(module)


def test_modules_may_hold_their_holders() -> None:
    module = Keeps(None)
    module.kept = [module, {"self": module}]
    other = Keeps(None)
    other.kept = [other, {"self": other}]
    assert fingerprint(module) == fingerprint(other)


def test_context_counts() -> None:
    assert fingerprint(nn.Flatten(), 1) != fingerprint(nn.Flatten(), 2)


def test_quantised_layers_are_known_by_their_packed_weights() -> None:
    from tests.commands.parity_pairs import network, quantised

    first, again, other = (fingerprint(quantised(network(seed))) for seed in (0, 0, 1))
    assert first == again
    assert first != other
