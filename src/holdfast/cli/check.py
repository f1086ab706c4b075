"""``holdfast check``: thresholds for stored results, for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.core.options import MEASURED, OUTPUT


def command(
    runs: flags.StoredRuns,
    require: Annotated[
        list[str],
        typer.Option(
            help="Require a threshold of every encoder, as in 'breakaway_risk@8/255<=0.05'; repeatable.",
            metavar="GATE",
            rich_help_panel=MEASURED,
        ),
    ],
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Require the whole interval to meet the threshold.", rich_help_panel=MEASURED),
    ] = False,
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial", help="Accept partial results; without this flag they fail.", rich_help_panel=MEASURED
        ),
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(help="Also write a Markdown table, failures first.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            help="Also write JUnit XML, one test per gate and encoder.", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> int:
    """Check a run against thresholds; exit 1 if one is violated (for CI).

    A missing or partial metric counts as violated.

    holdfast check runs/demo --require 'breakaway_risk@linf:0.1<=0.5'
    """
    from holdfast.commands.check import check

    answers = check(runs, require, strict=strict, allow_partial=allow_partial, markdown=markdown, junit=junit)
    for answer in answers:
        print(f"{'passed' if answer.passed else 'FAILED'}  {answer.gate.text}  {answer.sentence}")
    failed = list(dict.fromkeys(answer.gate.text for answer in answers if not answer.passed))
    if failed:
        print(f"holdfast: {len(failed)} of {len(require)} gates failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
