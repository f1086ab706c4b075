"""How large a network is for bounds, told by one forward pass: tracing a large one takes a minute, to be refused for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.core.encoder import Encoder

ACTIVATIONS = frozenset(
    [
        "relu",
        "leaky_relu",
        "hardtanh",
        "elu",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "hardswish",
        "softplus",
        "_softmax",
        "relu_",
        "leaky_relu_",
        "hardtanh_",
        "elu_",
        "silu_",
        "sigmoid_",
        "tanh_",
        "hardswish_",
    ]
)
"""Operations of torch of which each entry is relaxed at least once."""


@final
class _Count(TorchDispatchMode):
    """Adds up the entries that activations return."""

    entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in ACTIVATIONS and isinstance(result, Tensor):
            self.entries += result.numel()
        return result


def activations(encoder: Encoder) -> int:
    """Return how many entries the activations of ``encoder`` have for one image: no more than bounds would have to relax.

    Example:
        >>> from torch import nn
        >>> from holdfast.core.encoder import Domain
        >>> activations(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()), "tiny", Domain((1, 2, 2))))
        3
    """
    weight = next((part for part in encoder.module.parameters() if part.is_floating_point()), torch.empty(0))
    count = _Count()
    middle = (encoder.domain.low + encoder.domain.high) / 2
    pixels = torch.full((1, *encoder.domain.shape), middle, dtype=weight.dtype, device=weight.device)
    # Whatever a stranger's module raises is said by whoever examines or traces it next.
    with suppress(Exception), torch.no_grad(), count:
        encoder.forward(pixels)
    return count.entries
