"""``holdfast drift``: whether images still come from where they came from."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result
from holdfast.core.options import LocalOptions


@flags.options(LocalOptions, "drift")
def command(
    before: Annotated[str, typer.Argument(help="The images that are as they should be: a folder or a reference.")],
    after: Annotated[str, typer.Argument(help="Those in question.")],
    encoder: Annotated[
        str | None,
        typer.Option(help="source:name, as in timm:resnet50 (default: both sets are files of embeddings)."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="The share of false alarms among sets that are alike.")] = 0.05,
    sequential: Annotated[
        bool, typer.Option("--sequential", help="Let the test decide that may be looked at after every image.")
    ] = False,
    divergence: Annotated[
        str, typer.Option(help="The distance of codes: l2, unit_l2, cosine, rank, wasserstein or tokens.")
    ] = "l2",
    permutations: Annotated[
        int, typer.Option(help="Random divisions into two sets; more where alpha needs more.", min=1)
    ] = 1000,
    edits: Annotated[
        str | None, typer.Option(help="What may explain the change, separated by commas (holdfast list transforms).")
    ] = None,
    *,
    options: LocalOptions,
) -> int:
    """Have the inputs moved? The exit status is 1 if they have; no labels are needed."""
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
