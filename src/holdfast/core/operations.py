"""The operations of an encoder, counted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from holdfast.core.encoder import Encoder

_COUNTED: WeakKeyDictionary[Encoder, int] = WeakKeyDictionary()


def operations(encoder: Encoder) -> int:
    """Return the floating-point operations of one image's code, those of products and convolutions alone.

    Counted rather than timed, so that the same encoder always has the same number. What torch does not see counts as 0,
    and so does an encoder that fails: its examination says why.

    Example:
        >>> from torch import nn
        >>> from holdfast.core.encoder import Domain
        >>> operations(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "linear", Domain((1, 8, 8))))
        1280
    """
    if encoder in _COUNTED:
        return _COUNTED[encoder]
    weight = next(encoder.module.parameters(), torch.zeros(()))
    image = torch.full((1, *encoder.domain.shape), encoder.domain.low, device=weight.device, dtype=weight.dtype)
    counted = _Counting()
    with torch.no_grad(), counted, suppress(Exception):
        encoder.module(image)
    _COUNTED[encoder] = counted.operations
    return counted.operations


class _Counting(TorchDispatchMode):
    """Counts while it is entered; torch's own counter decomposes what it does not know, which takes seconds."""

    operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, more than a second for every command

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if known := flop_registry.get(func.overloadpacket):
            self.operations += known(*args, **(kwargs or {}), out_val=out)
        return out
