"""``holdfast threshold``: recommend a similarity threshold for matching."""

from __future__ import annotations

from math import isnan
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result
from holdfast.core.options import MEASURED, LocalOptions


@flags.options(LocalOptions, "threshold")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str | None] = None,
    rate: Annotated[
        float,
        typer.Option(
            help="Allow this fraction of pairs of different images to match.", metavar="RATE", rich_help_panel=MEASURED
        ),
    ] = 0.001,
    rates: Annotated[
        list[float] | None,
        typer.Option(
            help="Also report this rate (default: 0.01, 0.001, 0.0001); repeatable.",
            metavar="RATE",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    edits: Annotated[
        str | None,
        typer.Option(
            help="Make copies by these edits, comma-separated (holdfast list transforms).",
            metavar="NAMES",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    eps: Annotated[
        str | None,
        flags.like(
            flags.Eps,
            help="Bound the attacker by R in linf, as in 8/255.",
            show_default="from data",
        ),
    ] = None,
    ball: flags.Ball = None,
    attack: Annotated[
        str, typer.Option(help="Search by this attack, as in pgd:steps=40.", metavar="ATTACK", rich_help_panel=MEASURED)
    ] = "adaptive",
    samples: Annotated[
        int, typer.Option(help="Edit and attack N images.", metavar="N", min=1, rich_help_panel=MEASURED)
    ] = 200,
    *,
    options: LocalOptions,
) -> int:
    """Recommend a similarity threshold for matching.

    The result includes edited copies that the threshold misses, and matches that an attacker can force or break.
    """
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
    print(f"Recommended threshold: {'none (see above)' if isnan(recommended) else f'{recommended:.4f}'}")
    if options["out"]:
        print(f"Report: {thresholds.run.report()}")
    return int(thresholds.result.planned is not None)  # a spent budget left out edited or attacked copies
