"""Ranks that hold together: at 95% over all comparisons of a scorecard, not each for itself (Holm 1979).

In a scorecard of ten rows and four encoders there are 60 comparisons, and three of them would tell equal encoders apart by
chance. Each difference gets the p-value that its interval implies,

    p = 2 Phi(-z c), c = |value| / |value - the end nearer zero|, z the normal quantile of the interval,

and no less than 2^(1 - n), which is what n samples that differ can say at most. Holm goes through them from the smallest:
encoders are told apart while the k-th of m is at most 0.05 / (m - k + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, sqrt

from holdfast.core.statistics.differences import Difference
from holdfast.report.comparison import Contest

LEVEL = 0.05
NORMAL = 1.959964
"""The normal quantile of an interval at 95%, which those of differences are."""
Case = tuple[str, str, tuple[tuple[str, str], ...]]


def case(contest: Contest) -> Case:
    """Return what tells a contest from the others of a table."""
    return contest.protocol, contest.quantity, tuple(sorted(contest.conditions.items()))


def p_value(gap: Difference) -> float:
    """Return the two-sided p-value that the interval of a difference implies; 1 where it is tied.

    Example:
        >>> round(p_value(Difference(value=0.3, low=0.1, high=0.5, n=50, outcome="a is higher")), 4)
        0.0033
    """
    if gap.outcome == "tied":
        return 1.0
    nearer = abs(gap.value - (gap.low if gap.value > 0 else gap.high))
    implied = erfc(NORMAL * abs(gap.value) / nearer / sqrt(2)) if nearer else 0.0
    return max(implied, 2.0 ** (1 - (gap.n if gap.differing is None else gap.differing)))


def jointly_ranked(contests: Sequence[Contest]) -> dict[Case, dict[str, int]]:
    """Return the ranks of each contest from those differences alone that hold at 95% over all contests together.

    Comparisons with baselines and in contests without ranks decide nothing, and so are not counted.
    """
    compared = [
        (p_value(pair.difference), case(contest), pair)
        for contest in contests
        for pair in contest.pairs
        if pair.a in contest.ranks and pair.b in contest.ranks
    ]
    losers: dict[Case, list[str | None]] = {case(contest): [] for contest in contests}
    for rank, (p, place, pair) in enumerate(sorted(compared, key=lambda item: item[0])):
        if p > LEVEL / (len(compared) - rank):
            break
        losers[place].append(pair.loser)
    return {
        case(contest): {name: 1 + losers[case(contest)].count(name) for name in contest.ranks} for contest in contests
    }
