"""``holdfast lengths``: how long the codes of images are."""

from __future__ import annotations

from holdfast.cli import flags


def command(encoder: flags.Encoder, images: flags.Images[str]) -> None:
    """Say how long the codes of images are."""
    from holdfast.commands.lengths import lengths

    values = lengths(encoder, images)
    print(f"median {values.median():.3g} over {len(values):,} images")
