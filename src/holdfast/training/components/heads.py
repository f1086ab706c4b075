"""Small networks between codes and losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import cos, pi

import torch
from torch import nn

from holdfast.core.copies import copied


def mlp(widths: Sequence[int], norm: bool = False, last_norm: bool = False, bias: bool = True) -> nn.Sequential:
    """Return linear layers from each width to the next with ReLU between, and batch norm before it if asked.

    ``last_norm`` adds one without weights after the last layer. ``bias`` is that of the last layer; a layer that batch
    norm follows needs none.

    Example:
        >>> mlp((4, 8, 2))
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """
    layers: list[nn.Module] = []
    for place in range(len(widths) - 1):
        last = place == len(widths) - 2
        normed = last_norm if last else norm
        layers.append(nn.Linear(widths[place], widths[place + 1], bias=(bias and not normed) if last else not normed))
        layers += [nn.BatchNorm1d(widths[place + 1], affine=not last)] if normed else []
        layers += [] if last else [nn.ReLU()]
    return nn.Sequential(*layers)


def frozen_copy(module: nn.Module) -> nn.Module:
    """Return a copy that is not trained: a momentum encoder, or a teacher that stays as it is."""
    return copied(module).requires_grad_(False)


@torch.no_grad()
def follow(copies: Iterable[nn.Parameter], originals: Iterable[nn.Parameter], momentum: float) -> None:
    """Move each copy to ``momentum * copy + (1 - momentum) * original``.

    Parameters alone: the copy's batch norms keep the running statistics of what they saw themselves.
    """
    for copy, original in zip(copies, originals, strict=True):
        copy.lerp_(original, 1 - momentum)


def rising(start: float, progress: float) -> float:
    """Return a momentum that rises from ``start`` to 1 along half a cosine (BYOL, MoCo v3, DINO).

    Example:
        >>> [round(rising(0.99, progress), 4) for progress in (0.0, 0.5, 1.0)]
        [0.99, 0.995, 1.0]
    """
    return 1 - (1 - start) * (cos(pi * progress) + 1) / 2
