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
            help="A bound for every encoder, or the one named, as in 'breakaway_risk@8/255<=0.05'; also "
            "'breakaway_risk@linf:8/255,attack=adaptive,encoder=NAME<=0.05'. Repeatable."
        ),
    ],
    markdown: Annotated[
        Path | None, typer.Option(help="Write the answers as a Markdown table, too, failures first.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the answers as JUnit XML, too, a test for each gate and encoder.")
    ] = None,
) -> int:
    """Check results against bounds; the exit status is 1 if one is broken or was not measured."""
    from holdfast.commands.check import check

    answers = check(runs, require, markdown=markdown, junit=junit)
    for answer in answers:
        print(f"{'passed' if answer.passed else 'FAILED'}  {answer.gate.text}  {answer.sentence}")
    failed = list(dict.fromkeys(answer.gate.text for answer in answers if not answer.passed))
    if failed:
        print(f"holdfast: {len(failed)} of {len(require)} gates failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
