"""What a reader must know before the numbers: warnings of evaluations, too few samples, unread images, missing cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.records import Failure, Result
from holdfast.report import text
from holdfast.report.comparison.protocol import Group

FEW = 50
"""Fewer samples than this decide little, and no gate is made from them."""
NAMED = 3
"""So many unread images are named in a warning; the facts at the end of the page name all."""
SPENT = "stopped by --budget or by hand; run the same command again to continue"
PARTIAL = "PARTIAL"
"""How the warning begins that a run ended before all samples were looked at."""


@dataclass(frozen=True)
class Alert:
    """A warning, with the encoders it concerns and the evaluations that raised it."""

    encoders: tuple[str, ...]
    evaluations: tuple[str, ...]
    warning: str

    @property
    def where(self) -> str:
        """Return which evaluations raised it, in words."""
        return text.listed(list(self.evaluations)) if self.evaluations else "all evaluations"


def alerts(groups: Sequence[Group]) -> tuple[Alert, ...]:
    """Return every warning once, first those that concern all numbers of an encoder."""
    warned: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for name, result in ((name, result) for group in groups for name, result in group.items()):
        for warning in result.encoder.warnings:
            warned.setdefault(warning, ({}, {}))[0][name] = None
    for group in groups:
        for name, result in group.items():
            for warning in (*result.findings.warnings, *_sample_warnings(result)):
                encoders, evaluations = warned.setdefault(warning, ({}, {}))
                encoders[name] = evaluations[result.title] = None
    return tuple(Alert(tuple(who), tuple(where), warning) for warning, (who, where) in warned.items())


def partial(result: Result) -> str:
    """Return what is to be said of a result of fewer samples than planned."""
    count = len(result.findings.ids)
    ended = f"{PARTIAL}: the run ended after {result.looked_at:,} of {text.counted(result.planned or 0, 'sample')}"
    if result.looked_at < count:
        return f"{ended}. What needs none of them is of all {count:,} images."
    return (
        f"{ended}, a random choice. Intervals are those of so few; encoders are compared on the images that both have."
    )


def _sample_warnings(result: Result) -> Iterator[str]:
    count = len(result.findings.ids)
    if result.planned is not None:
        yield f"{partial(result)} Run the same command again to go on."
    if 0 < count < FEW:
        yield (
            f"Only {text.counted(count, 'sample')} could be looked at, too few to decide much: intervals are wide and rare "
            f"harm stays unseen. Give {FEW} or more before you act on the numbers."
        )
    skipped = result.images.skipped
    if skipped:
        rest = f" and {len(skipped) - NAMED:,} more" if len(skipped) > NAMED else ""
        yield (
            f"{text.counted(len(skipped), 'image')} could not be read and {'was' if len(skipped) == 1 else 'were'} skipped: "
            f"{'; '.join(skipped[:NAMED])}{rest}."
        )


@dataclass(frozen=True)
class Cause:
    """Why results are missing, with all of those that are missing for this reason."""

    reason: str
    error: str
    failures: tuple[Failure, ...]

    @property
    def what(self) -> str:
        """Return what is missing, in words: evaluations by encoder."""
        by_encoder: dict[str, dict[str, None]] = {}
        for failure in self.failures:
            by_encoder.setdefault(failure.encoder, {})[failure.evaluation] = None
        shared: dict[tuple[str, ...], list[str]] = {}
        for name, evaluations in by_encoder.items():
            shared.setdefault(tuple(evaluations), []).append(name)
        return "; ".join(f"{text.listed(list(what))} of {text.listed(names)}" for what, names in shared.items())


def causes(failures: Sequence[Failure]) -> tuple[Cause, ...]:
    """Return each reason once, the one that costs most results first."""
    failed: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        failed.setdefault((failure.reason, failure.error), []).append(failure)
    ordered = sorted(failed.items(), key=lambda item: -len(item[1]))
    return tuple(Cause(reason, error, tuple(failures_of_cause)) for (reason, error), failures_of_cause in ordered)


def missing_sentences(failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return one sentence for each reason why results are missing."""
    return tuple(f"no result: {cause.what}: {cause.reason}" for cause in causes(failures))


def encoders_without_results(results: Sequence[Result], failures: Sequence[Failure]) -> dict[str, tuple[str, ...]]:
    """Return the encoders that were asked for and have no result at all, each with the reasons."""
    known = {name for result in results for name in (result.encoder.name, result.encoder.source)}
    reasons_of: dict[str, dict[str, None]] = {}
    for failure in failures:
        if failure.encoder not in known:
            reasons_of.setdefault(failure.encoder, {})[failure.reason] = None
    return {name: tuple(reasons) for name, reasons in reasons_of.items()}


def by_budget(failures: Sequence[Failure]) -> tuple[list[Failure], list[Failure]]:
    """Return the cells that wait because the time was up, and those that failed."""
    spent = [failure for failure in failures if failure.error == "BudgetSpentError"]
    return spent, [failure for failure in failures if failure not in spent]
