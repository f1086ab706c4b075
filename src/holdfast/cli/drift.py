"""``holdfast drift``: test whether new images differ from reference images."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result
from holdfast.core.options import ADVANCED, INPUT, MEASURED, LocalOptions


@flags.options(LocalOptions, "drift")
def command(
    before: Annotated[str, typer.Argument(help="Reference images: a folder or source:name.", metavar="BEFORE")],
    after: Annotated[str, typer.Argument(help="New images to test: a folder or source:name.", metavar="AFTER")],
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Embed images by source:name (default: both sets are embeddings).",
            metavar="ENCODER",
            rich_help_panel=INPUT,
        ),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(
            help="Set the false-alarm rate (significance level), from 0 to 1.", metavar="RATE", rich_help_panel=MEASURED
        ),
    ] = 0.05,
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="Use the test that stays valid after every image.", rich_help_panel=MEASURED),
    ] = False,
    divergence: Annotated[
        str,
        typer.Option(
            help="Measure distances by l2, unit_l2, cosine, rank, wasserstein or tokens.",
            metavar="DISTANCE",
            rich_help_panel=MEASURED,
        ),
    ] = "l2",
    permutations: Annotated[
        int,
        typer.Option(help="Draw at least N random splits into two sets.", metavar="N", min=1, rich_help_panel=ADVANCED),
    ] = 1000,
    edits: Annotated[
        str | None,
        typer.Option(
            help="Try these edits as explanations, comma-separated (holdfast list transforms).",
            metavar="NAMES",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    *,
    options: LocalOptions,
) -> int:
    """Test whether new images differ from reference images; exit 1 if so.

    holdfast drift photos/may photos/june --encoder timm:resnet50
    """
    from holdfast.commands.drift import drift  # loaded here, because it needs torch

    drifted = drift(
        before,
        after,
        encoder,
        alpha=alpha,
        sequential=sequential,
        divergence=divergence,
        permutations=permutations,
        **options,
        **flags.chosen(edits=edits),
    )
    show_result(drifted.result)
    if options["out"]:
        print(f"Report: {drifted.run.report()}")
    return int(drifted.moved)
