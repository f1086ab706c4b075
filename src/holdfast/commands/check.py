"""Thresholds that stored results must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.commands.evaluated_run import StoredRun, folders_of
from holdfast.commands.runs import read_requested
from holdfast.core.errors import HoldfastError, check_no_blanks, check_not_blank, warn
from holdfast.core.files import write_whole
from holdfast.core.records import grouped
from holdfast.core.settings import listed
from holdfast.report import gate
from holdfast.report.comparison.comparable import with_relative_errors
from holdfast.report.printed import gates_junit, gates_markdown


def check(
    runs: StoredRun | Sequence[StoredRun],
    require: str | Sequence[str],
    *,
    strict: bool = False,
    allow_partial: bool = False,
    markdown: str | Path | None = None,
    junit: str | Path | None = None,
) -> tuple[gate.Answer, ...]:
    """Return for each bound and each encoder whether it is kept, and a sentence on it.

    Args:
        runs: one or several runs, or their folders.
        require: bounds for every encoder, or the one named, as in ``"breakaway.breakaway_risk@8/255<=0.05"``.
        strict: require that the whole interval keeps the bound, not only the value.
        allow_partial: judge results of fewer samples than planned, too, which fail otherwise.
        markdown: write the answers there as a table, too, failures first.
        junit: write them there as JUnit XML, too, which continuous integration shows as tests; a bound that matches nothing
            is an error among them.

    Raises:
        HoldfastError: a bound makes no sense, or a folder holds no run.
    """
    check_no_blanks(locals())
    gates = [gate.parse(text) for text in listed(require)]
    results, failures = read_requested(folders_of(runs))
    results = with_relative_errors(results)
    answers, errors = list[gate.Answer](), dict[str, HoldfastError]()
    measured = {
        (name, e.quantity) for result in results for e in result.estimates for name in (None, result.evaluation)
    }
    silent = {failure.evaluation for failure in failures} - {result.evaluation for result in results}
    # The catalogue takes seconds to load, and tells nothing of what was measured.
    needed = any((bound.evaluation, bound.quantity) not in measured or silent for bound in gates)
    catalogue = _catalogue() if needed else {}
    for bound in gates:
        try:
            answers += gate.check(bound, results, failures, catalogue, strict=strict, allow_partial=allow_partial)
        except HoldfastError as error:
            errors[bound.text] = error
    if junit is not None:
        reasons = {text: str(error) for text, error in errors.items()}
        write_whole(Path(junit), gates_junit(answers, reasons).encode())
    if errors:
        raise next(iter(errors.values()))
    sentences = [sentence for bound in gates if (sentence := gate.warning(bound, results))]
    for sentence in sentences:
        warn(sentence.removeprefix("warning: "))
    if markdown is not None:
        write_whole(Path(markdown), gates_markdown(answers, results, sentences).encode())
    return tuple(answers)


def _catalogue() -> dict[str, list[str]]:
    """Return which evaluations report each quantity that leads one or answers a question."""
    from holdfast.run.catalog import evaluations

    return grouped(
        (quantity, name)
        for name, kind in evaluations().items()
        for quantity in dict.fromkeys(
            (*kind.headline, *(each for asked in kind.questions for each in asked.quantities))
        )
    )


def require(
    runs: StoredRun | Sequence[StoredRun], *bounds: str, strict: bool = False, allow_partial: bool = False
) -> None:
    """Raise unless all ``bounds`` hold, as in ``require(run, "breakaway.breakaway_risk@8/255<=0.05")``.

    This is a line of a test.

    Args:
        runs: Run or runs to check.
        *bounds: Bounds as text.
        strict: As in ``check``.
        allow_partial: As in ``check``.

    Raises:
        AssertionError: A bound is broken, or its metric was not measured; the sentence names each encoder.
        HoldfastError: A bound cannot be parsed, or a folder holds no run.
    """
    for bound in bounds:
        check_not_blank("bounds", bound)
    failed = [answer for answer in check(runs, bounds, strict=strict, allow_partial=allow_partial) if not answer.passed]
    if failed:
        raise AssertionError("\n".join(f"{answer.gate.text}: {answer.sentence}" for answer in failed))
