"""``holdfast threshold``: where to put the threshold of verification or deduplication."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.flags import Arch, Budget, Images, Seed, Size, TrustRemoteCode, Workers, given
from holdfast.cli.one_result import show_result

COMPUTES = "How it is computed"


def command(
    encoder: Annotated[str, typer.Argument(help="source:name, as in timm:resnet50.")],
    images: Images[str],
    rate: Annotated[float, typer.Option(help="The share of pairs of different images that may match.")] = 0.001,
    rates: Annotated[list[float] | None, typer.Option(help="Further rates, of the table; repeatable.")] = None,
    edits: Annotated[
        str | None, typer.Option(help="What makes everyday copies, separated by commas (holdfast list transforms).")
    ] = None,
    eps: Annotated[
        str | None, typer.Option(help="Radius of the attacker's linf ball (default: one that some images survive).")
    ] = None,
    ball: Annotated[str | None, typer.Option(help="Any ball of the attacker, as in l2:0.5.")] = None,
    attack: Annotated[str, typer.Option(help="How the attacker searches, as in pgd:steps=40.")] = "adaptive",
    samples: Annotated[int, typer.Option(help="How many images are edited and attacked.", min=1)] = 200,
    limit: Annotated[int | None, typer.Option(help="At most so many images, chosen by the seed.", min=1)] = None,
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
    """Recommend a threshold of similarity, and say which copies it misses and what an attacker makes of it."""
    from holdfast.commands.threshold import threshold  # loaded here, because it needs torch

    thresholds = threshold(
        encoder,
        images,
        rate=rate,
        eps=eps,
        ball=ball,
        attack=attack,
        samples=samples,
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
        **given(rates=rates, edits=edits),
    )
    show_result(thresholds.result)
    print(f"Recommended threshold: {thresholds.recommended:.4f}")
    if out:
        print(f"Report: {thresholds.run.report()}")
    return 0
