"""Loading images: a folder's first pass beside decoding alone, a second start, and whether training waits for pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.measure import arguments, ratio
from holdfast import data
from holdfast.core.encoder import Domain, Geometry
from holdfast.core.images import Images
from holdfast.data.content import side_by_side
from holdfast.data.decode import decode
from holdfast.data.folder import find
from holdfast.data.remembered import Remembered
from holdfast.encoders.architectures.resnet import SmallResNet
from holdfast.training.feed import Feed

BATCH = 256


def photographs(folder: Path, count: int, side: int, distinct: int = 64) -> None:
    """Write ``count`` JPEGs of ``side`` x ``side`` pixels, 1,000 to a folder; all but ``distinct`` are links to others."""
    rng = np.random.default_rng(0)
    for row in range(count):
        path = folder / f"{row // 1000:04}" / f"{row:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if row < distinct:
            rough = Image.fromarray(rng.integers(0, 256, (side // 8, side // 8, 3)).astype(np.uint8))
            rough.resize((side, side), Image.Resampling.BICUBIC).save(path, quality=90)
            os.utime(path, (1e9, 1e9))
        else:
            os.link(folder / "0000" / f"{row % distinct:07}.jpg", path)


def passed(images: Images) -> None:
    """Read all pixels once, a batch at a time."""
    for start in range(0, len(images), BATCH):
        images.source.read(range(start, min(start + BATCH, len(images))))


def decoded(paths: list[Path], geometry: Geometry) -> None:
    """Decode all files by as many threads, and do nothing else."""
    for _ in side_by_side(lambda row: decode(paths[row], 3, geometry), range(len(paths))):
        pass


def growth(folder: Path, counts: list[int], side: int, repeats: int) -> None:
    """Print the first pass, and a second start, beside decoding alone."""
    domain, geometry = Domain((3, side, side)), Geometry(side, (side, side))
    print(f"{side} px | images | first pass, rate beside decoding alone | images a second | second start, seconds")
    for count in counts:
        root = folder / f"{side}-{count}"
        photographs(root, count, side)
        paths = [root / path for path in find(root)]
        index = root / "files.index"

        def first(root: Path = root, index: Path = index) -> None:
            index.unlink(missing_ok=True)
            images = data.load(str(root), domain, geometry, remembered=Remembered.at(index))
            assert images.fingerprint
            passed(images)

        times = ratio(first, lambda paths=paths: decoded(paths, geometry), "cpu", repeats)
        began = perf_counter()
        assert data.load(str(root), domain, geometry, remembered=Remembered.at(index)).fingerprint
        print(f"{count} | {1 / times[0]:.2f} | {count / times[1]:.0f} | {perf_counter() - began:.2f}", flush=True)


def waiting(
    batches: Iterator[tuple[Tensor, Tensor]], step: Callable[[Tensor], object], steps: int
) -> tuple[float, float]:
    """Return the seconds spent waiting for pixels and those of ``steps`` steps, the first batch left out."""
    _, pixels = next(batches)
    waited = worked = 0.0
    for _ in range(steps):
        began = perf_counter()
        step(pixels)
        done = perf_counter()
        _, pixels = next(batches)
        waited, worked = waited + perf_counter() - done, worked + done - began
    return waited, worked


def feeding(folder: Path, side: int, steps: int) -> None:
    """Print which share of training a small ResNet of 64 pixels waits for the pixels of JPEGs."""
    root, domain = folder / "feed", Domain((3, 64, 64))
    photographs(root, 64 * (steps + 8), side)
    images = data.load(str(root), domain, Geometry(72, (64, 64)))
    encoder = SmallResNet().build(domain)
    optimiser = torch.optim.SGD(encoder.parameters(), 1e-3)

    def step(pixels: Tensor) -> None:
        optimiser.zero_grad()
        encoder(pixels).square().mean().backward()
        optimiser.step()

    feed = Feed(images, domain, 64, 0, torch.device("cpu"))
    feed.held = None  # as for images that do not fit into memory
    waited, worked = waiting(feed.epoch(0), step, steps)
    print(f"feed, {side} px: {waited:.2f} s waited beside {worked:.2f} s of {steps} steps, {waited / worked:.3f}")


def main() -> None:
    """Print everything for the numbers of files that were asked for."""
    given = arguments("loading images", {"--files": "numbers of files, such as 1000,10000,100000", "--side": "pixels"})
    counts = [int(count) for count in (given.files or "1000,4000").split(",")]
    side = int(given.side or 224)
    with TemporaryDirectory() as folder:
        growth(Path(folder), counts, side, given.repeats)
        feeding(Path(folder), side, steps=10)


if __name__ == "__main__":
    main()
