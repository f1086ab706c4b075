"""What is observed of a population, shard by shard: kept as it comes, and computed only where it is not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod
from typing import final

from holdfast.core.encoder import Codes
from holdfast.core.run import Observed
from holdfast.execution.engines.base import Engine
from holdfast.execution.store import Key, Store, StoreError, key_of
from holdfast.execution.work import operations
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population, represent

CPU_VALUES = 1 << 22
"""How many input values a shard may have on a CPU, where more at a time are no faster: 27 images of 3 x 224 x 224.

A shard is what an interruption costs, and one step of the progress shown.
"""
CPU_OPERATIONS = 1 << 29
"""How many operations of the encoder a shard may have on a CPU, where attacks encode each input hundreds of times.

Larger batches are no faster there: 9 images of a CNN of 60 million operations, one of a ResNet-50.
"""
FIRST = 8
"""The first shard is at most an eighth of the rows, from which the pace of the others is known."""
OnProgress = Callable[[int, int, int], None]
"""Told how many samples are done, of how many, and how many come next; it may raise to stop the work."""


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
class ShardTask:
    """What an engine maps over shards of rows: everything needed to observe them, anywhere."""

    observation: Observation
    population: Population

    def __call__(self, rows: Sequence[int]) -> Observed:
        seen = self.population.run.batches(rows, lambda batch: self.observation.observe(self.population, batch))
        return {name: values.cpu() for name, values in seen.items()}


def observe(observation: Observation, population: Population, rows: Sequence[int], store: Store) -> Observed:
    """Return what ``store`` holds of ``rows``, all of which were computed, in their order."""
    ids = observation.ids(population)
    key = _key(observation, population)
    held, observed = store.observed(key, [ids[row] for row in rows])
    if len(held) < len(rows):
        raise StoreError(f"what was just written to {store.folder} reads back damaged; check the disk")
    return {name: values.to(population.run.device) for name, values in observed.items()}


def clean_codes(population: Population, store: Store) -> Codes:
    """Return the clean codes of all images, all of which were computed: memory-mapped, one row after the other."""
    codes = store.array(_key(CleanCodes(), population), "codes", population.images.ids)
    if codes is None:
        raise StoreError(f"what was just written to {store.folder} reads back damaged; check the disk")
    return codes


def compute(
    observation: Observation,
    population: Population,
    rows: Sequence[int],
    store: Store,
    engine: Engine,
    told: OnProgress,
    most: int | None = None,
) -> None:
    """Compute the shards that ``store`` does not hold, at most so many."""
    ids, key = observation.ids(population), _key(observation, population)
    held, _ = store.observed(key, [ids[row] for row in rows])
    shards = _missing(rows, {*held}, observation, population)[:most]
    done, upcoming = len(held), [*map(len, shards), 0]
    told(done, len(rows), upcoming[0])
    with closing(engine.map(ShardTask(observation, population), shards)) as finished:
        for k, (shard, seen) in enumerate(finished):
            store.keep(key, [ids[row] for row in shard], seen)
            done += len(shard)
            told(done, len(rows), upcoming[k + 1])


def _key(observation: Observation, population: Population) -> Key:
    return key_of(observation, population.encoder, population.images, population.run, population.bank_images)


def _missing(rows: Sequence[int], held: set[str], observation: Observation, population: Population) -> list[list[int]]:
    """Return the rows not ``held``, cut into shards.

    Cutting comes first, so that an interrupted run goes on with the very shards of an unbroken one.
    """
    size, ids = max(1, _size(population, observation) // observation.inputs(population)), observation.ids(population)
    # Clean codes are quick, and copies of one image keep one code while they share a batch.
    first = size if isinstance(observation, CleanCodes) else min(size, max(1, len(rows) // FIRST))
    cut = [rows[:first], *(rows[start : start + size] for start in range(first, len(rows), size))]
    shards = ([row for row in shard if ids[row] not in held] for shard in cut)
    return [shard for shard in shards if shard]


def _size(population: Population, observation: Observation) -> int:
    """Return how many inputs make a shard: a batch, or less where a large encoder would make it last for hours."""
    run, encoder = population.run, population.encoder
    if run.device != "cpu":
        return run.batch_size
    size = min(run.batch_size, CPU_VALUES // prod(encoder.domain.shape))
    if not isinstance(observation, CleanCodes):
        size = min(size, CPU_OPERATIONS // max(operations(encoder), 1))
    return max(1, size)
