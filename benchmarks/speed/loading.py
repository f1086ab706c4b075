"""Loading images: a folder's first pass beside decoding alone, a second start, and whether training waits for pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from benchmarks.measure import arguments
from holdfast import data
from holdfast.core.encoder import Domain
from holdfast.core.geometry import Geometry
from holdfast.core.images import THREADS, Images
from holdfast.data.folder import find
from holdfast.data.reading import scan as encoded
from holdfast.data.reading.decode import decode, side_by_side
from holdfast.data.reading.scan_cache import ScanCache
from holdfast.encoders.architectures.resnet import SmallResNet
from holdfast.training.feed import Feed

BATCH = 256


def photographs(folder: Path, count: int, size: tuple[int, int], distinct: int = 64) -> None:
    """Write ``count`` JPEGs of this width and height, 1,000 to a folder; all but ``distinct`` are links to others."""
    rng, (width, height) = np.random.default_rng(0), size
    for row in range(count):
        path = folder / f"{row // 1000:04}" / f"{row:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if row < distinct:
            rough = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8))
            smooth = np.asarray(rough.resize(size, Image.Resampling.BICUBIC))
            noisy = smooth + rng.normal(0, 8, smooth.shape)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=85)
            os.utime(path, (1e9, 1e9))
        else:
            os.link(folder / "0000" / f"{row % distinct:07}.jpg", path)


def decoded(paths: list[Path], geometry: Geometry) -> None:
    """Decode all files by as many threads, and do nothing else."""
    for _ in side_by_side(lambda row: decode(paths[row].read_bytes(), 3, geometry), range(len(paths))):
        pass


def taken(work: Callable[[], object]) -> Float[np.ndarray, "2"]:
    """Return the seconds of ``work`` by the clock and by the processor."""
    began = np.array([perf_counter(), process_time()])
    work()
    return np.array([perf_counter(), process_time()]) - began


def growth(folder: Path, counts: list[int], width: int) -> None:
    """Print a first pass over photographs, judged, hashed and decoded, beside decoding alone, batch by batch in turns."""
    side = min(224, width * 3 // 4)
    domain, geometry = Domain((3, side, side)), Geometry(max(side, side * 8 // 7), (side, side))
    print(
        f"JPEGs of {width} x {width * 3 // 4} for encoders of {side} pixels, {THREADS} threads; rates beside decoding alone"
    )
    print("images | rate by clock, by processor | images a second | seconds of the start | of a second start")
    for count in counts:
        root = folder / f"photographs-{count}"
        photographs(root, count, (width, width * 3 // 4))
        paths = [root / path for path in find(root)]

        def start(root: Path = root) -> Images:
            images = data.load(str(root), domain, geometry, scan_cache=ScanCache.at(root / "files.index"))
            assert images.fingerprint
            return images

        first, again = taken(start), taken(start)
        images, alone, within = start(), np.zeros(2), first.copy()
        for row in range(0, count, BATCH):
            batch = range(row, min(row + BATCH, count))
            alone += taken(partial(decoded, [paths[row] for row in batch], geometry))
            within += taken(partial(images.source.read, batch))
        clock, processor = alone / within
        print(
            f"{count} | {clock:.2f}, {processor:.2f} | {count / within[0]:.0f} | {first[0]:.2f} | {again[0]:.2f}",
            flush=True,
        )


def mapped(folder: Path, count: int) -> None:
    """Print how long a memory-mapped array of ``count`` images takes to its fingerprint, at first and from then on."""
    path, domain = folder / "rows.npy", Domain((1, 28, 28))
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, 1, 28, 28))
    for row in range(0, count, 10_000):
        block = array[row : row + 10_000]
        block[:] = np.random.default_rng(row).integers(0, 256, block.shape)
    del array, block
    os.utime(path, (1e9, 1e9))

    def start() -> None:
        assert data.load(str(path), domain, scan_cache=ScanCache.at(folder / "rows.index")).fingerprint

    print(f"array of {count} images: first start {taken(start)[0]:.1f} s, second {taken(start)[0]:.1f} s", flush=True)


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


def feeding(folder: Path, width: int, steps: int) -> None:
    """Print how long training a small ResNet of 64 pixels waits for the pixels of JPEGs."""
    root, domain = folder / "feed", Domain((3, 64, 64))
    photographs(root, 64 * (steps + 8), (width, width * 3 // 4))
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
    print(f"feed: {waited:.2f} s waited beside {worked:.2f} s of {steps} steps, {waited / worked:.3f}")


def main() -> None:
    """Print everything for the numbers of files that were asked for."""
    more = {
        "--files": "numbers of files, such as 1000,10000,100000",
        "--width": "of the files in pixels, 500 by default",
        "--rows": "of an array, 100000 by default",
        "--thorough": "up to so many files are decoded before the first pass, 20000 by default",
    }
    given = arguments("loading images", more)
    counts, width = [int(count) for count in (given.files or "1000,4000").split(",")], int(given.width or 500)
    encoded.THOROUGH = int(given.thorough or encoded.THOROUGH)
    with TemporaryDirectory() as folder:
        mapped(Path(folder), int(given.rows or 100_000))
        growth(Path(folder), counts, width)
        feeding(Path(folder), width, steps=10)


if __name__ == "__main__":
    main()
