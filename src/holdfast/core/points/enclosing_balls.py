"""The smallest ball that encloses given points, for many sets of points at once.

Its centre is a mean of the points under weights ``w`` that maximise ``sum_i w_i |p_i|^2 - |sum_i w_i p_i|^2``, whose root
is a lower bound of the radius whatever the weights are (Badoiu and Clarkson 2003, https://dl.acm.org/doi/10.5555/644108.644240).
Steps go towards the farthest point or away from the nearest one that has weight, which converges linearly (Yildirim 2008,
https://doi.org/10.1137/070690419, algorithm 4.1). So every answer is a ball that does enclose its points, together with a
radius below which no ball does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError

MOST_STEPS = 100_000


@dataclass(frozen=True)
class EnclosingBalls:
    """A ball around each set of points."""

    centres: Float[Tensor, "b d"]
    radii: Float[Tensor, "b"]
    """The ball of this radius holds every point of its set."""
    least: Float[Tensor, "b"]
    """No ball that does has a smaller radius than this."""


def enclosing_balls(
    points: Float[Tensor, "b n d"], tolerance: float = 1e-3, most_steps: int = MOST_STEPS
) -> EnclosingBalls:
    """Return balls around each set of ``points``, at most ``1 + tolerance`` times as wide as the smallest ones.

    In float64. Where ``most_steps`` are not enough, the balls still enclose, and ``least`` tells how far from smallest.

    Raises:
        HoldfastError: there are no points, or some are not finite.

    Example:
        >>> found = enclosing_balls(torch.tensor([[[0.0, 0.0], [2.0, 0.0], [1.0, 0.5]]]))
        >>> found.centres, found.radii
        (tensor([[1., 0.]], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    if not points.shape[1] or not bool(points.isfinite().all()):
        raise HoldfastError("an enclosing ball needs at least one point, and finite ones only; leave the others out")
    origin = points[:, :1].double()
    points = points.double() - origin  # so that squares do not cancel where codes have an offset
    squares, each = points.square().sum(2), torch.arange(len(points), device=points.device)
    weights = _opposite(points)
    centres = _means(weights, points)
    for _ in range(most_steps):
        distances = (points - centres[:, None]).square().sum(2)
        most, farthest = distances.max(1)
        fewest, nearest = distances.masked_fill(weights <= 0, torch.inf).min(1)
        level = (weights * squares).sum(1) - centres.square().sum(1)
        close = most <= level * (1 + tolerance) ** 2
        if bool(close.all()):
            break
        gain, loss = most - level, level - fewest
        away = loss > gain
        chosen = torch.where(away, nearest, farthest)
        share = weights[each, chosen]
        # Exact line search along the line through the point; away from it, until its weight is spent.
        step = torch.where(away, -(loss / (2 * fewest)).minimum(share / (1 - share)), gain / (2 * most))
        # Those that are close enough stay where they are, so that no set depends on which others share its batch.
        step = torch.where((level < most) & ~close, step.nan_to_num(), 0.0)
        weights = weights * (1 - step)[:, None]
        weights[each, chosen] = (weights[each, chosen] + step).clamp_min(0)
        centres = centres + step[:, None] * (points[each, chosen] - centres)
    radii = (points - centres[:, None]).square().sum(2).amax(1).sqrt()
    level = (weights * squares).sum(1) - centres.square().sum(1)
    return EnclosingBalls(centres + origin[:, 0], radii, level.clamp_min(0).sqrt().minimum(radii))


def _opposite(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """Return weights of a half for two points of each set that lie far apart: the farthest from the first, and from that."""
    each = torch.arange(len(points), device=points.device)
    first = points.square().sum(2).argmax(1)
    other = (points - points[each, first][:, None]).square().sum(2).argmax(1)
    weights = torch.zeros_like(points[..., 0])
    weights[each, first] += 0.5
    weights[each, other] += 0.5
    return weights


def _means(weights: Float[Tensor, "b n"], points: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
    return (weights[:, None] @ points)[:, 0]
