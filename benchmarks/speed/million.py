"""A run of a million images, start to end: clean codes beside plain forwards, each evaluation, the report, a second start.

    python -m benchmarks.speed.million SCRATCH --images 1000000
    python -m benchmarks.speed.million SCRATCH --images 10000 100000 1000000     # and how each part grows

SCRATCH is made, filled (about 1.2 GB for a million) and removed. Each start is a process of its own, whose largest resident
memory is printed: pages of mapped files count in it while they are there. All but what is said to be by the clock are
processor seconds, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from math import log
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast
from benchmarks.measure import busy
from holdfast import data
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.run_settings import RunSettings
from holdfast.data.reading import array_source
from holdfast.data.reading.array_source import ArraySource
from holdfast.data.reading.scan_cache import ScanCache
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run.engines.base import Local
from holdfast.run.shards import CleanCodes, clean_codes, compute

SIDE, FEATURES, BATCH, MADE = 28, 64, 256, 10_000
ONLY = ("displacement", "breakaway", "geometry", "spade")
SETTINGS: dict[str, dict[str, Any]] = {
    "displacement": {"attacks": ["pgd:steps=10"], "balls": ["linf:0.05"], "divergences": ["l2"], "samples": 1000},
    "breakaway": {
        "attacks": ["pgd:steps=10"],
        "pairwise": "pgd:steps=10",
        "balls": ["linf:0.05"],
        "divergences": ["l2"],
        "samples": 1000,
    },
    "geometry": {"samples": 10_000},
    "spade": {"samples": 2000, "subsets": 2},
}
"""1,000 images are attacked; uniformity and neighbours look at 10,000, spectra at 2,000, whatever the number of images."""
PLAIN = 10
"""One in so many batches is encoded plainly for the ratio, before and after: the others would take as long."""
Seconds = dict[str, float]


def encoder(light: bool) -> Encoder:
    """Return a CNN of 4 million operations an image, or a ``light`` one of 0.15 million, with random weights."""
    torch.manual_seed(0)
    small = [
        *(nn.Conv2d(1, 16, 4, stride=4), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(288, FEATURES)),
    ]
    layers = [
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, FEATURES)),
    ]
    return Encoder(nn.Sequential(*(small if light else layers)), "small CNN", Domain((1, SIDE, SIDE)))


def write_images(path: Path, count: int) -> None:
    """Write ``count`` images, smooth blobs in one of 50 arrangements with noise, as uint8 of shape (n, 1, 28, 28)."""
    generator = np.random.default_rng(0)
    coarse = torch.from_numpy(generator.uniform(size=(50, 1, 7, 7)).astype(np.float32))
    kinds = nn.functional.interpolate(coarse, (SIDE, SIDE), mode="bicubic").numpy()
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, 1, SIDE, SIDE))
    for start in range(0, count, MADE):
        size = min(MADE, count - start)
        chosen = kinds[generator.integers(0, len(kinds), size)] * generator.uniform(0.5, 1, (size, 1, 1, 1))
        noisy = chosen + generator.normal(0, 0.1, chosen.shape).astype(np.float32)
        array[start : start + size] = (noisy.clip(0, 1) * 255).astype(np.uint8)


def codes(scratch: Path, one: Encoder) -> Seconds:
    """Return what clean codes cost, kept in a store and mapped, and plain forwards over the same array around them."""
    store, pixels = Store(scratch / "run"), np.load(scratch / "images.npy", mmap_mode="r")
    scan_cache = ScanCache.at(scratch / "run" / "files.index")
    images = data.load(str(scratch / "images.npy"), one.domain, scan_cache=scan_cache)
    fingerprint = busy(lambda: images.fingerprint)
    scan_cache.save()
    population = Population(one, images, RunSettings(batch_size=BATCH))
    starts = range(0, len(pixels), BATCH * PLAIN)
    encoded = sum(min(BATCH, len(pixels) - start) for start in starts)

    def plain() -> None:
        with torch.no_grad():
            for start in starts:
                one.module(torch.from_numpy(pixels[start : start + BATCH]).float() / 255)

    def ours() -> None:
        asked, failed = [(CleanCodes(), range(len(images)))], dict[Observation, Exception]()
        compute(asked, population, store, Local(), lambda waiting: next(iter(waiting)), lambda *_: None, failed)
        assert not failed
        assert len(clean_codes(population, store)) == len(pixels)

    before, kept, after = busy(plain), busy(ours), busy(plain)
    floor = (before + after) / 2 * len(pixels) / encoded
    return {"fingerprint": fingerprint, "clean codes": kept, "ratio to plain forwards": kept / floor}


def evaluations(scratch: Path, one: Encoder) -> Seconds:
    """Return how long each evaluation takes, and then the report."""
    found = Seconds()
    for name in ONLY:
        since = process_time()
        run = _evaluated(one, scratch, [name])
        assert not run.failures, run.failures
        found[name] = process_time() - since
    return {**found, "report": busy(run.report)}


def again(scratch: Path, one: Encoder) -> Seconds:
    """Return how long the same run takes, once it is finished; no pixel is read."""

    def refuse(*_: object) -> Tensor:
        raise AssertionError("a pixel was read")

    ArraySource.read = array_source.row_digests = refuse  # type: ignore[assignment,method-assign,attr-defined]
    since = perf_counter()
    run = _evaluated(one, scratch, ONLY)
    assert len(list(run)) == len(ONLY)
    run.report()
    # From the start of the process, imports and all.
    return {"second start": process_time(), "second start, by the clock": perf_counter() - since}


def _evaluated(one: Encoder, scratch: Path, only: Sequence[str]) -> holdfast.EvaluatedRun:
    settings = {name: SETTINGS[name] for name in only}
    images = str(scratch / "images.npy")
    return holdfast.evaluate(one, images, only=only, suite="standard", settings=settings, out=scratch / "run")


STAGES = {"codes": codes, "evaluations": evaluations, "again": again}


def measured(scratch: Path, count: int, flags: Sequence[str]) -> Seconds:
    """Return what each part of a run of ``count`` images takes, each stage in a process of its own."""
    found = Seconds()
    scratch.mkdir(parents=True)
    try:
        write_images(scratch / "images.npy", count)
        for stage in STAGES:
            command = [sys.executable, "-m", "benchmarks.speed.million", str(scratch), "--stage", stage, *flags]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            for name, value in json.loads(said.splitlines()[-1]).items():
                found[name] = value
                print(f"{count:9,} {name:30} {value:9.2f}", flush=True)
        files = [path for path in (scratch / "run").rglob("*") if path.is_file()]
        found |= {"files": len(files), "MB of files": sum(path.stat().st_size for path in files) / 1e6}
        print(f"{count:9,} files of the run: {len(files)}, {found['MB of files']:.0f} MB", flush=True)
    finally:
        shutil.rmtree(scratch)
    return found


def main() -> None:
    """Print what every part takes, and the exponents with which it grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--images", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--light", action="store_true", help="a CNN of 0.15 million operations instead of 4")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.stage:
        found = STAGES[given.stage](given.scratch, encoder(given.light))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(json.dumps({**found, f"MB resident, {given.stage}": memory}))
        return
    print(f"torch {torch.__version__}, {platform.machine()}, {given.threads} threads")
    flags = ["--threads", str(given.threads), *(["--light"] if given.light else [])]
    grown = {count: measured(given.scratch / str(count), count, flags) for count in given.images}
    for small, large in zip(given.images, given.images[1:], strict=False):
        for name, value in grown[large].items():
            if value > 0 and grown[small][name] > 0:
                exponent = log(value / grown[small][name]) / log(large / small)
                print(f"{small:,} to {large:,}: {name} grows with exponent {exponent:.2f}")


if __name__ == "__main__":
    main()
