"""``holdfast check``: bounds that stored results must keep, for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags


def command(
    runs: flags.StoredRuns,
    require: Annotated[
        list[str],
        typer.Option(
            help="A bound for every encoder, as in 'breakaway.breakaway_risk@8/255<=0.05'; also "
            "'breakaway.breakaway_risk@linf:8/255,attack=adaptive,encoder=NAME<=0.05'. Repeatable."
        ),
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Require that the whole interval keeps the bound, not only the value.")
    ] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Judge results of fewer samples than planned, which fail otherwise.")
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the answers as a Markdown table, too, failures first.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the answers as JUnit XML, too, a test for each gate and encoder.")
    ] = None,
) -> int:
    """Check a run against bounds. Exits with 1 if a bound is broken or its number is missing or partial."""
    from holdfast.commands.check import check

    answers = check(runs, require, strict=strict, allow_partial=allow_partial, markdown=markdown, junit=junit)
    for answer in answers:
        print(f"{'passed' if answer.passed else 'FAILED'}  {answer.gate.text}  {answer.sentence}")
    failed = list(dict.fromkeys(answer.gate.text for answer in answers if not answer.passed))
    if failed:
        print(f"holdfast: {len(failed)} of {len(require)} gates failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
