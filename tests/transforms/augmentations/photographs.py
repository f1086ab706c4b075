"""Real photographs to augment: pieces of the two that scikit-learn brings."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def _all() -> Tensor:
    from sklearn.datasets import load_sample_image

    both = [torch.tensor(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    tiles = torch.stack(both).permute(0, 3, 1, 2)[..., :416, :640].unfold(2, 32, 32).unfold(3, 32, 32)
    return tiles.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32).float() / 255


def patches(count: int) -> Tensor:
    """Return so many RGB pieces of 32 x 32 pixels, spread over both photographs."""
    found = _all()
    return found[torch.linspace(0, len(found) - 1, count).long()].clone()
