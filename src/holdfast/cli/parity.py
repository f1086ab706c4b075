"""``holdfast parity``: whether another runtime, precision, export or version of an encoder still has its space."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import flags
from holdfast.core.options import LocalOptions

if TYPE_CHECKING:
    from holdfast.commands.parity import Parity
    from holdfast.core.records import Result

STOPPED = flags.CONTINUES

COLUMNS = ("neighbours_kept", "neighbours_kept_mixed", "distance", "cka", "attack_radius_change")


@flags.options(LocalOptions, "parity")
def command(
    reference: Annotated[str, typer.Argument(help="source:name, as in timm:resnet50, or a file of codes.")],
    candidates: Annotated[
        list[str], typer.Argument(help="The same, or a precision in which the reference is computed, as in float16.")
    ],
    images: flags.Images[str | None] = None,
    bank: Annotated[str | None, typer.Option(help="Other images, searched instead of the images themselves.")] = None,
    k: Annotated[int, typer.Option(help="Nearest images that are compared.")] = 10,
    divergence: Annotated[
        str, typer.Option(help="Compare by cosine, as most indexes and threshold do, or by l2.")
    ] = "cosine",
    radii: Annotated[int, typer.Option(help="Attack so many images on every encoder, and compare the radii.")] = 0,
    *,
    options: LocalOptions,
    black_box: flags.BlackBox[bool] = False,
) -> int:
    """Say whether other versions of an encoder still have its space, and what to do if not."""
    # Loaded here, because these need torch.
    from holdfast.commands.evaluate import MissingResultsWarning
    from holdfast.commands.parity import parity

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingResultsWarning)  # what is missing is said below, one by one
        answer = parity(
            reference,
            candidates,
            images,
            bank=bank,
            k=k,
            divergence=divergence,
            radii=radii,
            black_box=black_box,
            **options,
        )
    _print(answer)
    for failure in answer.failures:
        print(f"{failure.encoder} has no result: {failure.reason}", file=sys.stderr)
    if answer.page:
        print(f"Report: {answer.page}")
    return 1 if answer.failures or any(result.planned is not None for result in answer.results) else 0


def _print(answer: Parity) -> None:
    """Print a table of the candidates, and below it what is said of each."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.terminal import console, show
    from holdfast.report.text import words

    compared = [result for result in answer.results if result.encoder.name in answer.verdicts and _is_parity(result)]
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
        for warning in (*result.encoder.warnings, *result.findings.warnings):
            console().print(Text(f"{result.encoder.name}: warning: {warning}"))


def _is_parity(result: Result) -> bool:
    return result.evaluation == "parity"


def _number(result: Result, quantity: str) -> str:
    """Return a number of a result with its interval; empty if it has none of this name."""
    from holdfast.report.text import interval, value

    estimate = next((each for each in result.estimates if each.quantity == quantity), None)
    return "" if estimate is None else f"{value(estimate, estimate.value)} {interval(estimate)}".rstrip()
