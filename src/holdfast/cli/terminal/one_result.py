"""One result on a terminal: for commands that ask one question."""

from __future__ import annotations

from collections import Counter
from math import isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.records import Result


def show_result(result: Result) -> None:
    """Print the numbers of ``result`` with their intervals, each reason once, its verdicts and its warnings."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.terminal.console import console, show
    from holdfast.report.heading import heading
    from holdfast.report.overview.alerts import partial
    from holdfast.report.text import conditions, interval, listed, name_of, value

    screen = console()
    if result.heading:
        screen.print(Text(heading([result], result.encoder.name)))
    grid = Table(box=box.SIMPLE_HEAD)
    for head in ("", "value", "interval", "method"):
        grid.add_column(head, overflow="fold")
    reasons: dict[tuple[str, bool], Counter[str]] = {}
    for estimate in result.estimates:
        if estimate.reason or isnan(estimate.value):
            reason = estimate.reason or "no reason was recorded"
            reasons.setdefault((reason, isnan(estimate.value)), Counter())[name_of(estimate)] += 1
        if isnan(estimate.value):
            continue
        where = conditions(estimate.conditions, aim=estimate.aim)
        name = name_of(estimate) + (f" ({where})" if where else "")
        cells = (name, value(estimate, estimate.value), interval(estimate), estimate.method)
        grid.add_row(*map(Text, cells))
    show(grid)
    for (reason, undefined), counts in reasons.items():
        names = listed([f"{name} ({count} of them)" if count > 1 else name for name, count in counts.items()])
        screen.print(Text(f"{names}{' undefined' if undefined else ''}: {reason}"))
    for verdict in result.findings.verdicts:
        screen.print(Text(f"{verdict.question} {verdict.status}: {verdict.reason}"))
        for key, fact in verdict.witness.items():
            screen.print(Text(f"  {key}: {fact}"))
    for warning in (*result.findings.warnings, *([partial(result)] if result.planned is not None else ())):
        screen.print(Text(f"warning: {warning}"))
