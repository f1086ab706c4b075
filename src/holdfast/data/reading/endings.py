"""Which files are read as images, by the endings of their names, and which images are not and counted instead."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import PurePosixPath

from holdfast.core.errors import HoldfastError, HoldfastWarning

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif"),
    *(".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Endings of the images that are read, where the installed pillow decodes them."""
NOT_READ = (
    *(".heic", ".heif", ".hif", ".jxl", ".jxr", ".svg", ".eps", ".psd", ".xcf", ".ico", ".tga", ".dds", ".exr", ".hdr"),
    *(".pcx", ".qoi", ".pfm", ".dib", ".dcm", ".fits", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"),
)
"""Endings of images that are not read: no safe decoder is installed with Holdfast."""


def ending(name: str) -> str:
    """Return the last ending of a name.

    Example:
        >>> ending("photos/left.HEIC")
        '.heic'
    """
    return PurePosixPath(name).suffix.lower()


def report(where: str, endings: Counter[str], read: int, kind: str = "files") -> None:
    """Say of how many images no pixel is read, by their ``endings``.

    Args:
        where: the name of the folder or tar.
        endings: how many names have each ending; only those in ``NOT_READ`` are counted.
        read: how many images are read.
        kind: what the images are: files or members.

    Raises:
        HoldfastError: no image is read.
    """
    counts = {key: count for key, count in endings.most_common() if key in NOT_READ}
    listed = ", ".join(f"{count:,} {key}" for key, count in counts.items())
    if not read:
        there = f" It has {listed}, which are not read." if counts else ""
        raise HoldfastError(f"{where} holds no images; expected {kind} ending in {', '.join(SUFFIXES)}.{there}")
    if counts:
        warnings.warn(
            f"{where}: {sum(counts.values()):,} images are not read, because of their format ({listed}). "
            "Convert them to PNG or JPEG to measure them",
            HoldfastWarning,
            stacklevel=3,
        )
