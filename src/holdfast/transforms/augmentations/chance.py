"""Operations that only some images go through, each with a probability of its own draw."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from holdfast.core.balls import column
from holdfast.core.errors import HoldfastError
from holdfast.transforms.base import ImagePixels

Change = Callable[[ImagePixels, Int[Tensor, "k"]], ImagePixels]
"""From some images and their rows to these images, changed."""


def sometimes(pixels: ImagePixels, chosen: Bool[Tensor, "b"], change: Change) -> ImagePixels:
    """Return images of which those ``chosen`` are changed."""
    # On a GPU it costs more to wait for which are chosen than to change all.
    return (some_changed if pixels.device.type == "cpu" else all_changed)(pixels, chosen, change)


def some_changed(pixels: ImagePixels, chosen: Bool[Tensor, "b"], change: Change) -> ImagePixels:
    """Change those chosen alone."""
    rows = chosen.nonzero()[:, 0]
    return pixels.index_copy(0, rows, change(pixels.index_select(0, rows), rows))


def all_changed(pixels: ImagePixels, chosen: Bool[Tensor, "b"], change: Change) -> ImagePixels:
    """Change all, and take those chosen of them."""
    changed = change(pixels, torch.arange(len(pixels), device=pixels.device))
    return torch.where(column(chosen, pixels), changed, pixels)


def check_probability(p: float, name: str) -> None:
    """Raise unless ``p`` is a probability.

    Raises:
        HoldfastError: ``p`` does not lie in 0..1.
    """
    if not 0 <= p <= 1:
        raise HoldfastError(f"p of {name} is a probability and must lie in 0..1, got {p}")
