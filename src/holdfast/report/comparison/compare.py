"""Paired comparison of encoders, and ranks that hold jointly at 95% (Holm 1979)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from itertools import combinations
from math import erfc, isfinite, isnan, sqrt
from typing import Literal, NamedTuple

from holdfast.core.records import Claim, Conditions, Estimate, Record, Result, Series
from holdfast.core.statistics.differences import Difference, paired, unpaired
from holdfast.report.comparison.comparable import Group, baselines, difference, groups, labels, row_key, tabled
from holdfast.report.text import listed, name_of

# Encoders share their images, so the difference of two is known far better than either number: hard images are hard for
# both. Numbers that need all inputs at once, spectra and areas, are compared by their intervals instead. Two encoders are
# *tied* when the interval of the difference contains zero. Baselines are compared, but neither hold a rank nor take one.
# Ranks stand on equal evidence: there are none where an encoder of the table has no number, because it might be the best.
# Where a budget left an encoder with fewer images, it is compared on those that both have.


class Pair(Record):
    """Two encoders on one quantity: ``a - b`` on the images where both are defined."""

    a: str
    b: str
    difference: Difference

    @property
    def loser(self) -> str | None:
        """Return the encoder that the other one is better than; None where they are tied or neither direction is better."""
        return {"a is better": self.b, "b is better": self.a}.get(self.difference.outcome)


class Contest(Record):
    """All encoders on one quantity under one protocol."""

    evaluation: str
    protocol: str
    quantity: str
    conditions: Conditions
    claim: Claim
    better: Literal["lower", "higher", "neither"]
    pairs: tuple[Pair, ...]
    ranks: dict[str, int]
    """1 + how many encoders are significantly better, without baselines; empty where neither direction is better, or
    where not all encoders of the table could be compared."""

    @property
    def best(self) -> tuple[str, ...]:
        """Return the encoders that none beats."""
        return tuple(name for name, rank in self.ranks.items() if rank == 1)

    def beats_all(self, name: str) -> bool:
        """Return whether ``name`` is better than every encoder that has a rank."""
        beaten = {loser for pair in self.pairs if name in (pair.a, pair.b) and (loser := pair.loser) != name}
        return bool(self.ranks) and beaten >= self.ranks.keys()


class Refusal(Record):
    """Encoders that cannot be compared with each other on something, and why."""

    evaluation: str
    encoders: tuple[str, ...]
    quantity: str | None
    conditions: Conditions
    reason: str
    name: str = ""
    """The quantity in print."""
    aim: str = ""
    """Goal of the attack in the conditions, in words."""


class Comparison(Record):
    """Every paired comparison that the results allow, and those that they do not."""

    encoders: tuple[str, ...]
    baselines: tuple[str, ...] = ()
    """Encoders that are baselines."""
    collapsed: tuple[str, ...] = ()
    """Collapsed encoders, which are not compared."""
    contests: tuple[Contest, ...]
    refusals: tuple[Refusal, ...]

    def __repr__(self) -> str:
        names = ", ".join(self.encoders)
        return f"Comparison of {names}: {len(self.contests)} contests, {len(self.refusals)} refusals"

    def contest(self, protocol: str, like: Estimate) -> Contest | None:
        """Return the contest on the quantity of ``like`` under its conditions and this protocol."""
        return self._by_identity.get(_identity(protocol, like))

    @cached_property
    def _by_identity(self) -> dict[tuple[object, ...], Contest]:
        return {_identity(contest.protocol, contest): contest for contest in self.contests}


def _identity(protocol: str, of: Estimate | Contest) -> tuple[object, ...]:
    return protocol, of.quantity, tuple(sorted(of.conditions.items())), of.claim


class _Number(NamedTuple):
    """Estimate with its values per sample and their ids, if it has some to pair."""

    estimate: Estimate
    series: Series | None
    ids: tuple[str, ...]
    groups: tuple[str, ...] = ()


def compare(results: Sequence[Result]) -> Comparison:
    """Return all paired comparisons of the encoders in ``results``, and what could not be compared."""
    grouped = groups(results)
    contests: list[Contest] = []
    refusals: list[Refusal] = []
    baseline_names = baselines(results)
    marks = {result.encoder.fingerprint for result in results if result.findings.collapsed}
    names = labels(results)
    collapsed = tuple(name for (_, mark), name in names.items() if mark in marks)
    for shared in tabled(grouped):
        everyone = dict.fromkeys(name for group in shared for name in group.encoders)
        ranked = tuple(name for name in everyone if name not in (*baseline_names, *collapsed))
        for group in shared:
            estimates = distinct_estimates(group)
            quantities = {estimate.quantity for estimate in estimates}
            for like in estimates:
                if f"{like.quantity}_extrapolated" in quantities:
                    continue  # its bias depends on the encoder; the one without it is compared
                numbers = _comparable_numbers(group, like, collapsed, refusals)
                if len(numbers) > 1:
                    contests.append(_contest(group, like, numbers, ranked, refusals))
    refusals += _protocol_refusals(grouped, results)
    # By name, so that every form of the report has one order, whichever result came first.
    encoders = tuple(sorted({name for group in grouped for name in group.encoders}))
    return Comparison(
        encoders=encoders,
        baselines=baseline_names,
        collapsed=collapsed,
        contests=tuple(contests),
        refusals=tuple(refusals),
    )


def distinct_estimates(group: Group) -> list[Estimate]:
    """Return one estimate of each (quantity, conditions, claim) of the group, in the order they were recorded."""
    every = [estimate for result in group.results for estimate in result.estimates]
    return list({row_key(estimate): estimate for estimate in reversed(every)}.values())[::-1]


def _comparable_numbers(
    group: Group, like: Estimate, collapsed: Sequence[str], refusals: list[Refusal]
) -> dict[str, _Number]:
    """Return estimate and per-sample series of each encoder that can take part; the others are added to ``refusals``."""
    numbers: dict[str, _Number] = {}
    first: Result | None = None
    results = dict(group.items())
    for name, estimate in group.row(like).items():
        result = results[name]
        series = _series(result, estimate)
        reason = None
        if name in collapsed:
            reason = (
                "the encoder is collapsed: it gives all images the same embedding, so no ranking of it means anything"
            )
        elif isnan(estimate.value):
            reason = f"undefined: {estimate.reason or 'no reason was recorded'}"
        elif estimate.statistic == "whole":
            reason = None if isfinite(estimate.low + estimate.high) else "it has no interval"
        elif series is None:
            reason = "it is not a mean or median of one recorded value per sample, so there is nothing to pair"
        elif not any(isfinite(value) for value in series.values):
            reason = "no sample has a finite value"
        elif first is not None and not (  # in complete runs they would have the same samples
            first.findings.ids == result.findings.ids
            or (
                (first.planned, result.planned) != (None, None)
                and bool(set(first.findings.ids) & set(result.findings.ids))
            )
        ):
            reason = "its samples differ from those of the other encoders"
        if reason is None:
            numbers[name], first = _Number(estimate, series, result.findings.ids, result.findings.groups), result
        else:
            refusals.append(_refusal(group, (name,), reason or "", like))
    return numbers


def _series(result: Result, estimate: Estimate) -> Series | None:
    """Return the per-sample values whose mean or median ``estimate`` is, if they were recorded."""
    if estimate.statistic == "other" or estimate.series is None:
        return None
    identity = (estimate.series, estimate.conditions)
    return next((series for series in result.series if (series.quantity, series.conditions) == identity), None)


def _contest(
    group: Group, like: Estimate, numbers: dict[str, _Number], ranked: Sequence[str], refusals: list[Refusal]
) -> Contest:
    """Return the contest of the encoders with ``numbers``; it has ranks only if all ``ranked`` encoders can be compared."""
    pairs = []
    for a, b in combinations(numbers, 2):
        gap = _difference(numbers[a], numbers[b])
        if not isnan(gap.low + gap.value + gap.high):
            pairs.append(Pair(a=a, b=b, difference=gap))
        else:
            reason = "infinite values" if gap.n else "no sample on which both are defined"
            refusals.append(_refusal(group, (a, b), f"the difference has no interval: {reason}", like))
    comparable = [pair for pair in pairs if pair.a in ranked and pair.b in ranked]
    complete = set(ranked) <= numbers.keys() and len(comparable) == len(ranked) * (len(ranked) - 1) // 2
    losers = [pair.loser for pair in comparable]
    return Contest(
        evaluation=group.first.evaluation,
        protocol=group.key,
        quantity=like.quantity,
        conditions=like.conditions,
        claim=like.claim,
        better=like.better,
        pairs=tuple(pairs),
        ranks={name: 1 + losers.count(name) for name in ranked} if complete and like.better != "neither" else {},
    )


def _difference(a: _Number, b: _Number) -> Difference:
    if a.series is None or b.series is None:
        return unpaired(a.estimate, b.estimate)
    left, right, groups = a.series, b.series, a.groups
    if a.ids != b.ids:
        common = set(a.ids) & set(b.ids)
        left, right = _on(a.ids, left, common), _on(b.ids, right, common)
        of = dict(zip(a.ids, a.groups, strict=True)) if a.groups else {}
        groups = tuple(of[name] for name in sorted(common)) if of else ()
    return paired(left, right, a.estimate.statistic, a.estimate.better, a.estimate.confidence, groups)


def _on(ids: Sequence[str], series: Series, common: Set[str]) -> Series:
    values = dict(zip(ids, series.values, strict=True))
    return series.model_copy(update={"values": tuple(values[name] for name in sorted(common)), "reasons": {}})


def incomparable(refusals: Sequence[Refusal]) -> tuple[str, ...]:
    """Return one sentence for each way in which protocols differ: which are not compared, on what, and what to do."""
    refused: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for refusal in (refusal for refusal in refusals if refusal.quantity is None):
        encoders, evaluations = refused.setdefault(refusal.reason, ({}, {}))
        encoders.update(dict.fromkeys(refusal.encoders))
        evaluations[refusal.evaluation] = None
    return tuple(
        f"{listed(list(evaluations))} of {listed(list(encoders))}: {reason}; repeat one run with the images and settings "
        "of the other"
        for reason, (encoders, evaluations) in refused.items()
    )


def _protocol_refusals(grouped: Sequence[Group], results: Sequence[Result]) -> Iterator[Refusal]:
    """Yield the pairs of encoders that share an evaluation but no protocol of it."""
    # Always the earlier run first, so that one difference reads the same for every evaluation.
    place = {id(result): position for position, result in enumerate(results)}
    for evaluation in dict.fromkeys(group.first.evaluation for group in grouped):
        groups_of_evaluation = sorted(
            (group for group in grouped if group.first.evaluation == evaluation),
            key=lambda group: place[id(group.first)],
        )
        compared = {pair for group in groups_of_evaluation for pair in combinations(sorted(group.encoders), 2)}
        for left, right in combinations(groups_of_evaluation, 2):
            for a, b in ((a, b) for a in left.encoders for b in right.encoders):
                pair = tuple(sorted((a, b)))
                if a != b and pair not in compared:
                    compared.add((pair[0], pair[1]))
                    yield _refusal(left, (a, b), f"different protocol: {difference(left.first, right.first)}")


def _refusal(group: Group, encoders: tuple[str, ...], reason: str, like: Estimate | None = None) -> Refusal:
    return Refusal(
        evaluation=group.first.evaluation,
        encoders=encoders,
        quantity=like.quantity if like else None,
        conditions=like.conditions if like else {},
        reason=reason,
        name=name_of(like) if like else "",
        aim=like.aim if like else "",
    )


# Ranks that hold together: at 95% over all comparisons of a first screen, not each for itself (Holm 1979).
#
# In a table of ten rows and four encoders there are 60 comparisons, and three of them would tell equal encoders
# apart by chance. Each difference gets the p-value that its interval implies,
#
#     p = 2 Phi(-z c), c = |value| / |value - the end nearer zero|, z the normal quantile of the interval,
#
# and no less than 2^(1 - n), which is what n samples that differ can say at most. Holm goes through them from the
# smallest: encoders are distinguished while the k-th of m is at most 0.05 / (m - k + 1).

LEVEL = 0.05
NORMAL = 1.959964
"""The normal quantile of an interval at 95%, which those of differences are."""
Case = tuple[str, str, tuple[tuple[str, str], ...]]


def case(contest: Contest) -> Case:
    """Return the conditions that distinguish a contest from the others of a table."""
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
