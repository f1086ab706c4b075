"""``holdfast spade``: spectral scores of a map given by its inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result
from holdfast.core.options import Seeding


@flags.options(Seeding, "spade")
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
    *,
    options: Seeding,
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
        out=out,
        **options,
    )
    show_result(stretch.result)
    if stretch.report:
        print(f"Report: {stretch.report}")
    return 0
