"""Alerts above the numbers: warnings, small samples, values of ε that separate no encoders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.core.records import Claim, Failure, Result, WarningKind, grouped
from holdfast.core.settings import number
from holdfast.core.statistics.summaries import is_share
from holdfast.report import text
from holdfast.report.comparison.comparable import Group
from holdfast.report.comparison.tables import Cell, Row, Table
from holdfast.report.overview.tally import heading_of

FEW = 50
"""Fewer samples than this decide little, and no gate is made from them."""
ENOUGH = 20
"""Fewest samples that advice rests on: a harm that none of 20 shows may still befall 14 in 100."""
NAMED = 3
"""Evaluations or unread images that a warning names; other parts of the page name all."""
SPENT = "stopped by --budget or by hand; run the same command again to continue"
PARTIAL = "PARTIAL"
"""Beginning of the warning that a run ended early."""


@dataclass(frozen=True)
class Alert:
    """A warning, with the encoders it concerns and the evaluations that raised it."""

    encoders: tuple[str, ...]
    evaluations: tuple[str, ...]
    warning: str
    headings: tuple[str, ...] = ()
    """The sections that it concerns; none where that is the whole run."""
    kind: WarningKind = ""
    """Its cause, if other code acts on it."""

    @property
    def where(self) -> str:
        """Return which evaluations raised it, in words."""
        more = len(self.evaluations) - NAMED
        if more > 1:
            return text.listed([*self.evaluations[:NAMED], f"{more} others"])
        return text.listed(self.evaluations) if self.evaluations else "all evaluations"


COUNTS = re.compile(r"(\d[\d,]*) of (\d[\d,]*)")


def alerts(groups: Sequence[Group]) -> tuple[Alert, ...]:
    """Return one note for each cause: first of a whole encoder, then of evaluations, last of too few samples."""
    found: dict[str, tuple[Alert, list[str]]] = {}

    def add(name: str, result: Result, warning: str, kind: WarningKind = "", whole: bool = False) -> None:
        key = kind or COUNTS.sub("# of #", warning)
        before, sentences = found.get(key, (Alert((), (), warning, kind=kind), []))
        now = replace(
            before,
            encoders=_with(before.encoders, name),
            evaluations=before.evaluations if whole else _with(before.evaluations, result.title),
            headings=before.headings if whole else _with(before.headings, heading_of(result)),
        )
        found[key] = now, [*sentences, warning]

    members = [member for group in groups for member in group.items()]
    for name, result in members:
        for warning in result.encoder.warnings:
            add(name, result, warning, whole=True)
    for name, result in members:
        for warning in result.findings.warnings:
            add(name, result, warning, result.findings.kinds.get(warning, ""))
        if unread := result.images.skipped:
            were = f"could not be read and {'was' if len(unread) == 1 else 'were'} skipped"
            rest = f" and {len(unread) - NAMED:,} more" if len(unread) > NAMED else ""
            add(
                name,
                result,
                f"{text.counted(len(unread), 'image')} {were}: {'; '.join(unread[:NAMED])}{rest}.",
                whole=True,
            )
    each = (replace(note, warning=note.warning if note.kind else added(said)) for note, said in found.values())
    return (*each, *_of_samples(members))


def added(sentences: Sequence[str]) -> str:
    """Return sentences that differ in their counts as one, with the counts added up; equal ones are one fact.

    Example:
        >>> added(["1 of 30 fits failed.", "2 of 30 fits failed."]), added(["3 of 9 images are copies."] * 2)
        ('3 of 60 fits failed.', '3 of 9 images are copies.')
    """
    if len(set(sentences)) == 1:
        return sentences[0]
    counts = [[[int(n.replace(",", "")) for n in pair] for pair in COUNTS.findall(each)] for each in sentences]
    totals = iter([[sum(ends) for ends in zip(*pairs, strict=True)] for pairs in zip(*counts, strict=True)])
    return COUNTS.sub(lambda _: "{:,} of {:,}".format(*next(totals)), sentences[0])


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if name in names else (*names, name)


def partial(*results: Result) -> str:
    """Return the sentences on partial results."""
    planned = [result.planned or 0 for result in results]
    looked_at = _span([result.looked_at for result in results])
    ended = f"{PARTIAL}: the run ended after {looked_at} of {_span(planned)} sample{'' if max(planned) == 1 else 's'}"
    if _beyond_samples(results[0]):
        return f"{ended}. What needs none of them is of all {_span(list(map(_count, results)))} images."
    return (
        f"{ended}, a random choice. Intervals are those of so few; encoders are compared on the images that both have."
    )


def _of_samples(members: Sequence[tuple[str, Result]]) -> Iterator[Alert]:
    """Yield one alert for each way to have too few samples, on all results of ``members`` that have them so."""
    ended = [result for _, result in members if result.planned is not None]
    few = [result for _, result in members if 0 < _count(result) < FEW]
    settled = [result for result in few if result.planned is None or _beyond_samples(result)]
    kinds: tuple[tuple[list[Result], Callable[[Sequence[Result]], str]], ...] = (
        ([result for result in ended if not _beyond_samples(result)], _goes_on),
        ([result for result in ended if _beyond_samples(result)], _goes_on),
        (
            [result for result in few if result.planned is not None and not _beyond_samples(result)],
            lambda few: _only(few, "Give the run more time (--budget), or run the same command again,"),
        ),
        (
            [result for result in settled if result.images.count < FEW],
            lambda few: _only(few, f"Give {FEW} images or more (--images, and --limit if you set it)"),
        ),
        (
            [result for result in settled if result.images.count >= FEW],
            lambda few: _only(few, f"Ask for {FEW} or more ({' or '.join([*_settings(few), '--suite standard'])})"),
        ),
    )
    for results, sentence in kinds:
        if results:
            names = dict.fromkeys(name for name, result in members if any(result is each for each in results))
            titles, headings = ([*dict.fromkeys(map(of, results))] for of in (lambda each: each.title, heading_of))
            yield Alert(tuple(names), tuple(titles), sentence(results), tuple(headings))


def _count(result: Result) -> int:
    return len(result.findings.ids)


def _beyond_samples(result: Result) -> bool:
    """Return whether ``result`` is about more images than it sampled."""
    return result.looked_at < _count(result)


def _goes_on(results: Sequence[Result]) -> str:
    return f"{partial(*results)} More time (--budget) or the same command again goes on."


def _settings(results: Sequence[Result]) -> list[str]:
    return [f"--set {result.evaluation}.samples={FEW}" for result in results if "samples" in result.settings][:1]


def _only(results: Sequence[Result], advice: str) -> str:
    counts = list(map(_count, results))
    used = f"{text.counted(len({r.evaluation for r in results}), 'evaluation')} used {_span(counts)}"
    return f"Small sample: {used} {'sample' if max(counts) == 1 else 'samples'}. {advice} before you decide."


def _span(counts: Sequence[int]) -> str:
    """Return the least and the greatest of ``counts``.

    Example:
        >>> _span([12, 4, 60]), _span([1200])
        ('4 to 60', '1,200')
    """
    least, greatest = min(counts), max(counts)
    return f"{least:,}" if least == greatest else f"{least:,} to {greatest:,}"


def counted_states(finished: int, partial: int, not_measured: int, failed: int) -> str:
    """Return how many cells are in each state, in the words that are used everywhere, without those that none is in.

    Example:
        >>> counted_states(2, 2, 13, 0), counted_states(0, 0, 0, 0)
        ('2 finished, 2 partial, 13 not measured', 'none')
    """
    counts = {"finished": finished, "partial": partial, "not measured": not_measured, "failed": failed}
    return ", ".join(f"{count:,} {state}" for state, count in counts.items() if count) or "none"


@dataclass(frozen=True)
class Cause:
    """Why results are missing, with all of those that are missing for this reason."""

    reason: str
    error: str
    failures: tuple[Failure, ...]

    @property
    def state(self) -> str:
        """Return the state of the cells in words."""
        return self.failures[0].state

    @property
    def what(self) -> str:
        """Return the missing evaluations by encoder, in words."""
        return cells_in_words([(failure.evaluation, failure.encoder) for failure in self.failures])


def cells_in_words(cells: Sequence[tuple[str, str]]) -> str:
    """Return evaluations by encoder, in words.

    Example:
        >>> cells_in_words([("spade", "a"), ("overlap", "a"), ("spade", "b"), ("overlap", "b"), ("spade", "c")])
        'spade and overlap of a and b; spade of c'
    """
    by_encoder = grouped((encoder, evaluation) for evaluation, encoder in cells)
    shared = grouped((tuple(dict.fromkeys(evaluations)), name) for name, evaluations in by_encoder.items())
    return "; ".join(f"{text.listed(what)} of {text.listed(names)}" for what, names in shared.items())


def causes(failures: Sequence[Failure]) -> tuple[Cause, ...]:
    """Return each reason once, the one that costs most results first."""
    failed = grouped(((failure.reason, failure.error), failure) for failure in failures)
    ordered = sorted(failed.items(), key=lambda item: -len(item[1]))
    return tuple(Cause(reason, error, tuple(failures_of_cause)) for (reason, error), failures_of_cause in ordered)


def missing_sentences(failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return one sentence for each reason why results are missing."""
    return tuple(f"{cause.state}: {cause.what}: {cause.reason}" for cause in causes(failures))


def encoders_without_results(results: Sequence[Result], failures: Sequence[Failure]) -> dict[str, tuple[str, ...]]:
    """Return the encoders that were asked for and have no result at all, each with the reasons."""
    known = {name for result in results for name in (result.encoder.name, result.encoder.source)}
    lost = grouped((failure.encoder, failure.reason) for failure in failures if failure.encoder not in known)
    return {name: tuple(dict.fromkeys(reasons)) for name, reasons in lost.items()}


def by_budget(failures: Sequence[Failure]) -> tuple[list[Failure], list[Failure]]:
    """Return the cells that were not measured, because the run ended before, and those that failed."""
    spent = [failure for failure in failures if failure.state == "not measured"]
    return spent, [failure for failure in failures if failure not in spent]


HARM = {("lower", Claim.LOWER), ("higher", Claim.UPPER)}
"""Numbers that show harm done; a certificate that reaches not far shows none."""
EDGE = 0.01
"""Distance from 0 or 1 within which a fraction counts as at the end."""
CERTAIN = 0.1
"""More images would not change that only if every interval ends as near as this: 4 images that all give way say nothing."""
FACTOR = 4.0
"""Factor by which the radius to take instead is smaller, or larger."""


def other_radius(table: Table) -> str:
    """Return how a sentence goes on that ends in advice for another radius, if most fractions of all encoders are at 0 or 1.

    Else nothing.
    """
    harms = [
        (ball, each, section.title)
        for section in table.sections
        if section.robustness and (section.like.better, section.like.claim) in HARM and is_share(section.like.unit)
        for row in section.rows
        if ":" in (ball := row.like.conditions.get("ball", "")) and len(each := _harms(row, table)) == len(table.ranked)
    ]
    broken = [(b, t) for b, each, t in harms if all(x >= 1 - EDGE and low >= 1 - CERTAIN for low, x, _ in each)]
    untouched = [(b, t) for b, each, t in harms if all(x <= EDGE and high <= CERTAIN for _, x, high in each)]
    for found, what, size, factor in (
        (broken, "attacks succeed on all images of all encoders", "smaller", 1 / FACTOR),
        (untouched, "attacks succeed on no image of any encoder", "larger", FACTOR),
    ):
        if 2 * len(found) > len(harms):
            radii = grouped(text.norm_and_radius(ball) for ball, _ in found)
            end = min if factor < 1 else max
            flags = text.listed([f"`--ball {norm}:{number(factor * end(same))}`" for norm, same in radii.items()])
            which = text.listed(dict.fromkeys(title for _, title in found))
            return (
                f". For {which}, {what}, and more images would not change that: take a {size} radius there, as {flags}."
            )
    return ""


def harm(cell: Cell) -> float:
    """Return the distance of a fraction from its best value."""
    return cell.estimate.value if cell.estimate.better == "lower" else 1 - cell.estimate.value


def _harms(row: Row, table: Table) -> list[tuple[float, float, float]]:
    """Return the harm of each encoder to choose among, between the ends of its interval."""
    numbers = [cell.estimate for cell in row.defined(table, table.ranked).values()]
    return [(e.low, e.value, e.high) if e.better == "lower" else (1 - e.high, 1 - e.value, 1 - e.low) for e in numbers]
