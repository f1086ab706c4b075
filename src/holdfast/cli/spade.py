"""``holdfast spade``: SPADE scores of a map, from arrays of its inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result
from holdfast.core.options import ADVANCED, INPUT, MEASURED, OUTPUT, Seeding


@flags.options(Seeding, "spade")
def command(
    inputs: Annotated[
        Path,
        typer.Option(help="Read inputs from .npy or .npz, one row per sample.", metavar="FILE", rich_help_panel=INPUT),
    ],
    outputs: Annotated[
        Path,
        typer.Option(help="Read the embeddings of the same samples, in order.", metavar="FILE", rich_help_panel=INPUT),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="Read one integer per sample, for scores by label.", metavar="FILE", rich_help_panel=INPUT),
    ] = None,
    k: Annotated[
        int,
        typer.Option(
            "--k", help="Connect each sample to K neighbours in both graphs.", metavar="K", rich_help_panel=MEASURED
        ),
    ] = 10,
    graph: Annotated[
        str,
        typer.Option(
            help="Build a knn, pca:components=50, cknn or sparsified graph.", metavar="GRAPH", rich_help_panel=MEASURED
        ),
    ] = "knn",
    repair: Annotated[
        str,
        typer.Option(
            help="Repair a disconnected graph by none, increase_k, largest or mst.",
            metavar="NAME",
            rich_help_panel=MEASURED,
        ),
    ] = "none",
    subsets: Annotated[
        int,
        typer.Option(
            help="Draw N random subsets for intervals; 0: no intervals.", metavar="N", min=0, rich_help_panel=ADVANCED
        ),
    ] = 8,
    certify: Annotated[
        bool, typer.Option(help="Prove an upper bound of the score (default: yes).", rich_help_panel=MEASURED)
    ] = True,
    *,
    options: Seeding,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write report and scores.npz here (default: nothing).", metavar="DIR", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> int:
    """Compute SPADE scores from two arrays.

    holdfast spade --inputs X.npy --outputs Y.npy
    """
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
