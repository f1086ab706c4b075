"""Operations that only some images go through, each with a probability of its own draw."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Int
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.transforms.base import ImagePixels


def sometimes(
    pixels: ImagePixels, chosen: Bool[Tensor, "b"], change: Callable[[ImagePixels, Int[Tensor, "k"]], ImagePixels]
) -> ImagePixels:
    """Return images of which those ``chosen`` are changed; ``change`` is given these alone and their rows."""
    rows = chosen.nonzero()[:, 0]
    return pixels.index_copy(0, rows, change(pixels.index_select(0, rows), rows))


def check_probability(p: float, name: str) -> None:
    """Raise unless ``p`` is a probability.

    Raises:
        HoldfastError: ``p`` does not lie in 0..1.
    """
    if not 0 <= p <= 1:
        raise HoldfastError(f"p of {name} is a probability and must lie in 0..1, got {p}")
