"""``holdfast threshold``: where to put the threshold of verification or deduplication."""

from __future__ import annotations

from math import isnan
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result
from holdfast.core.options import LocalOptions


@flags.options(LocalOptions, "threshold")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str | None] = None,
    rate: Annotated[float, typer.Option(help="The share of pairs of different images that may match.")] = 0.001,
    rates: Annotated[list[float] | None, typer.Option(help="Further rates, of the table; repeatable.")] = None,
    edits: Annotated[
        str | None, typer.Option(help="What makes everyday copies, separated by commas (holdfast list transforms).")
    ] = None,
    eps: Annotated[
        str | None,
        flags.like(
            flags.Eps,
            help="Radius of the attacker's linf ball, as in 8/255.",
            show_default="one that some images survive",
        ),
    ] = None,
    ball: flags.Ball = None,
    attack: Annotated[str, typer.Option(help="How the attacker searches, as in pgd:steps=40.")] = "adaptive",
    samples: Annotated[int, typer.Option(help="How many images are edited and attacked.", min=1)] = 200,
    *,
    options: LocalOptions,
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
        **options,
        **flags.chosen(rates=rates, edits=edits),
    )
    show_result(thresholds.result)
    recommended = thresholds.recommended
    print(f"Recommended threshold: {'none, see above' if isnan(recommended) else f'{recommended:.4f}'}")
    if options["out"]:
        print(f"Report: {thresholds.run.report()}")
    return int(thresholds.result.planned is not None)  # a spent budget left out edited or attacked copies
