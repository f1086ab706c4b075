"""Picture files of many shapes, and how far embeddings of them are from what a library makes of the same pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core.encoder import Encoder
from holdfast.data import load as load_images

SHAPES = ((300, 200), (200, 300), (97, 131), (224, 224), (500, 64), (33, 33), (225, 301), (640, 480))
"""Width and height."""


def write_pictures(folder: Path, mode: str = "RGB", shapes: Sequence[tuple[int, int]] = SHAPES) -> Path:
    """Write one picture of each shape, with edges, colour gradients and noise, into ``folder``."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for index, (width, height) in enumerate(shapes):
        y, x = np.mgrid[:height, :width]
        planes = [255 * x / width, 255 * y / height, 127 + 120 * np.sin(x / 5 + y / 9)]
        values = np.stack(planes, -1) + rng.normal(0, 25, (height, width, 3))
        values[height // 4 : height // 2, width // 5 : width // 3] = (250, 20, 90)
        picture = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
        picture.convert(mode).save(folder / f"{index}.png")
    return folder


def opened(folder: Path) -> list[Any]:
    """Return the pictures of ``folder`` as Pillow has them, in the order of their names."""
    from PIL import Image

    return [Image.open(path) for path in sorted(folder.iterdir())]


def embeddings(encoder: Encoder, folder: Path) -> Tensor:
    """Return what ``encoder`` makes of the files in ``folder``, one row each."""
    images = load_images(str(folder), encoder.domain, encoder.geometry)
    pixels = images.pixels(range(len(images)))
    with torch.no_grad():
        return torch.cat([encoder(pixels[row : row + 1]) for row in range(len(pixels))])


def distance(ours: Tensor, theirs: Iterable[Tensor] | Callable[[], Iterable[Tensor]]) -> float:
    """Return the largest relative difference of a row of ``ours`` from that of ``theirs``."""
    expected = torch.cat(list(theirs() if callable(theirs) else theirs)).flatten(1)
    return float(((ours - expected).norm(dim=1) / expected.norm(dim=1)).max())
