"""``holdfast corrupt``: write transformed copies of images."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.cli.flags import flag
from holdfast.core.options import INPUT, MEASURED, OUTPUT, CorruptOptions

STOPPED = "images written so far are kept; run the same command again to continue"


@flags.options(CorruptOptions, "corrupt")
def command(
    images: str = typer.Argument(..., help="Folder, array file, tar shards, URL or source:name.", metavar="IMAGES"),
    transform: list[str] = flag(
        ..., "Apply fog-c:3, jpeg:30+gamma:0.5 ... (holdfast list transforms); repeatable.", MEASURED, "TRANSFORM"
    ),
    out: Path = flag(..., "Write the images here, one subfolder per transform.", OUTPUT, "DIR"),
    size: int = flag(224, "Resize images to N × N pixels first.", INPUT, "N", min=1),
    channels: flags.Channels[int] = 3,
    *,
    options: CorruptOptions,
) -> None:
    """Write edited or corrupted copies of images.

    The copies are 8-bit PNG files and keep their folders of classes.

    holdfast corrupt photos/ --transform fog-c:3 --transform rotation:5 --out changed
    """
    from holdfast.commands.corrupt import corrupt  # loaded here, because it needs torch

    options["cluster"] = cluster_of(options["cluster"], options["workers"], out)
    manifests = corrupt(images, transform, out, size=size, channels=channels, **options)
    for manifest in manifests:
        print(
            f"{manifest.transform}: {len(manifest.files):,} images in {out / manifest.folder}, "
            f"changed by {manifest.change:.1f} of 255 levels on average",
            file=sys.stderr,
        )
