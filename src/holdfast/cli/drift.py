"""``holdfast drift``: whether images still come from where they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.flags import Arch, Budget, Seed, Size, TrustRemoteCode, Workers, given
from holdfast.cli.one_result import show_result

COMPUTES = "How it is computed"


def command(
    before: Annotated[str, typer.Argument(help="The images that are as they should be: a folder or a reference.")],
    after: Annotated[str, typer.Argument(help="Those in question.")],
    encoder: Annotated[str, typer.Option(help="source:name, as in timm:resnet50: whose codes are compared.")],
    alpha: Annotated[float, typer.Option(help="The share of false alarms among sets that are alike.")] = 0.05,
    sequential: Annotated[
        bool, typer.Option("--sequential", help="Let the test decide that may be looked at after every image.")
    ] = False,
    divergence: Annotated[str, typer.Option(help="The distance of codes: l2, unit_l2 or cosine.")] = "l2",
    permutations: Annotated[int, typer.Option(help="Random divisions of all images into two sets.", min=1)] = 1000,
    edits: Annotated[
        str | None, typer.Option(help="What may explain the change, separated by commas (holdfast list transforms).")
    ] = None,
    seed: Seed = 0,
    arch: Arch = None,
    size: Size = None,
    trust_remote_code: TrustRemoteCode[bool] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.", rich_help_panel=COMPUTES)] = "cpu",
    precision: Annotated[
        str, typer.Option(help="float32, float64, bfloat16, float16.", rich_help_panel=COMPUTES)
    ] = "float32",
    batch_size: Annotated[int, typer.Option(help="At most so many images at a time.", rich_help_panel=COMPUTES)] = 256,
    budget: Budget = None,
    workers: Workers = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run and its report; running again continues it.")
    ] = None,
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
        **given(edits=edits),
    )
    show_result(drifted.result)
    if out:
        print(f"Report: {drifted.run.report()}")
    return int(drifted.moved)
