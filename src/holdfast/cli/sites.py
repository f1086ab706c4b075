"""``holdfast sites``: write the map that takes the site out of embeddings."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.terminal import show_result
from holdfast.core.options import INPUT, MEASURED, OUTPUT, LocalOptions


@flags.options(LocalOptions, "sites")
def command(
    encoder: flags.Encoder,
    tags: Annotated[
        str,
        typer.Option(
            help="CSV or JSON file of sites: id,site or id,site,group.", metavar="FILE", rich_help_panel=INPUT
        ),
    ],
    images: flags.Images[str | None] = None,
    repair: Annotated[
        str, typer.Option(help="Fit this map: centre, whiten or combat.", metavar="NAME", rich_help_panel=MEASURED)
    ] = "combat",
    samples: Annotated[
        int,
        typer.Option(help="Fit to one half of N images, measure the other.", metavar="N", rich_help_panel=MEASURED),
    ] = 2000,
    map: Annotated[
        str | None,
        typer.Option(help="Write the map to this .safetensors file.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
    *,
    options: LocalOptions,
) -> int:
    """Fit the map that takes the site out of embeddings, and measure it on held-out images.

    holdfast sites timm:resnet50 --images 'photos?labels=folders' --tags sites.csv --map map.safetensors
    """
    from holdfast.commands.sites import sites  # loaded here, because it needs torch

    repaired = sites(encoder, images, tags=tags, repair=repair, map=map, samples=samples, **options)
    show_result(repaired.result)
    if map:
        print(f"Map: {map}")
    if options["out"]:
        print(f"Report: {repaired.run.report()}")
    return int(repaired.result.planned is not None)
