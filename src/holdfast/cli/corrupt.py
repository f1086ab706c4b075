"""``holdfast corrupt``: images as a transform changes them, as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.core.options import CorruptOptions

STOPPED = "the images written so far are kept; run the same command again to continue"


@flags.options(CorruptOptions, "corrupt")
def command(
    images: Annotated[str, typer.Argument(help=flags.like(flags.Images).help)],
    transform: Annotated[
        list[str], typer.Option(help="As in fog-c:3 or jpeg:30+gamma:0.5 (holdfast list transforms); repeat it.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the images, one below it for each transform.")],
    size: Annotated[int, typer.Option(help="Height and width of the images, before they are changed.", min=1)] = 224,
    channels: flags.Channels[int] = 3,
    *,
    options: CorruptOptions,
) -> None:
    """Write images as corruptions and edits change them, 8-bit PNG files in the folders they came from."""
    from holdfast.commands.corrupt import corrupt  # loaded here, because it needs torch

    options["cluster"] = cluster_of(options["cluster"], options["workers"], out)
    manifests = corrupt(
        images,
        transform,
        out,
        size=size,
        channels=channels,
        **options,
    )
    for manifest in manifests:
        print(
            f"{manifest.transform}: {len(manifest.files):,} images in {out / manifest.folder}, "
            f"changed by {manifest.change:.1f} of 255 levels on average",
            file=sys.stderr,
        )
