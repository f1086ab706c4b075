"""Interleaved timing: what is measured and its floor take turns, so that a drifting machine slows both alike."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time

import torch


def arguments(description: str, more: dict[str, str] | None = None) -> argparse.Namespace:
    """Return ``--device``, ``--threads``, ``--repeats`` and ``more`` flags with their help, with the threads set."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    for flag, meaning in (more or {}).items():
        parser.add_argument(flag, help=meaning)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    place = (
        torch.cuda.get_device_name() if given.device.startswith("cuda") else platform.processor() or platform.machine()
    )
    print(f"{description}\ntorch {torch.__version__}, {place}, {given.threads} threads, median of {given.repeats}")
    return given


def seconds(work: Callable[[], object], device: str) -> float:
    """Return how long ``work`` takes, the device's queue included."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return perf_counter() - start


def busy(work: Callable[[], object]) -> float:
    """Return the processor seconds of ``work``, which other work on the machine changes less than it changes time."""
    since = process_time()
    work()
    return process_time() - since


def ratio(
    work: Callable[[], object], floor: Callable[[], object], device: str, repeats: int
) -> tuple[float, float, float]:
    """Return the median ratio of ``work`` to ``floor`` over alternating runs, and the median seconds of each."""
    work(), floor()
    pairs = [(seconds(work, device), seconds(floor, device)) for _ in range(repeats)]
    return median(a / b for a, b in pairs), median(a for a, _ in pairs), median(b for _, b in pairs)
