"""``holdfast corrupt``: images as a transform changes them, as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.cluster import cluster_of
from holdfast.cli.flags import Cluster, Seed, Workers

STOPPED = "the images written so far are kept; run the same command again to continue"


def command(
    images: Annotated[str, typer.Argument(help="A folder, an array file, tar shards, an address or source:name.")],
    transform: Annotated[
        list[str], typer.Option(help="As in fog-c:3 or jpeg:30+gamma:0.5 (holdfast list transforms); repeat it.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the images, one below it for each transform.")],
    size: Annotated[int, typer.Option(help="Height and width of the images, before they are changed.", min=1)] = 224,
    channels: Annotated[int, typer.Option(help="3, or 1 for gray images.")] = 3,
    limit: Annotated[int | None, typer.Option(help="At most so many images, chosen by the seed.", min=1)] = None,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(help="At most so many images at a time.", min=1)] = 64,
    cluster: Cluster = None,
    workers: Workers = None,
) -> None:
    """Write images as corruptions and edits change them, 8-bit PNG files in the folders they came from."""
    from holdfast.commands.corrupt import corrupt  # loaded here, because it needs torch

    manifests = corrupt(
        images,
        transform,
        out,
        size=size,
        channels=channels,
        limit=limit,
        seed=seed,
        batch_size=batch_size,
        cluster=cluster_of(cluster, workers, out),
        workers=workers,
        progress=True,
    )
    for manifest in manifests:
        print(
            f"{manifest.transform}: {len(manifest.files):,} images in {out / manifest.folder}, "
            f"changed by {manifest.change:.1f} of 255 levels on average",
            file=sys.stderr,
        )
