"""Where a run's processor time goes: by stage, observation and evaluation, in one process.

    python -m benchmarks.speed.questions
    python -m benchmarks.speed.questions python:examples.real_encoder:small --images PHOTOS

Times are processor seconds (user + system) of this thread and those that it waits for. A part that several evaluations
share is listed once, with the number of encoders and rows it was computed for.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from time import perf_counter, process_time
from typing import Any

import torch

import holdfast as hf
from holdfast.run import computing, conclusions, shards

WIDTH = 110
"""Longest name in print."""


class Clock:
    """Processor seconds by name; what runs inside another part counts for itself alone."""

    def __init__(self) -> None:
        self.spent: dict[tuple[str, str], float] = defaultdict(float)
        self.calls: dict[tuple[str, str], int] = defaultdict(int)
        self.inside = [0.0]

    @contextmanager
    def __call__(self, stage: str, name: str, count: int = 1) -> Iterator[None]:
        """Add the time of this block to ``name``."""
        began = process_time()
        self.inside.append(0.0)
        try:
            yield
        finally:
            spent = process_time() - began
            self.spent[stage, name] += spent - self.inside.pop()
            self.calls[stage, name] += count
            self.inside[-1] += spent


def timed(function: Callable[..., Any], clock: Clock, stage: str, what: Callable[[Any], tuple[str, int]]) -> Any:
    """Return ``function`` of (population, task), with its time told to ``clock``."""

    @wraps(function)
    def measured(population: Any, task: Any) -> Any:
        name, count = what(task)
        with clock(stage, name, count):
            return function(population, task)

    return measured


def main() -> None:
    """Run one evaluation and print a line per part, the longest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*")
    parser.add_argument("--images")
    parser.add_argument("--bank")
    parser.add_argument("--only", default=())
    parser.add_argument("--most", type=int, default=60, help="lines to print")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    clock = Clock()
    shards.observe_shard = timed(shards.observe_shard, clock, "observe", lambda shard: (repr(shard[0]), len(shard[1])))
    computing.tensors_of = timed(computing.tensors_of, clock, "fit", lambda fit: (repr(fit), 1))
    conclusions.conclude = timed(conclusions.conclude, clock, "conclude", lambda task: (task[0].name, 1))
    began, wall = process_time(), perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf.evaluate(asked.encoders, asked.images, bank=asked.bank, only=asked.only, workers=1, progress=False)
    total, wall = process_time() - began, perf_counter() - wall
    stages: dict[str, float] = defaultdict(float)
    for (stage, name), spent in sorted(clock.spent.items(), key=lambda item: -item[1])[: asked.most]:
        print(f"{spent:8.2f}  {stage:8}  {clock.calls[stage, name]:6}  {name[:WIDTH]}")
    for (stage, _), spent in clock.spent.items():
        stages[stage] += spent
    stages["rest"] = total - sum(stages.values())
    print(", ".join(f"{stage} {spent:.1f}" for stage, spent in stages.items()), f"of {total:.1f} s; clock {wall:.1f} s")


if __name__ == "__main__":
    main()
