"""Size check of an encoder before bounds: it needs one image, while tracing a large encoder takes a minute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from holdfast.bounds.network.tracing import precision_of
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError

ENTRYWISE = frozenset(
    (
        *(
            "relu",
            "leaky_relu",
            "_prelu_kernel",
            "elu",
            "celu",
            "selu",
            "hardtanh",
            "hardsigmoid",
            "hardswish",
            "relu6",
        ),
        *("sigmoid", "log_sigmoid_forward", "tanh", "silu", "mish", "gelu", "softplus", "exp", "abs"),
        *("clamp", "clamp_min", "clamp_max", "maximum", "minimum"),
        *("_softmax", "native_layer_norm", "native_group_norm"),
    )
)
"""Operations each of whose outputs takes at least one nonlinear function to bound."""


class _Counter(TorchDispatchMode):
    """Counts the outputs of ``ENTRYWISE`` operations that depend on an image."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, more than a second for every command

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self.count, self.depending = 0, WeakIdKeyDictionary()
        self.depending[image] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) and leaf in self.depending for leaf in tree_leaves((args, kwargs))):
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            for output in outputs:
                self.depending[output] = True
            if outputs and func._schema.name.removeprefix("aten::").removesuffix("_") in ENTRYWISE:
                self.count += outputs[0].numel()
        return result


def nonlinear_entries(encoder: Encoder) -> int:
    """Return a lower bound of an encoder's nonlinear entries, from one call on one image; 0 if the call fails.

    Example:
        >>> from torch import nn
        >>> from holdfast.core.encoder import Domain
        >>> layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 7), nn.ReLU6(), nn.Linear(7, 2))
        >>> nonlinear_entries(Encoder(layers, "tiny", Domain((1, 2, 2))))
        7
    """
    weights = (*encoder.module.parameters(), *encoder.module.buffers())
    device = next((weight.device for weight in weights), torch.device("cpu"))
    low, high = max(encoder.domain.low, -1.0), min(encoder.domain.high, 1.0)
    image = torch.full((1, *encoder.domain.shape), (low + high) / 2, dtype=precision_of(encoder), device=device)
    counter = _Counter(image)
    with suppress(Exception), torch.no_grad(), counter:  # tracing says in words what fails
        encoder.forward(image)
    return counter.count


def check_size(name: str, entries: int, largest: int, bound: str = "") -> None:
    """Raise if an encoder has more nonlinear entries than the ``largest`` number that is bounded."""
    if entries > largest:
        raise HoldfastError(
            f"{name} has {bound}{entries:,} nonlinear entries, more than the {largest:,} that are bounded in "
            "reasonable time; certify it by noisy copies (holdfast certify --method smoothing), judge it by attacks alone, "
            "or raise the setting neurons to try"
        )
