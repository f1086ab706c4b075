"""How much faster two workers are than one process: seconds of one over those of two, for attacks and certificates.

Workers are started before the clock is, and each has one thread, as the one process has. Ranks are forked, so that
neither side pays for loading torch. Halves of the work in two processes that share nothing say what the machine can give.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.measure import arguments, ratio
from holdfast import data
from holdfast.attacks.adversarial import AdversarialImages
from holdfast.attacks.presets import PRESETS
from holdfast.bounds.certificates import Certificates
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import load, rvcl
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run.engines.base import Engine, Local
from holdfast.run.engines.processes import Processes
from holdfast.run.engines.ranks import LEASES, Ranks
from holdfast.run.run import Run

ATTACKED, CERTIFIED = 2000, 200
Work = tuple[Observation, Population]


def attacks(share: float = 1) -> Work:
    """Return a published attack on a share of 2,000 images of 28 x 28 pixels, in batches of 64."""
    torch.manual_seed(0)
    pixels = torch.rand(int(ATTACKED * share), *Domain((1, 28, 28)).shape)
    population = Population(rvcl.mnist_cnn_a(), Images(pixels), RunSettings(batch_size=64))
    return AdversarialImages.of(PRESETS["u-pgd"], population), population


def certificates(share: float = 1) -> Work:
    """Return CROWN certificates of a share of 200 digits, each against nine others."""
    encoder = load("builtin:digits-robust")
    population = Population(encoder, data.load("builtin:digits", encoder.domain), RunSettings(batch_size=8))
    return Certificates.of(Linf(0.02), int(CERTIFIED * share), 9, "crown", "adaptive", 50_000), population


def compute(work: Work, engine: Engine, folder: Path) -> None:
    observation, population = work
    run = Run(population.run, Store(folder), engine)
    run.observe(observation, population, codes=isinstance(observation, AdversarialImages))


def fresh(work: Work, engine: Engine) -> None:
    """Compute everything into a new folder."""
    with TemporaryDirectory() as folder:
        compute(work, engine, Path(folder))


def beside(other: Callable[[], None], own: Callable[[], None]) -> None:
    """Call one in a forked process and the other here."""
    process = multiprocessing.get_context("fork").Process(target=other)
    process.start()
    own()
    process.join()


def by_ranks(work: Work) -> None:
    """Compute everything in two ranks."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        first, second = (partial(compute, work, Ranks(rank, 2, folder / LEASES), folder) for rank in range(2))
        beside(second, first)


def by_halves() -> Callable[[Work], None]:
    """Return what computes half of the work in each of two processes that know nothing of each other: what is to be had."""
    halves = {type(work[0]): work for work in (attacks(0.5), certificates(0.5))}

    def halved(work: Work) -> None:
        half = partial(fresh, halves[type(work[0])], Local())
        beside(half, half)

    return halved


def by_ray() -> Callable[[Work], None]:
    """Return what computes in two Ray actors on this machine."""
    import ray

    from holdfast.run.engines.ray import Ray

    ray.init(num_cpus=2, object_store_memory=200_000_000, log_to_driver=False, include_dashboard=False)
    actors = Ray()
    return lambda work: fresh(work, actors)


def by_workers() -> Callable[[Work], None]:
    """Return what computes in two worker processes."""
    workers = Processes(2)
    return lambda work: fresh(work, workers)


ENGINES = {"halves": by_halves, "workers": by_workers, "ranks": lambda: by_ranks, "ray": by_ray}


def main() -> None:
    given = arguments("two workers against one process", {"--engines": "these alone, separated by commas"})
    wanted = given.engines.split(",") if given.engines else list(ENGINES)
    ways = {name: ENGINES[name]() for name in wanted}
    for what, work in (("attacks", attacks()), ("certificates", certificates())):
        for name, way in ways.items():
            # The ratio of one process to two, hence how many times faster two are.
            faster, alone, together = ratio(
                partial(fresh, work, Local()), partial(way, work), given.device, given.repeats
            )
            print(f"{what:13} {name:8} {faster:5.2f} x  {alone:6.1f} s against {together:6.1f} s")


if __name__ == "__main__":
    main()
