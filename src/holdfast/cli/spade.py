"""``holdfast spade``: spectral scores of a map given by its inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.flags import Seed

if TYPE_CHECKING:
    from holdfast.core.records import Result


def command(
    inputs: Annotated[Path, typer.Option(help="A .npy or .npz file with one row per sample.")],
    outputs: Annotated[Path, typer.Option(help="The representations of the same samples, in the same order.")],
    labels: Annotated[Path | None, typer.Option(help="One integer per sample, for scores by label.")] = None,
    k: Annotated[int, typer.Option("--k", help="Neighbours of each sample in both graphs.")] = 10,
    graph: Annotated[str, typer.Option(help="knn, pca:components=50, cknn or sparsified.")] = "knn",
    repair: Annotated[
        str, typer.Option(help="What to do about an infinite score: none, increase_k, largest or mst.")
    ] = "none",
    subsets: Annotated[int, typer.Option(help="Random subsets that the intervals come from; 0: none.", min=0)] = 8,
    certify: Annotated[bool, typer.Option(help="Prove an upper bound of the score by a factorisation.")] = True,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report and for scores.npz.")] = None,
) -> int:
    """Score how a map stretches neighbourhoods, from arrays of its inputs and outputs alone."""
    from holdfast.commands.spade import spade  # loaded here, because it needs torch

    stretch = spade(
        inputs,
        outputs,
        k,
        labels=labels,
        graph=graph,
        repair=repair,
        subsets=subsets,
        certify=certify,
        seed=seed,
        out=out,
    )
    _show(stretch.result)
    if stretch.report:
        print(f"Report: {stretch.report}")
    return 0


def _show(result: Result) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.console import console, show
    from holdfast.report.text import condition, interval, number, words

    screen = console()
    grid = Table(box=box.SIMPLE_HEAD)
    for head in ("", "value", "interval", "method"):
        grid.add_column(head, overflow="fold")
    for estimate in result.estimates:
        conditions = " · ".join(condition(key, value) for key, value in estimate.conditions.items())
        cells = (
            f"{words(estimate.quantity)} ({conditions})",
            number(estimate.value),
            interval(estimate),
            estimate.method,
        )
        grid.add_row(*map(Text, cells))
    show(grid)
    for verdict in result.findings.verdicts:
        screen.print(Text(f"{verdict.question} {verdict.status}: {verdict.reason}"))
        for key, value in verdict.witness.items():
            screen.print(Text(f"  {key}: {value}"))
    for warning in result.findings.warnings:
        screen.print(Text(f"warning: {warning}"))
