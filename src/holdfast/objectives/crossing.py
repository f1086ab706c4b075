"""Cross the boundary between two images: become closer to ``x'`` than to oneself, the event that breakaway counts.

For l2 the event ``d(f(x^), f(x')) < d(f(x^), f(x))`` is linear in the moved code:
``2 (f(x') - f(x)) . f(x^) > |f(x')|^2 - |f(x)|^2``; for cosine, with unit codes ``u``, ``(u(x') - u(x)) . f(x^) > 0``.
Hence the gradient never vanishes at the clean image, and the same linear functions can be bounded by a certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.objectives.base import AttackContext, DivergenceObjective, ObjectiveFunction


@final
@dataclass(frozen=True)
class Crossing(DivergenceObjective):
    """Climb ``d(f(x^), f(x)) - d(f(x^), f(x'))`` for the target ``x'``, in its linear form where there is one."""

    name = "crossing"
    targeted = True

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        anchors, other = context.codes, context.targets
        return lambda codes: margin(self.divergence, codes, anchors, other)


@final
@dataclass(frozen=True)
class Misretrieval(DivergenceObjective):
    """Climb the largest crossing margin over the nearest other images: be retrieved as any of them."""

    name = "misretrieval"
    rivals = "nearest"

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        if context.rivals is None:
            raise HoldfastError("misretrieval needs the codes of rival images (AttackContext.rivals)")
        anchors, rivals = context.codes, context.rivals

        def objective(codes: Codes) -> Tensor:
            return margin(self.divergence, codes[:, None], anchors[:, None], rivals).amax(1)

        return objective


def margin(divergence: Divergence, codes: Tensor, anchors: Tensor, other: Tensor) -> Tensor:
    """Return a value that is positive exactly if ``codes`` are closer to ``other`` than to ``anchors``.

    In units of the clean distance's normal, so that the nearest of several boundaries has the largest margin.
    """
    if divergence.name == "l2":
        normal = other - anchors
        size = torch.linalg.vector_norm(normal, dim=-1).clamp_min(torch.finfo(codes.dtype).tiny)
        return (normal * (codes - (anchors + other) / 2)).sum(-1) / size
    if divergence.name == "cosine":
        unit_anchors, unit_other = (c / torch.linalg.vector_norm(c, dim=-1, keepdim=True) for c in (anchors, other))
        return ((unit_other - unit_anchors) * codes).sum(-1)
    codes, anchors, theirs = (c.expand_as(other).flatten(0, -2) for c in (codes, anchors, other))
    return (divergence(codes, anchors) - divergence(codes, theirs)).reshape(other.shape[:-1])
