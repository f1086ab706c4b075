"""How far two rankings of encoders agree, and how sure that is: pure functions of numbers.

Encoders are the last axis everywhere (``e``), and only pairs of one data set are compared. Kendall's tau-b is

    tau = sum_ij w_ij s_ij t_ij / sqrt(sum_ij w_ij s_ij^2 sum_ij w_ij t_ij^2), s_ij = sign(x_i - x_j), t_ij = sign(y_i - y_j)

with ``w_ij = w_i w_j`` for encoders drawn ``w_i`` times, so that an encoder is never compared with its own copy. What is
left of it beside a third ranking is Kendall's partial tau (Kendall 1942, https://doi.org/10.1093/biomet/32.3-4.277).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, sqrt

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import norm, rankdata

Values = Float[np.ndarray, "*b e"]
Labels = Int[np.ndarray, "e"]
LEVEL = 0.05


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


def partial_tau(xy: Values, xz: Values, yz: Values) -> Values:
    """Return what is left of the agreement of x and y beside z, from the agreements of the three pairs.

    Where z decides x or y, nothing is left to compare: nan. Where different encoders lack values, it is cut at -1 and 1.

    Example:
        >>> print(partial_tau(np.array(0.5), np.array(0.0), np.array(0.3)).round(3))
        0.524
    """
    room = (1 - np.square(xz)) * (1 - np.square(yz))
    with np.errstate(invalid="ignore", divide="ignore"):
        left = (xy - xz * yz) / np.sqrt(np.maximum(room, 1e-12))
    return np.asarray(np.where(room > 1e-12, np.clip(left, -1, 1), nan))


def beside(x: Values, y: Values, given: Sequence[Values], group: Labels, drawn: Values | None = None) -> Values:
    """Return the partial tau of x and y given up to two other rankings.

    The second is taken out of agreements from which the first has been taken out.
    """
    first = [tau(a, b, group, drawn) for a, b in ((x, y), (x, given[0]), (y, given[0]))]
    without = partial_tau(first[0], first[1], first[2])
    if len(given) == 1:
        return without
    between = tau(given[0], given[1], group, drawn)
    of_x = partial_tau(tau(x, given[1], group, drawn), first[1], between)
    of_y = partial_tau(tau(y, given[1], group, drawn), first[2], between)
    return partial_tau(without, of_x, of_y)


def draw_families(family: Labels, count: int, seed: int) -> Float[np.ndarray, "b e"]:
    """Return how often each encoder is drawn: families with replacement, and in each one that is drawn its members."""
    random, kinds = np.random.default_rng(seed), np.unique(family)
    drawn = np.zeros((count, len(family)))
    for row in drawn:
        for kind in random.choice(kinds, len(kinds)):
            members = np.flatnonzero(family == kind)
            np.add.at(row, random.choice(members, len(members)), 1)
    return drawn


def resampled(
    series: Sequence[Float[np.ndarray, "s n"] | None],
    values: Float[np.ndarray, "e"],
    reduce: Callable[[Float[np.ndarray, "*b n"]], Float[np.ndarray, "*b"]],
    count: int,
    seed: int,
) -> Float[np.ndarray, "b e"]:
    """Return the numbers of all encoders on images drawn with replacement, the same ones for all encoders.

    ``series`` has a row for each seed of an encoder, over which the number is averaged. An encoder whose number is not made
    of images keeps its number.
    """
    share = np.random.default_rng(seed).random(
        (count, max((one.shape[-1] for one in series if one is not None), default=0))
    )
    found = np.tile(values, (count, 1))
    for place, one in enumerate(series):
        if one is not None:
            size = one.shape[-1]
            found[:, place] = reduce(one[:, (share[:, :size] * size).astype(int)]).mean(axis=0)
    return found


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
    for _ in range(count):
        order = np.argsort(random.random(max(one.shape[-1] for one in known)))
        orders = [order[order < one.shape[-1]] for one in known]
        first, second = (
            np.array(
                [reduce(one[:, np.array_split(mine, 2)[k]]).mean() for one, mine in zip(known, orders, strict=True)]
            )
            for k in (0, 1)
        )
        found.append(float(tau(first, second, group)))
    return float(np.mean(found))


def interval(replicates: Float[np.ndarray, "b"]) -> tuple[float, float]:
    """Return the central 95% of bootstrap replicates, nan where there are none."""
    known = replicates[np.isfinite(replicates)]
    if not len(known):
        return nan, nan
    low, high = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def permutation_p(
    x: Float[np.ndarray, "e"], y: Float[np.ndarray, "e"], group: Labels, block: Labels, count: int, seed: int
) -> float:
    """Return how often numbers shuffled within blocks are as far from their mean agreement as those seen (two-sided)."""
    random = np.random.default_rng(seed)
    shuffled = np.tile(x, (count, 1))
    for one in np.unique(block):
        mine = np.flatnonzero(block == one)
        shuffled[:, mine] = random.permuted(shuffled[:, mine], axis=1)
    found, seen = tau(shuffled, y, group), float(tau(x, y, group))
    middle = np.nanmean(found)
    return float((1 + (np.abs(found - middle) >= abs(seen - middle) - 1e-12).sum()) / (1 + count))


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
    """Return the tau that independent encoders exceed by chance once in 20 studies of so many tests (Bonferroni).

    Example:
        >>> groups = np.repeat([0, 1], [26, 10])
        >>> round(detectable(groups, 1), 2), round(detectable(groups, 13), 2)
        (0.25, 0.37)
    """
    sizes = np.bincount(group).astype(float)
    variance = (sizes * (sizes - 1) * (2 * sizes + 5)).sum() / 18
    pairs = (sizes * (sizes - 1)).sum() / 2
    return float(norm.ppf(1 - LEVEL / 2 / tests) * sqrt(variance) / pairs) if pairs else nan


def regret(
    x: Float[np.ndarray, "e"], y: Float[np.ndarray, "e"], group: Labels, chosen: Bool[np.ndarray, "e"] | None = None
) -> float:
    """Return how much of ``y`` is lost by taking the encoder with the largest ``x`` instead of ``y``, mean over groups.

    Of several with the largest x, each is taken alike; a constant x is a choice at random. Only ``chosen`` are offered.
    """
    offered = np.isfinite(x) & np.isfinite(y) & (True if chosen is None else chosen)
    lost = []
    for one in np.unique(group[offered]):
        mine = offered & (group == one)
        best = mine & (x == x[mine].max())
        lost.append(float(y[mine].max() - y[best].mean()))
    return float(np.mean(lost)) if lost else nan
