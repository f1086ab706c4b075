"""``holdfast parity``: compare versions, exports or precisions of an encoder."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

import typer

from holdfast.cli import flags
from holdfast.cli.flags import flag
from holdfast.cli.terminal import may_warn
from holdfast.core.options import INPUT, MEASURED, OUTPUT, LocalOptions

if TYPE_CHECKING:
    from holdfast.commands.parity import Parity
    from holdfast.core.records import Result

STOPPED = flags.CONTINUES

COLUMNS = ("neighbours_kept", "neighbours_kept_mixed", "distance", "cka", "attack_radius_change")


@flags.options(LocalOptions, "parity")
def command(
    reference: str = typer.Argument(..., help="Encoder as source:name, or a file of embeddings.", metavar="REFERENCE"),
    candidates: list[str] = typer.Argument(
        ...,
        help="Encoders or files, precisions of REFERENCE (float16), or forms (?stored=binary).",
        metavar="CANDIDATES...",
    ),
    images: flags.Images[str | None] = None,
    bank: str | None = flag(None, "Search neighbours in these images (default: the images).", INPUT, "DIR"),
    k: int = flag(10, "Compare the K nearest images.", MEASURED, "K"),
    divergence: str = flag("cosine", "Measure distances by cosine or l2.", MEASURED, "DISTANCE"),
    radii: int = flag(0, "Attack N images per encoder and compare attack radii.", MEASURED, "N"),
    adapter: str | None = flag(None, "Write a map from the old embeddings to the new space here.", OUTPUT, "FILE"),
    *,
    options: LocalOptions,
    black_box: flags.BlackBox[bool] = False,
) -> int:
    """Compare two versions, exports or precisions of an encoder.

    holdfast parity timm:resnet50 float16 onnx:resnet50.onnx --images photos/
    """
    given = flags.keywords(locals())
    # Loaded here, because these need torch.
    from holdfast.commands.evaluate import MissingResultsWarning
    from holdfast.commands.parity import parity

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingResultsWarning)  # what is missing is said below, one by one
        answer = parity(**given)
    _print(answer)
    for failure in answer.failures:
        print(f"{failure.encoder} has no result: {failure.reason}", file=sys.stderr)
    verdicts = [verdict for result in answer.results for verdict in result.findings.verdicts]
    if adapter and any(verdict.witness.get("map", "none") != "none" for verdict in verdicts):  # a map was written
        print(f"Adapter: {adapter}")
    if answer.page:
        print(f"Report: {answer.page}")
    return 1 if answer.failures or any(result.planned is not None for result in answer.results) else 0


def _print(answer: Parity) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.terminal import console, show
    from holdfast.report.text import words

    compared = [
        result for result in answer.results if result.encoder.name in answer.verdicts and result.evaluation == "parity"
    ]
    grid = Table(box=box.SIMPLE_HEAD)
    columns = [name for name in COLUMNS if any(_number(result, name) for result in compared)]
    for head in ("candidate", "verdict", *map(words, columns)):
        grid.add_column(head, overflow="fold")
    for result in compared:
        cells = [_number(result, name) for name in columns]
        grid.add_row(*map(Text, (result.encoder.name, answer.verdicts[result.encoder.name], *cells)))
    if compared:
        show(grid)
    for result in compared:
        for verdict in result.findings.verdicts:
            console().print(Text(f"{result.encoder.name}: {verdict.question} {verdict.reason}"))
        # What the mean of neighbours kept hides.
        groups = next((e.reason for e in result.estimates if e.quantity == "neighbours_kept_worst_group"), None)
        low_end = (
            f"Queries that keep at least 80% of their neighbours: {_number(result, 'neighbours_kept_at_80')}; "
            f"kept by the lowest 10%: {_number(result, 'neighbours_kept_worst_10')}{f' ({groups})' if groups else ''}"
        )
        console().print(Text(f"{result.encoder.name}: {low_end}"))
        for warning in (*result.encoder.warnings, *result.findings.warnings):
            if may_warn(warning):
                console().print(Text(f"{result.encoder.name}: warning: {warning}"))


def _number(result: Result, quantity: str) -> str:
    from holdfast.report.text import interval, value

    estimate = next((each for each in result.estimates if each.quantity == quantity), None)
    return "" if estimate is None else f"{value(estimate, estimate.value)} {interval(estimate)}".rstrip()
