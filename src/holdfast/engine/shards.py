"""What is observed of a population, shard by shard: kept as it comes, and computed only where it is not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod
from typing import final

from holdfast.engine.base import Engine
from holdfast.evaluation import Observation, Population, represent
from holdfast.run import Observed
from holdfast.store import Store, StoreError, key_of

CPU_VALUES = 1 << 22
"""How many input values a shard may have on a CPU, where more at a time are no faster: 27 images of 3 x 224 x 224.

A shard is what an interruption costs, and one step of the progress shown.
"""
Told = Callable[[int, int], None]
"""Told how many samples are done, of how many; it may raise to stop the work."""


@final
@dataclass(frozen=True)
class CleanCodes(Observation):
    """The code of every clean image."""

    name = "codes"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return list(range(len(population.images)))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"codes": represent(population.encoder, population.images, rows, population.run)}


@final
@dataclass(frozen=True)
class Look:
    """What an engine maps over shards of rows: everything needed to observe them, anywhere."""

    observation: Observation
    population: Population

    def __call__(self, rows: Sequence[int]) -> Observed:
        seen = self.population.run.batches(rows, lambda batch: self.observation.observe(self.population, batch))
        return {name: values.cpu() for name, values in seen.items()}


def observe(
    observation: Observation, population: Population, rows: Sequence[int], store: Store, engine: Engine, told: Told
) -> Observed:
    """Return what is seen of ``rows``, in their order, computing the shards that ``store`` does not hold."""
    ids, run = observation.ids(population), population.run
    key, wanted = key_of(observation, population.encoder, population.images, run), [ids[row] for row in rows]
    held, observed = store.observed(key, wanted)
    told(len(held), len(rows))
    if len(held) < len(rows):
        shards = _missing(rows, {*held}, observation, population)
        done = len(held)
        with closing(engine.map(Look(observation, population), shards)) as finished:
            for shard, seen in finished:
                store.keep(key, [ids[row] for row in shard], seen)
                done += len(shard)
                told(done, len(rows))
        held, observed = store.observed(key, wanted)
        if len(held) < len(rows):
            raise StoreError(f"what was just written to {store.folder} reads back damaged; check the disk")
    return {name: values.to(run.device) for name, values in observed.items()}


def _missing(rows: Sequence[int], held: set[str], observation: Observation, population: Population) -> list[list[int]]:
    """Return the rows not ``held``, cut into shards.

    Cutting comes first, so that an interrupted run goes on with the very shards of an unbroken one.
    """
    size, ids = max(1, _size(population) // observation.inputs(population)), observation.ids(population)
    cut = (rows[start : start + size] for start in range(0, len(rows), size))
    shards = ([row for row in shard if ids[row] not in held] for shard in cut)
    return [shard for shard in shards if shard]


def _size(population: Population) -> int:
    """Return how many inputs make a shard: a batch, or less where large inputs would make it last for hours."""
    run, values = population.run, prod(population.encoder.domain.shape)
    return max(1, min(run.batch_size, CPU_VALUES // values)) if run.device == "cpu" else run.batch_size
