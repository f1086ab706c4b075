"""``holdfast check``: bounds that stored results must keep, for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.core.files import write_whole


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, as given to evaluate --out.")],
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
) -> int:
    """Check results against bounds; the exit status is 1 if one is broken or was not measured."""
    # Loaded here, because these need torch.
    from holdfast.commands.stored_runs import read, unfinished
    from holdfast.report.gate import check, parse, warning
    from holdfast.report.printed import gates_markdown
    from holdfast.report.relative import with_relative_errors

    gates = [parse(text) for text in require]
    results, failures = read(runs)
    failures += unfinished(runs, results, failures)
    results = with_relative_errors(results)
    answers = [answer for gate in gates for answer in check(gate, results, failures)]
    warnings = [sentence for gate in gates if (sentence := warning(gate, results))]
    for sentence in warnings:
        print(sentence, file=sys.stderr)
    if markdown:
        write_whole(markdown, gates_markdown(answers, results, warnings).encode())
    for answer in answers:
        print(f"{'passed' if answer.passed else 'FAILED'}  {answer.gate.text}  {answer.sentence}")
    failed = list(dict.fromkeys(answer.gate.text for answer in answers if not answer.passed))
    if failed:
        print(f"holdfast: {len(failed)} of {len(gates)} gates failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
