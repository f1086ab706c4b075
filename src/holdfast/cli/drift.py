"""``holdfast drift``: whether images still come from where they came from."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result


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
    limit: Annotated[
        int | None, flags.like(flags.Limit, help="At most so many images of each set, chosen by the seed.")
    ] = None,
    seed: flags.Seed = 0,
    arch: flags.Arch = None,
    size: flags.Size = None,
    trust_remote_code: flags.TrustRemoteCode[bool] = False,
    device: flags.Device = "cpu",
    precision: flags.Precision = "float32",
    batch_size: flags.BatchSize = 256,
    budget: flags.Budget = None,
    workers: flags.Workers = "auto",
    out: flags.RunFolder = None,
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
        limit=limit,
        seed=seed,
        arch=arch,
        size=size,
        trust_remote_code=trust_remote_code,
        device=device,
        precision=precision,
        batch_size=batch_size,
        budget=budget,
        workers=workers,
        out=out,
        progress=True,
        **flags.chosen(edits=edits),
    )
    show_result(drifted.result)
    if out:
        print(f"Report: {drifted.run.report()}")
    return int(drifted.moved)
