"""``holdfast check``: thresholds for stored results, for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.cli import flags
from holdfast.cli.flags import flag, switch
from holdfast.core.options import MEASURED, OUTPUT


def command(
    runs: flags.StoredRuns,
    require: list[str] = flag(
        ..., "Require a threshold of every encoder, as in 'breakaway_risk@8/255<=0.05'; repeatable.", MEASURED, "GATE"
    ),
    strict: bool = switch("--strict", "Require the whole interval to meet the threshold.", MEASURED),
    allow_partial: bool = switch("--allow-partial", "Accept partial results; without this flag they fail.", MEASURED),
    markdown: Path | None = flag(None, "Also write a Markdown table, failures first.", OUTPUT, "FILE"),
    junit: Path | None = flag(None, "Also write JUnit XML, one test per gate and encoder.", OUTPUT, "FILE"),
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
