"""What a killed and a slow rank cost: time until rank 0 has everything, relative to the time with eight healthy ranks.

Eight ranks are forked on one machine. In the second run, one is killed after two seconds and another one is stopped for
nine tenths of every second. The values of both runs are compared.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter, sleep

import torch

from benchmarks.measure import arguments
from benchmarks.speed.engines import Work, attacks, certificates, compute
from holdfast.measure.store import Store
from holdfast.run.engines.ranks import LEASES, Ranks
from holdfast.run.shards import read_observed

COUNT, KILLED, SLOWED = 8, 3, 5
KILLED_AFTER = 2.0
RUNNING, STOPPED = 0.1, 0.9
"""Seconds for which the slow rank runs and stands still, in turns."""


def timed(work: Work, folder: Path, disturbed: bool) -> tuple[float, dict[str, torch.Tensor]]:
    """Seconds until rank 0 has everything, and what was observed."""
    started = [multiprocessing.get_context("fork").Process(target=one, args=(work, folder, k)) for k in range(COUNT)]
    over, began = Event(), perf_counter()
    for process in started:
        process.start()
    pids = [process.pid for process in started]
    disturbing = [Thread(target=kill, args=(pids[KILLED],)), Thread(target=slow, args=(pids[SLOWED], over))]
    for thread in disturbing[: 2 * disturbed]:
        thread.start()
    started[0].join()
    spent = perf_counter() - began
    over.set()
    for thread in disturbing[: 2 * disturbed]:
        thread.join()
    for process in started:
        process.kill()
        process.join()
    observation, population = work
    return spent, read_observed(observation, population, observation.rows(population), Store(folder))


def one(work: Work, folder: Path, rank: int) -> None:
    """Compute as one of the ranks."""
    compute(work, Ranks(rank, COUNT, folder / LEASES), folder)


def kill(pid: int) -> None:
    """Kill a rank after a while, as a machine that fails does."""
    sleep(KILLED_AFTER)
    os.kill(pid, signal.SIGKILL)


def slow(pid: int, over: Event) -> None:
    """Let a rank run for a tenth of the time."""
    with suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            sleep(STOPPED)
            os.kill(pid, signal.SIGCONT)
            sleep(RUNNING)


def main() -> None:
    """Print the ratio for attacks and for certificates."""
    given = arguments("eight ranks, one killed and one slow, against eight healthy ones")
    for what, work in (("attacks", attacks(4)), ("certificates", certificates(2))):
        for _ in range(given.repeats):
            with TemporaryDirectory() as first, TemporaryDirectory() as second:
                healthy, expected = timed(work, Path(first), disturbed=False)
                disturbed, found = timed(work, Path(second), disturbed=True)
            for name in expected.keys() - {"seconds"}:
                torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0, equal_nan=True)
            print(f"{what:13} {disturbed / healthy:5.2f} x  {healthy:6.1f} s healthy, {disturbed:6.1f} s disturbed")


if __name__ == "__main__":
    main()
