"""What a killed and a slow rank or Ray actor cost: time until everything is there, relative to that of eight healthy ones.

Eight ranks are forked on one machine, or eight Ray actors begin before the clock does. In the second run, one is killed
after two seconds and another one is stopped for nine tenths of every second. The values of both runs are compared.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter, sleep

import torch

from benchmarks.measure import arguments
from benchmarks.speed.engines import Work, attacks, certificates, compute
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run.engines.ranks import LEASES, Ranks
from holdfast.run.shards import read_observed

COUNT, KILLED, SLOWED = 8, 3, 5
KILLED_AFTER = 2.0
RUNNING, STOPPED = 0.1, 0.9
"""Seconds for which the slow rank runs and stands still, in turns."""


Observed = tuple[float, dict[str, torch.Tensor]]
"""Seconds that something took, and what was observed."""


@contextmanager
def disturbing(pids: Sequence[int]) -> Iterator[None]:
    """Kill one of these processes and slow another one, until the block ends; without any, do nothing."""
    over = Event()
    threads = (
        [Thread(target=kill, args=(pids[KILLED],)), Thread(target=slow, args=(pids[SLOWED], over))] if pids else []
    )
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def by_ranks(work: Work, folder: Path, disturbed: bool) -> Observed:
    """Time eight ranks until rank 0 has everything."""
    started = [multiprocessing.get_context("fork").Process(target=one, args=(work, folder, k)) for k in range(COUNT)]
    began = perf_counter()
    for process in started:
        process.start()
    with disturbing([process.pid or 0 for process in started] if disturbed else []):
        started[0].join()
        spent = perf_counter() - began
    for process in started:
        process.kill()
        process.join()
    return spent, read(work, folder)


def by_actors(work: Work, folder: Path, disturbed: bool) -> Observed:
    """Time eight Ray actors that have begun."""
    import ray

    from holdfast.run.engines.ray import Ray

    ray.init(num_cpus=COUNT, object_store_memory=200_000_000, log_to_driver=False, include_dashboard=False)
    engine = Ray()
    dict(engine.map(wait, work[1], range(COUNT)))
    asked = [actor.__ray_call__.remote(lambda _: os.getpid()) for actor in engine._actors]
    pids: list[int] = ray.get(asked)
    assert len(pids) == COUNT, pids
    began = perf_counter()
    with disturbing(pids if disturbed else []):
        compute(work, engine, folder)
        spent = perf_counter() - began
    ray.shutdown()
    return spent, read(work, folder)


def wait(population: Population, unit: int) -> int:
    """Take so long that each actor gets one unit."""
    sleep(30)
    return unit


def read(work: Work, folder: Path) -> dict[str, torch.Tensor]:
    """Read what was observed."""
    observation, population = work
    return read_observed(observation, population, observation.rows(population), Store(folder))


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
    given = arguments(
        "eight ranks, one killed and one slow, against eight healthy ones", {"--engine": "ranks (default) or ray"}
    )
    timed = by_actors if given.engine == "ray" else by_ranks
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
