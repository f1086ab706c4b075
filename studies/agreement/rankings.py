"""How far two rankings of encoders agree, and how sure that is: pure functions of numbers.

Encoders are the last axis everywhere (``e``), and only pairs of one data set are compared. Kendall's tau-b is

    tau = sum_ij w_ij s_ij t_ij / sqrt(sum_ij w_ij s_ij^2 sum_ij w_ij t_ij^2), s_ij = sign(x_i - x_j), t_ij = sign(y_i - y_j)

with ``w_ij = w_i w_j`` for encoders drawn ``w_i`` times, so that an encoder is never compared with its own copy. What is
left of it beside other rankings is Kendall's partial tau (Kendall 1942, https://doi.org/10.1093/biomet/32.3-4.277).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import nan, sqrt

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import norm, rankdata

Values = Float[np.ndarray, "*b e"]
Labels = Int[np.ndarray, "e"]
LEVEL = 0.05
ROOM = 1e-6
"""Share of a ranking left beside others below which they decide it."""
SURE = 2.576
"""Standard errors of a Monte Carlo estimate on either side that 99 of 100 such estimates keep."""


def tau(x: Values, y: Values, group: Labels, drawn: Values | None = None) -> Float[np.ndarray, "*b"]:
    """Return Kendall's tau-b over pairs within a ``group``, nan where nothing can be compared.

    Example:
        >>> print(tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]), np.zeros(3, int)).round(3))
        0.333
    """
    first, second = np.nonzero(np.triu(group[:, None] == group, 1))
    gaps, others = x[..., first] - x[..., second], y[..., first] - y[..., second]
    known = np.isfinite(gaps) & np.isfinite(others)
    s, t = np.sign(np.where(known, gaps, 0)), np.sign(np.where(known, others, 0))
    weight = known if drawn is None else known * drawn[..., first] * drawn[..., second]
    both, left, right = ((weight * part).sum(-1) for part in (s * t, s * s, t * t))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(both / np.sqrt(left * right))


def spearman(x: Float[np.ndarray, "e"], y: Float[np.ndarray, "e"], group: Labels) -> float:
    """Return the correlation of ranks within each ``group``."""
    known = np.isfinite(x) & np.isfinite(y)
    a, b = (_centred_ranks(one, np.where(known, group, -1)) for one in (x, y))
    a, b = a[known], b[known]
    size = sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else nan


def _centred_ranks(x: Float[np.ndarray, "e"], group: Labels) -> Float[np.ndarray, "e"]:
    ranks = np.zeros(len(x))
    for one in np.unique(group):
        ranks[group == one] = rankdata(x[group == one]) - ((group == one).sum() + 1) / 2
    return ranks


def taus(
    x: Float[np.ndarray, "*b q e"], group: Labels, drawn: Values | None = None, alike: bool = False
) -> Float[np.ndarray, "*b q q"]:
    """Return ``tau`` of every two of ``q`` rankings, in each replicate: two products of matrices in place of q^2 passes.

    If all pairs count ``alike``, as in Kendall's tau-a, nothing makes up for pairs that a ranking cannot tell apart.
    Sums of products of signs and counts are whole numbers below 2^24, which float32 holds exactly.

    Example:
        >>> print(taus(np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]), np.zeros(3, int))[0, 1].round(3))
        0.333
    """
    first, second = np.nonzero(np.triu(group[:, None] == group, 1))
    finite = np.isfinite(x)
    if x.ndim > 2 and (finite == finite[:1]).all():
        finite = finite[:1]  # most lack the same numbers in all replicates
    signs = _signs_of_gaps(x, first, second)
    known = (finite[..., first] & finite[..., second]).astype(np.float32)
    weighted, sized = signs, known if alike else np.abs(signs)
    if drawn is not None:
        weight = (drawn[..., first] * drawn[..., second]).astype(np.float32)[..., None, :]
        weighted, sized = signs * weight, sized * weight
    both = (weighted @ signs.swapaxes(-1, -2)).astype(float)
    # Where every gap is known, the product is a sum.
    alone = (sized.sum(-1, keepdims=True) if finite.all() else sized @ known.swapaxes(-1, -2)).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(both / np.sqrt(alone * alone.swapaxes(-1, -2)))


def _signs_of_gaps(x: Values, first: Int[np.ndarray, "p"], second: Int[np.ndarray, "p"]) -> Float[np.ndarray, "*b p"]:
    """Return the sign of each gap, 0 where a value is not finite: two comparisons are faster than a difference."""
    x = np.where(np.isfinite(x), x, nan)
    left, right = x[..., first], x[..., second]
    return np.subtract(left > right, left < right, dtype=np.float32)


def partial(found: Float[np.ndarray, "*b q q"], x: int, y: int, given: Sequence[int]) -> Float[np.ndarray, "*b"]:
    """Return Kendall's partial tau of rankings ``x`` and ``y`` given others, from the taus of every two.

    As partial correlations are, from the inverse of the matrix. A ranking that is constant explains nothing. Where the
    others decide x or y, nothing is left to compare: nan. Where different encoders lack values, it is cut at -1 and 1.

    Example:
        >>> print(partial(np.array([[1, 0.5, 0.0], [0.5, 1, 0.3], [0.0, 0.3, 1]]), 0, 1, [2]).round(3))
        0.524
    """
    places = [x, y, *given]
    part = found[..., places, :][..., places].copy()
    part[..., 2:, :] = np.nan_to_num(part[..., 2:, :])
    part[..., :, 2:] = np.nan_to_num(part[..., :, 2:])
    part[..., range(len(places)), range(len(places))] = 1.0
    # What is left of x and y once the others are taken out of both (the Schur complement).
    ours, cross, theirs = part[..., :2, :2], part[..., :2, 2:], part[..., 2:, 2:]
    left = ours - cross @ np.linalg.pinv(theirs, hermitian=True) @ cross.swapaxes(-1, -2)
    room = left[..., 0, 0] * left[..., 1, 1]
    decided = (left[..., 0, 0] < ROOM) | (left[..., 1, 1] < ROOM)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(decided, nan, np.clip(left[..., 0, 1] / np.sqrt(np.maximum(room, ROOM**2)), -1, 1)))


def draw_families(family: Labels, count: int, seed: int) -> Float[np.ndarray, "b e"]:
    """Return how often each encoder is drawn: families with replacement, and in each one that is drawn its members."""
    return _draw_families(tuple(family.tolist()), count, seed)


@cache
def _draw_families(family: tuple[int, ...], count: int, seed: int) -> Float[np.ndarray, "b e"]:
    labels = np.array(family)
    random, members = np.random.default_rng(seed), [np.flatnonzero(labels == kind) for kind in np.unique(labels)]
    drawn = np.zeros((count, len(family)))
    sizes = np.array([len(mine) for mine in members])
    starts, order = np.cumsum(sizes) - sizes, np.concatenate(members)
    for row in drawn:
        # As choice draws, without its checks, which take most of the time, and for the members of all kinds at once.
        kinds = random.integers(0, len(members), len(members))
        offered = np.repeat(sizes[kinds], sizes[kinds])
        places = np.repeat(starts[kinds], sizes[kinds]) + random.integers(0, offered)
        row[order] = np.bincount(places, minlength=len(family))
    drawn.flags.writeable = False
    return drawn


def redrawn(sizes: Sequence[int], count: int, seed: int) -> dict[int, Int[np.ndarray, "b n"]]:
    """Return which images are drawn, with replacement, of sets of these sizes: the same ones for all encoders."""
    share = np.random.default_rng(seed).random((count, max(sizes, default=0)))
    return {size: (share[:, :size] * size).astype(np.int32) for size in set(sizes)}


def resampled(
    series: Sequence[Float[np.ndarray, "s n"] | None],
    values: Float[np.ndarray, "e"],
    reduce: Callable[[Float[np.ndarray, "*b n"]], Float[np.ndarray, "*b"]],
    count: int,
    seed: int,
    statistic: str = "",
) -> Float[np.ndarray, "b e"]:
    """Return the numbers of all encoders on images drawn with replacement, the same ones for all encoders.

    ``series`` has a row for each seed of an encoder, over which the number is averaged. An encoder whose number is not made
    of images keeps its number. Where the ``statistic`` that ``reduce`` takes of defined values is their "mean" or "median",
    it is taken from how often each image is drawn instead.
    """
    found = np.tile(values, (count, 1))
    rows = redrawn([one.shape[-1] for one in series if one is not None], count, seed)
    counted = statistic in {"mean", "median"}
    counts = {size: _counts(drawn, size) for size, drawn in rows.items()} if counted else {}
    if statistic == "median":
        counts = {size: np.ascontiguousarray(one.T.astype(np.int16)) for size, one in counts.items()}
    for place, one in enumerate(series):
        if one is None:
            continue
        size = one.shape[-1]
        if statistic == "mean":
            sums, known = counts[size] @ np.nan_to_num(one).T, counts[size] @ np.isfinite(one).T.astype(float)
            with np.errstate(invalid="ignore"):
                found[:, place] = (sums / known).mean(axis=1)
        elif statistic == "median":
            found[:, place] = np.mean([_medians(by_seed, counts[size]) for by_seed in one], axis=0)
        else:
            found[:, place] = np.mean([reduce(by_seed[rows[size]]) for by_seed in one], axis=0)
    return found


def _counts(drawn: Int[np.ndarray, "b n"], size: int) -> Float[np.ndarray, "b n"]:
    places = drawn + np.arange(len(drawn))[:, None] * size
    return np.bincount(places.ravel(), minlength=len(drawn) * size).reshape(len(drawn), size).astype(float)


def _medians(values: Float[np.ndarray, "n"], counts: Int[np.ndarray, "n b"]) -> Float[np.ndarray, "b"]:
    """Return the median of the defined values, each drawn as often as ``counts`` say, nan where none is."""
    order = np.argsort(values)[: (~np.isnan(values)).sum()]
    counts = counts[order]
    total = counts.sum(0, dtype=np.int16)
    passed, low, high = (np.zeros(len(total), np.int16) for _ in range(3))
    for row in counts:
        passed += row
        low += passed <= (total - 1) // 2
        high += passed <= total // 2
    # Past the last value where no image is defined.
    ends = np.append(values[order], nan)
    return np.asarray(np.where(total > 0, ends[low] + ends[high], nan) / 2)


def halves(
    series: Sequence[Float[np.ndarray, "s n"] | None],
    reduce: Callable[[Float[np.ndarray, "*b n"]], Float[np.ndarray, "*b"]],
    group: Labels,
    count: int,
    seed: int,
) -> float:
    """Return the mean tau of a number on one random half of the images with itself on the other half, nan without images."""
    known = [one for one in series if one is not None]
    if len(known) < len(series) or not known:
        return nan
    random, found = np.random.default_rng(seed), []
    places = {shape: [k for k, one in enumerate(known) if one.shape == shape] for shape in {one.shape for one in known}}
    alike = {shape: np.stack([known[k] for k in mine]) for shape, mine in places.items()}
    for _ in range(count):
        order = np.argsort(random.random(max(one.shape[-1] for one in known)))
        both = np.empty((2, len(known)))
        for shape, values in alike.items():
            for half, rows in enumerate(np.array_split(order[order < shape[-1]], 2)):
                both[half, places[shape]] = reduce(values[..., rows]).mean(-1)
        found.append(float(tau(both[0], both[1], group)))
    return float(np.mean(found))


@dataclass(frozen=True)
class Interval:
    """The central 95% of bootstrap replicates; with Monte Carlo error it may begin at ``least`` and end at ``most``."""

    low: float
    high: float
    least: float
    most: float

    @property
    def above(self) -> bool:
        """Return whether it lies above 0 whatever the seed of the bootstrap."""
        return self.least > 0

    @property
    def below(self) -> bool:
        """Return whether it lies below 0 whatever the seed of the bootstrap."""
        return self.most < 0


def interval(replicates: Float[np.ndarray, "b"]) -> Interval:
    """Return the central 95% of bootstrap replicates, nan where there are none.

    The Monte Carlo error of a quantile is that of its rank, a binomial count.

    Example:
        >>> found = interval(np.arange(10_001.0))
        >>> found.low, found.high, round(found.least), round(found.most)
        (250.0, 9750.0, 210, 9790)
    """
    known = replicates[np.isfinite(replicates)]
    if not len(known):
        return Interval(nan, nan, nan, nan)
    tail = LEVEL / 2
    outer = max(0.0, tail - SURE * sqrt(tail * (1 - tail) / len(known)))
    return Interval(*(float(end) for end in np.quantile(known, [tail, 1 - tail, outer, 1 - outer])))


def permutation_p(
    x: Float[np.ndarray, "e"], all_y: Float[np.ndarray, "r e"], group: Labels, block: Labels, count: int, seed: int
) -> list[float]:
    """Return how often numbers shuffled within blocks are as far from their mean agreement as those seen (two-sided).

    A number for each of the rankings ``all_y``.
    """
    random = np.random.default_rng(seed)
    shuffled = np.tile(x, (count, 1))
    for one in np.unique(block):
        mine = np.flatnonzero(block == one)
        shuffled[:, mine] = random.permuted(shuffled[:, mine], axis=1)
    seen, found = tau(x, all_y, group), _tau_with(shuffled, all_y, group)
    gaps = np.abs(found - (middle := np.nanmean(found, axis=0)))
    return [float(p) for p in (1 + (gaps >= np.abs(seen - middle) - 1e-12).sum(0)) / (1 + count)]


def _tau_with(x: Float[np.ndarray, "b e"], all_y: Float[np.ndarray, "r e"], group: Labels) -> Float[np.ndarray, "b r"]:
    """Return ``tau`` of many rankings with a few: a product of matrices in pieces that fit the cache.

    Sums of signs are whole numbers below 2^24, which float32 holds exactly.
    """
    first, second = np.nonzero(np.triu(group[:, None] == group, 1))
    others = (all_y[:, first] - all_y[:, second]).T
    compared = np.isfinite(others)
    t = np.sign(np.where(compared, others, 0)).astype(np.float32)
    compared, told = compared.astype(np.float32), np.abs(t)
    found = []
    for piece in np.array_split(x, max(1, len(x) // 100)):
        s, finite = _signs_of_gaps(piece, first, second), np.isfinite(piece)
        known = finite[:, first] & finite[:, second]
        both, left, right = s @ t, np.abs(s) @ compared, known.astype(np.float32) @ told
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(both.astype(float) / np.sqrt(left.astype(float) * right.astype(float)))
    return np.concatenate(found)


def at_most(p: float, count: int) -> float:
    """Return the p-value of ``count`` shuffles with its Monte Carlo error.

    Example:
        >>> round(at_most(0.02, 9999), 4)
        0.0236
    """
    return min(1.0, p + SURE * sqrt(p * (1 - p) / (1 + count)))


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted so that any false finding among all is as rare as said (Holm 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order, adjusted, largest = np.argsort(p, kind="stable"), np.zeros(len(p)), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = largest
    return [float(one) for one in adjusted]


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the expected share of false ones among the findings (Benjamini and Hochberg 1995).

    Example:
        >>> benjamini_hochberg([0.01, 0.04, 0.03])
        [0.03, 0.04, 0.04]
    """
    order, adjusted, smallest = np.argsort(p, kind="stable")[::-1], np.zeros(len(p)), 1.0
    for rank, place in zip(range(len(p), 0, -1), order, strict=True):
        smallest = min(smallest, len(p) / rank * p[place])
        adjusted[place] = smallest
    return [float(one) for one in adjusted]


def leave_one_out(
    x: Float[np.ndarray, "e"], y: Float[np.ndarray, "e"], group: Labels, family: Labels
) -> tuple[float, float]:
    """Return the smallest and the largest tau once each family in turn is left out."""
    found = [float(tau(x[kept], y[kept], group[kept])) for one in np.unique(family) if (kept := family != one).any()]
    known = [one for one in found if np.isfinite(one)]
    return (min(known), max(known)) if known else (nan, nan)


def detectable(group: Labels, tests: int) -> float:
    """Return the tau that independent encoders exceed by chance once in 20 studies with this many tests (Bonferroni).

    Example:
        >>> groups = np.repeat([0, 1], [26, 10])
        >>> round(detectable(groups, 1), 2), round(detectable(groups, 13), 2)
        (0.25, 0.37)
    """
    sizes = np.bincount(group).astype(float)
    variance = (sizes * (sizes - 1) * (2 * sizes + 5)).sum() / 18
    pairs = (sizes * (sizes - 1)).sum() / 2
    return float(norm.ppf(1 - LEVEL / 2 / tests) * sqrt(variance) / pairs) if pairs else nan


def losses(
    x: Float[np.ndarray, "e"], y: Float[np.ndarray, "e"], group: Labels, offered: Bool[np.ndarray, "*b e"] | None = None
) -> Float[np.ndarray, "*b g"]:
    """Return how much of ``y`` each group loses by taking the encoder with the largest ``x`` instead of ``y``.

    Of several with the largest x, each is taken alike; a constant x is a choice at random. Only ``offered`` encoders with
    both numbers are there to be chosen; nan in a group without any.
    """
    known = np.isfinite(x) & np.isfinite(y) & (True if offered is None else offered)
    found = []
    for one in np.unique(group):
        mine = known & (group == one)
        best = mine & (x == np.where(mine, x, -np.inf).max(-1, keepdims=True))
        top = np.where(mine, y, -np.inf).max(-1)
        with np.errstate(invalid="ignore"):
            taken = (best * np.nan_to_num(y)).sum(-1) / best.sum(-1)
        found.append(np.where(mine.any(-1), top - taken, nan))
    return np.stack(found, axis=-1)
