"""How right the time left is: what a run of the built-in encoders foretells as it goes, beside what it took.

    python -m benchmarks.speed.forecast --limit 100 --processor
    python -m benchmarks.speed.forecast --limit 100 --workers 2
    python -m benchmarks.speed.forecast --limit 100 --budget 60

The promise is a factor of 1.5 after the first minute, for as long as a tenth of the run is left.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time

import torch

from holdfast.run import computing, shards
from holdfast.run import forecast as deadline
from holdfast.run.request import Request
from holdfast.run.run import Run

MOMENTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the run at which the forecast is read."""
FIRST = 60.0
"""Seconds after which it should be right."""
PROMISE = 1.5


class Told:
    """A display that hands on the seconds left."""

    def __init__(self, note: Callable[[float], None]) -> None:
        self.note = note

    def __call__(self, doing: str, share: float, seconds: float, /) -> None:
        """Hand on the seconds left."""
        self.note(seconds)

    def say(self, sentence: str, /) -> None:
        """Say nothing."""


def main() -> None:
    """Run once and print what was foretold when."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=100, help="images")
    parser.add_argument("--only", default=None, help="evaluations, all by default")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    parser.add_argument("--budget", type=float, default=None, help="seconds")
    parser.add_argument("--processor", action="store_true", help="count the processor's seconds: on a busy machine")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    clock = process_time if asked.processor else monotonic
    for module in (computing, deadline, shards):
        vars(module)["monotonic"] = clock
    with TemporaryDirectory() as folder:
        told, began, said = run(asked, Path(folder), clock)
    show(told, began, said)


def run(
    asked: argparse.Namespace, folder: Path, clock: Callable[[], float]
) -> tuple[list[tuple[float, float]], float, str]:
    """Return the moments at which something was told with the seconds left then, the beginning, and what came of it."""
    told: list[tuple[float, float]] = []
    flags = {"limit": asked.limit, "workers": asked.workers, "budget": asked.budget, "out": str(folder)}
    flags |= {"only": asked.only.split(",")} if asked.only else {}
    began = clock()
    flags = {name: value for name, value in flags.items() if value is not None}
    with Run.open("evaluate", {**flags, "progress": False}, mark=None) as opened:
        shown = replace(opened, show=Told(lambda left: told.append((clock(), left))))
        results, failures = shown.answer(Request.of(**flags))
    partial = sum(result.planned is not None for result in results)
    return told, began, f"{len(results) - partial} cells, {partial} partial, {len(failures)} missing"


def show(told: list[tuple[float, float]], began: float, said: str) -> None:
    """Print the forecast at some moments, and how far off it was at worst."""
    end = told[-1][0]
    took = end - began
    known = [(now, left) for now, left in told if left < inf]
    print(f"{said}; {took:.0f} s, the first forecast after {known[0][0] - began:.0f} s")
    print("| after s | foretold left | was left | factor |\n|---|---|---|---|")
    for moment in MOMENTS:
        now, left = next(((now, left) for now, left in known if now - began >= moment * took), known[-1])
        print(f"| {now - began:.0f} | {left:.0f} | {end - now:.0f} | {factor(left, end - now):.2f} |")
    late = [(factor(left, end - now), now) for now, left in known if now - began >= FIRST and end - now >= 0.1 * took]
    if not late:
        print(f"too short to tell: the promise holds after {FIRST:g} s")
        return
    worst, when = max(late)
    kept = sum(one <= PROMISE for one, _ in late) / len(late)
    print(f"after {FIRST:g} s: at worst {worst:.2f} (at {when - began:.0f} s);", end=" ")
    print(f"within {PROMISE} at {kept:.0%} of {len(late)} moments")


def factor(foretold: float, was: float) -> float:
    """Return how far apart the two are.

    Example:
        >>> factor(10.0, 20.0), factor(30.0, 20.0)
        (2.0, 1.5)
    """
    least, most = sorted((max(foretold, 1e-9), max(was, 1e-9)))
    return most / least


if __name__ == "__main__":
    main()
