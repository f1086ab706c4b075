"""Averages weighted by a softmax, as attention computes them: their exact range over boxes of scores and of values.

Over scores ``l <= s <= u``, ``sum_i v_i softmax_i(s)`` is least at a vertex: each score moves the average towards its own
value, so that values below the least average have their score at ``u``, the others at ``l``. Sorted by value, that leaves
n + 1 thresholds to try (https://arxiv.org/abs/2605.10974). Weights are never negative, so over boxes of values the least
average is that of the least values: together the range is exact, which the box of a sum of products is far from, for it
does not know that weights sum to 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.bounds.relaxations.rules import Box, LinearRelaxation, Rule

FAR = 1000.0
"""Scores that are so much lower than others have no weight in float64."""


def least_averages(
    low: Float[Tensor, "... q k"], high: Float[Tensor, "... q k"], values: Float[Tensor, "... k d"]
) -> Float[Tensor, "... q d"]:
    """Return the least ``softmax(s) @ values`` over all scores ``s`` from ``low`` to ``high``, or a little less.

    Scores of minus infinity take no part. Where a score may be anything, the least value is returned.

    Example:
        >>> box = torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> least_averages(*box, torch.tensor([[0.0], [1.0]]))  # 1 / (1 + e)
        tensor([[0.2689]])
    """
    least = values.amin(-2, keepdim=True)
    ordered, order = (values - least).sort(-2)
    # One weight for each query, key and feature, keys in the order of the feature's values; as logarithms, for scores
    # far below others decide where those are left out.
    shape = torch.broadcast_shapes(low.shape[:-2], values.shape[:-2])
    queries, place = low.shape[-2], order.mT.expand(*shape, *order.mT.shape[-2:])[..., None, :, :]
    place = place.expand(*shape, queries, *place.shape[-2:])
    tiny = torch.finfo(low.dtype).tiny
    heights = (ordered.mT + tiny).log()[..., None, :, :]  # zero has a logarithm without a derivative
    small, large = (
        end.expand(*shape, *end.shape[-2:])[..., :, None, :].expand_as(place).gather(-1, place) for end in (low, high)
    )
    total = torch.logaddexp(_before(large), _after(small))
    ratio = torch.exp(torch.logaddexp(_before(large + heights), _after(small + heights)) - total)
    spread = torch.where(small.isfinite(), small, large).abs().amax((-2, -1)) + large.abs().amax((-2, -1))
    room = 8 * (low.shape[-1] + 8 + spread[..., None]) * torch.finfo(low.dtype).eps
    average = least + ratio.amin(-1) * (1 - room)
    average = average - room * (least.abs() + average.abs()) - 2 * tiny
    return torch.where(average.isfinite() & ratio.isfinite().all(-1), average, least.expand_as(average))


def _before(terms: Float[Tensor, "... k"]) -> Float[Tensor, "... k1"]:
    """Return the logarithms of the sums of the first 0, 1, ... k terms, of which the logarithms are given."""
    return torch.cat([torch.full_like(terms[..., :1], -torch.inf), terms.logcumsumexp(-1)], -1)


def _after(terms: Float[Tensor, "... k"]) -> Float[Tensor, "... k1"]:
    """Return the same of the last k, k - 1, ... 0 terms, added up themselves, since differences of sums lose digits."""
    return _before(terms.flip(-1)).flip(-1)


def averages_box(scores: Box, values: Box, kept: Bool[Tensor, "... q k"] | None = None) -> Box:
    """Return the range of ``softmax(s) @ v`` over boxes of scores and values; ``kept`` are the scores that take part."""
    if kept is not None:
        # Of weight zero beside any other, yet finite, so that gradients are.
        lowest = scores.lower.detach().amin(-1, keepdim=True) - FAR
        scores = Box(*(torch.where(kept, end, lowest) for end in scores))
    return Box(least_averages(*scores, values.lower), -least_averages(*scores, -values.upper))


def average_rule(kept: Bool[Tensor, "... q k"] | None) -> Rule:
    """Return the rule of an average that is there already, and is known to lie in the range that its parts allow.

    Below, the value itself, or the end of the range where that is nearer to the middle of what is known without it.
    """

    def known(average: Box, scores: Box, values: Box) -> Box:
        box = averages_box(scores, values, kept)
        return Box(box.lower.nan_to_num(nan=-torch.inf), box.upper.nan_to_num(nan=torch.inf))

    def interval(average: Box, scores: Box, values: Box) -> Box:
        box = known(average, scores, values)
        # Where products overflow, what scores and values say remains.
        return Box(torch.fmax(average.lower, box.lower), torch.fmin(average.upper, box.upper))

    def relax(average: Box, scores: Box, values: Box) -> LinearRelaxation:
        low, high = interval(average, scores, values)
        below = (low - average.lower) <= (high - low)
        above = (average.upper - high) <= (high - low)
        slopes = [side.to(low.dtype) for side in (below, above)]
        # An average that is not finite stays so, whatever is known of it.
        floor, ceiling = (
            torch.where(side, 0.0, end) + 0.0 * average.lower * average.upper
            for side, end in ((below, low), (above, high))
        )
        return LinearRelaxation((slopes[0],), (slopes[1],), floor, ceiling)

    return Rule(lambda average, *_: average, interval, relax, lambda box: box.lower < box.upper)
