"""Files of transformed images: their content, names and records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.files import checksum
from holdfast.core.images import Images
from holdfast.core.records import SCHEMA_VERSION, Number, Record
from holdfast.transforms.base import Transform

MADE_FROM = "holdfast"
"""The text chunk of each PNG that holds its key."""
Batch = Sequence[tuple[int, bytes | None]]
"""Rows, each with what its file holds; None if there is none."""


class CorruptedImage(Record):
    """One file."""

    id: str
    file: str
    key: str
    """The hash of the original image, the transform, its version and the seed."""
    checksum: str
    change: Number
    """The mean difference from the original over all values, in 8-bit levels."""


class Manifest(Record):
    """What one folder of changed images holds."""

    schema_version: int = SCHEMA_VERSION
    transform: str
    versions: str
    seed: int
    shape: tuple[int, ...]
    name: str
    """Of the images."""
    original_images: str
    """The fingerprint of the images before they were changed."""
    changed_images: str
    """The fingerprint of the changed images, before they were rounded to 8 bits."""
    skipped: tuple[str, ...] = ()
    """Files that were asked for but could not be read, each with the reason."""
    change: Number
    """The mean over all images."""
    files: tuple[CorruptedImage, ...]
    provenance: dict[str, str]

    @property
    def folder(self) -> str:
        """Return the name of the folder that the files are in."""
        return self.files[0].file.partition("/")[0]


@dataclass(frozen=True, eq=False)
class Folder:
    """What becomes the files of one folder: images, what they are changed to, and their names without ending."""

    path: str
    names: Sequence[str]
    images: Images
    transform: Transform
    changed: Images

    def file(self, row: int) -> str:
        """Return the path of an image below the folder of all."""
        return f"{self.path}/{self.names[row]}.png"


def made_files(folder: Folder, batch: Batch) -> list[tuple[CorruptedImage, bytes | None]]:
    """Return what is said of each file, and its content where it is missing, damaged or another's: what engines map."""
    rows = [row for row, _ in batch]
    clean = folder.images.pixels(rows, dtype=torch.float64)
    # A digest may be that of a file, of which images of several sizes are made.
    size = "x".join(map(str, clean.shape[1:]))
    keys = {row: f"{folder.changed.digests[row].hex()}-{size}" for row in rows}
    whole = {row: content for row, content in batch if content is not None and _whole(content, keys[row])}
    pngs = dict[int, bytes]()
    if missing := [row for row in rows if row not in whole]:
        levels = (folder.changed.pixels(missing, dtype=torch.float64) * 255).round().byte()
        pngs = {row: _png(image, keys[row]) for row, image in zip(missing, levels, strict=True)}
    contents = whole | pngs
    return [
        (
            CorruptedImage(
                id=folder.images.ids[row],
                file=folder.file(row),
                key=keys[row],
                checksum=checksum(contents[row]),
                change=float((_levels(contents[row]) - before * 255).abs().mean()),
            ),
            pngs.get(row),
        )
        for row, before in zip(rows, clean, strict=True)
    ]


def _whole(content: bytes, key: str) -> bool:
    """Return whether a file is whole and is what ``key`` says."""
    from PIL import Image

    try:
        with Image.open(BytesIO(content), formats=["PNG"]) as image:
            right = image.info.get(MADE_FROM) == key
            image.load()
    except (OSError, SyntaxError, ValueError):
        return False
    return right


def _png(image: UInt8[Tensor, "channels height width"], key: str) -> bytes:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    values, file, chunks = image.permute(1, 2, 0).numpy(), BytesIO(), PngInfo()
    chunks.add_text(MADE_FROM, key)
    Image.fromarray(values[:, :, 0] if len(image) == 1 else values).save(file, "PNG", pnginfo=chunks)
    return file.getvalue()


def _levels(content: bytes) -> Tensor:
    from PIL import Image

    values = torch.from_numpy(np.array(Image.open(BytesIO(content)))).double()
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1)


def file_names_of(images: Images) -> list[str]:
    """Return a relative path without ending for each image: its id's, or below its label where ids name no folder."""
    loose = not any("/" in name for name in images.ids)
    folders = [""] * len(images)
    if loose and images.labels is not None:
        called = [plain(name) for name in images.classes]
        folders = [f"{called[int(label)] if called else int(label)}/" for label in images.labels]
    whole = ["/".join(plain(part) for part in PurePosixPath(name).parts if part != "/") for name in images.ids]
    short = [re.sub(r"\.[A-Za-z]\w*$", "", name) for name in whole]
    # Two images that differ in their endings alone keep them.
    often = Counter(name.lower() for name in short)
    names = [
        folder + (name if often[name.lower()] == 1 else full)
        for folder, name, full in zip(folders, short, whole, strict=True)
    ]
    if twice := [name for name, count in Counter(name.lower() for name in names).items() if count > 1]:
        raise HoldfastError(f"several images would be written as {twice[0]}.png; rename them")
    return names


def plain(text: str) -> str:
    """Return ``text`` as a file name that every system takes and that is not hidden."""
    return re.sub(r"[^\w.-]+", "_", text).lstrip(".") or "_"
