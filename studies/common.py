"""What the studies share: one JSON file for each case and seed, so that a study may be interrupted, and its tables."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite, nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import t as student

import holdfast as hf
from holdfast.core.files import write_whole
from holdfast.encoders.architectures.base import Architecture

Found = Mapping[str, float]
"""What was measured of a case, by quantity."""
Kept = float | str | list[float]
"""A number, the name of something, or the numbers of all images."""
Planned = Mapping[str, Sequence[Any]]
"""The cases of each part; as text they are called by their names."""
OPTIMISED: dict[str, Any] = {"optimiser": "adam:rate=0.001", "schedule": "constant"}


class Results:
    """What was found of each case with each seed, a JSON file each in ``folder``.

    ``size`` is what decides the numbers beside case and seed: a folder of another size is refused; None only reads.
    """

    def __init__(self, folder: Path, size: Mapping[str, Any] | None) -> None:
        self.folder, self.failed = folder, dict[str, str]()
        if size is None:  # only to be read
            return
        said, path = json.dumps(dict(size), indent=1, sort_keys=True), folder / "size.json"
        if path.exists() and path.read_text() != said:
            raise hf.HoldfastError(f"{folder} holds this study with other settings, see {path}; choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, said.encode())

    def path(self, case: str, seed: int) -> Path:
        """Return the file of a case and seed."""
        return self.folder / "results" / f"{plain(case)}-{seed}.json"

    def run(self, work: Mapping[str, Callable[[Any, int], Found]], planned: Planned, seeds: int) -> None:
        """Measure the planned cases of each part that there is ``work`` for, seed by seed, unless that is done."""
        for seed in range(seeds):
            for part, measure in work.items():
                for case in planned[part]:
                    self.fill(f"{part}: {case}", seed, partial(measure, case, seed))

    def fill(self, case: str, seed: int, measure: Callable[[], Mapping[str, Kept]]) -> None:
        """Measure and keep a case unless it is there already; remember why that is not possible."""
        path, name = self.path(case, seed), f"{case}, seed {seed}"
        if path.exists():
            return
        try:
            found = measure()
        except hf.HoldfastError as error:
            self.failed[name] = str(error)
            print(f"{name} has no result: {error}", file=sys.stderr, flush=True)
            return
        kept = {quantity: known(value) for quantity, value in found.items()}
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(kept, indent=1).encode())
        print(f"{name} is done", file=sys.stderr, flush=True)

    def has(self, part: str) -> bool:
        """Return whether anything was found of a part, with which the names of its cases begin."""
        return any((self.folder / "results").glob(f"{plain(part)}-*.json"))

    def found(self, case: str, seed: int) -> Found | None:
        """Return what was found, if anything was; numbers that are not finite are unknown."""
        path = self.path(case, seed)
        if not path.exists():
            return None
        read: dict[str, Any] = json.loads(path.read_text())
        return {
            quantity: nan if one is None else one for quantity, one in read.items() if not isinstance(one, list | str)
        }

    def series(self, case: str, seed: int) -> dict[str, list[float]]:
        """Return what was found image by image, by quantity."""
        path = self.path(case, seed)
        read: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return {
            quantity: [nan if value is None else value for value in values]
            for quantity, values in read.items()
            if isinstance(values, list)
        }

    def values(self, case: str, quantity: str, seeds: int) -> list[float]:
        """Return a quantity under each seed, nan where it is not known."""
        return [(self.found(case, seed) or {}).get(quantity, nan) for seed in range(seeds)]

    def missing(self, planned: Planned, seeds: int) -> Iterator[str]:
        """Yield a line on every case that has no result with some seed, and why if that is known."""
        yield from ("", "**Missing**", "")
        found_all = True
        for case in (f"{part}: {case}" for part, cases in planned.items() for case in cases):
            left = [seed for seed in range(seeds) if not self.path(case, seed).exists()]
            if left:
                found_all = False
                reasons = {self.failed[name] for seed in left if (name := f"{case}, seed {seed}") in self.failed}
                yield f"- {case}, seeds {', '.join(map(str, left))}: {'; '.join(sorted(reasons)) or 'not run'}"
        if found_all:
            yield "Nothing."


def known(value: Kept) -> float | str | list[float | None] | None:
    """Return what was found as JSON holds it: None where a number is not finite.

    Example:
        >>> known(nan), known([0.5, nan])
        (None, [0.5, None])
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [one if isfinite(one) else None for one in value]
    return value if isfinite(value) else None


def plain(case: str) -> str:
    """Return the name of a case as that of a file.

    Example:
        >>> plain("pretraining: simclr, corrupt-aug gamma:0.2")
        'pretraining-simclr-corrupt-aug-gamma-0.2'
    """
    return re.sub(r"[^\w.+]+", "-", case)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the known ``values`` and half the length of Student's 95% interval, nan where that is unknown.

    Example:
        >>> [round(number, 3) for number in interval([1.0, 2.0, 3.0, float("nan")])]
        [2.0, 2.484]
    """
    known = [value for value in values if isfinite(value)]
    if len(known) < 2:
        return (known[0] if known else nan), nan
    return mean(known), float(student.ppf(0.975, len(known) - 1)) * stdev(known) / len(known) ** 0.5


def said(values: Sequence[float], digits: int = 3, unit: str = "") -> str:
    """Return mean and interval in words.

    Example:
        >>> said([0.5, 0.7]), said([0.5]), said([])
        ('0.600 ± 1.271', '0.500 ± unknown', 'missing')
    """
    value, half = interval(values)
    if not isfinite(value):
        return "missing"
    return f"{value:.{digits}f} ± {f'{half:.{digits}f}' if isfinite(half) else 'unknown'}{unit}"


def drops(original: Sequence[float], changed: Sequence[float]) -> list[float]:
    """Return the relative drop, ``(original - changed) / original``, of each seed by itself.

    Example:
        >>> drops([0.8, 0.0], [0.4, 0.5])
        [0.5, nan]
    """
    return [(one - two) / one if one else nan for one, two in zip(original, changed, strict=True)]


def averaged(columns: Sequence[Sequence[float]]) -> list[float]:
    """Return each seed's mean over columns, nan where any of them is unknown.

    Example:
        >>> averaged([[1.0, 2.0], [3.0, float("nan")]])
        [2.0, nan]
    """
    return [mean(seed) for seed in zip(*columns, strict=True)]


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield from ("", f"**{title}**", "", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}")
    yield from (f"| {' | '.join(row)} |" for row in rows)


def publish(lines: Iterable[str], folder: Path) -> None:
    """Print the conclusion, and keep it beside what it follows from."""
    text = "\n".join(lines)
    write_whole(folder / "table.md", f"{text}\n".encode())
    print(text)


def parser(description: str | None, out: str) -> argparse.ArgumentParser:
    """Return what reads the arguments that every study takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("train", help="labelled images to train on")
    made.add_argument("test", help="labelled images to measure on")
    made.add_argument("--out", type=Path, default=Path(out))
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--epochs", type=int, default=20)
    made.add_argument("--images", type=int, default=10_000, help="of TRAIN: to train on, and as the bank")
    made.add_argument("--measured", type=int, default=1000, help="images of TEST")
    return made


def sized(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add what says how large inputs and batches are."""
    made.add_argument("--size", type=int, default=28, help="height and width of the images")
    made.add_argument("--channels", type=int, default=1)
    made.add_argument("--batch", type=int, default=256)
    made.add_argument("--quick", action="store_true", help="few images and epochs, unless they are said")
    return made


def read(made: argparse.ArgumentParser, quick: Mapping[str, Any], given: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; with ``--quick`` those that were not given are ``quick``."""
    if made.parse_args(given).quick:
        made.set_defaults(**quick)
    return made.parse_args(given)


def untrained(architecture: str, domain: hf.Domain, seed: int) -> hf.Encoder:
    """Return ``architecture`` with random weights."""
    torch.manual_seed(seed)
    return hf.Encoder(Architecture.read(architecture).build(domain).eval(), "random", domain)
