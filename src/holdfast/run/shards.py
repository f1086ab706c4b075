"""Observations in shards: computing and storing them, and choosing which observation is next."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from math import prod
from time import monotonic
from typing import final

from holdfast.core.encoder import Codes, Encoder
from holdfast.core.files import checksum
from holdfast.core.images import Images
from holdfast.core.optimised import operations
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.measure.evaluation import Evaluation, components, parts
from holdfast.measure.observation import Joint, Observation, joined
from holdfast.measure.population import Population, represent
from holdfast.measure.store import Cell, Key, Store, StoreError, key_of
from holdfast.run.engines.base import Engine
from holdfast.run.engines.ranks import Ranks
from holdfast.run.plan import attacked_together, keep_freed_memory

CPU_VALUES = 1 << 22
"""How many input values a shard may have on a CPU, where more at a time are no faster: 27 images of 3 x 224 x 224.

A shard is what an interruption costs, and one step of the progress shown.
"""
CPU_OPERATIONS = 1 << 29
"""How many operations of the encoder a shard may have on a CPU, where attacks encode each input hundreds of times.

Larger batches are no faster there: 9 images of a CNN of 60 million operations; of a larger one, as many as are measured
to be fastest.
"""
SHARD_OPERATIONS = 1 << 33
"""How many a shard may have whose rows are of many inputs, which are not encoded all at once: a quick network's edits of one
image take longer to make than to encode, and less if they are made of many images together."""
CLEAN_OPERATIONS = 1 << 37
"""Largest number of encoder operations per shard of clean embeddings on a CPU: seconds of work."""
FIRST = 8
"""The first shard is at most an eighth of the rows, from which the pace of the others is known."""
AGAIN = "check the disk, and run the same command again, which computes damaged files again"
Waiting = Mapping[Observation, Sequence[Sequence[int]]]
"""Shards to compute per observation, each as its rows, in order."""
Choose = Callable[[Waiting], Observation | None]
"""Says whose first shard is computed next, when there is room for one; None begins no more."""
OnProgress = Callable[[Observation, int, int, float | None], None]
"""Told how many rows of an observation are done, of how many, and the seconds that the last of them took where they were
computed: 0 for those that were kept, None if another rank knows; it may raise to stop the work."""


@final
@dataclass(frozen=True)
class CleanCodes(Observation):
    """The embedding of every clean image."""

    name = "codes"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return list(range(len(population.images)))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"codes": represent(population.encoder, population.images, rows, population.run)}


Shard = tuple[Observation, Sequence[int]]
"""Rows, and what is observed of them."""
ShardOutcome = tuple[Observed | Exception | None, float | None]
"""Tensors of a shard or its error, with its seconds; None if another rank stored it."""


def observe_shard(population: Population, shard: Shard) -> tuple[Observed | Exception, float]:
    """Return the tensors of ``shard`` or its error, with its seconds; engines map this over shards."""
    keep_freed_memory()
    observation, rows = shard
    began = monotonic()
    try:
        tensors = observation.in_batches(population.at_work(), rows)
    except Exception as error:
        return error, monotonic() - began
    return {name: values.cpu() for name, values in tensors.items()}, monotonic() - began


def read_observed(observation: Observation, population: Population, rows: Sequence[int], store: Store) -> Observed:
    """Return the stored tensors of ``rows``, all of which were computed, in their order."""
    if isinstance(observation, Joint):
        return joined([read_observed(part, population, rows, store) for part in observation.parts])
    ids = observation.ids(population)
    key = _key(observation, population)
    kept_ids, observed = store.observed(key, [ids[row] for row in rows])
    if len(kept_ids) < len(rows):
        raise StoreError(f"what was just written to {store.folder} reads back damaged; {AGAIN}")
    return {name: values.to(population.run.device) for name, values in observed.items()}


def clean_codes(population: Population, store: Store) -> Codes:
    """Return the clean embeddings of all images, all of which were computed: memory-mapped, one row after the other."""
    codes = store.array(_key(CleanCodes(), population), "codes", population.images.ids)
    if codes is None:
        raise StoreError(f"what was just written to {store.folder} reads back damaged; {AGAIN}")
    return codes


def stored_prefix(observation: Observation, population: Population, store: Store) -> list[int]:
    """Return the rows before the first missing one, in the order of ``observation.rows``.

    First in random order: not the quick ones, which several workers finish early, but a fair sample of all.
    """
    rows, ids = observation.rows(population), observation.ids(population)
    kept_ids = set.intersection(*(store.kept_ids(_key(part, population)) for part in parts(observation)))
    first = set[int]()
    for row in in_random_order(rows, observation, population):
        if ids[row] not in kept_ids:
            break
        first.add(row)
    return [row for row in rows if row in first]


def missing_count(observation: Observation, population: Population, store: Store) -> int:
    """Return the number of rows of ``observation`` that are missing in the store."""
    kept_ids, ids = store.kept_ids(_key(observation, population)), observation.ids(population)
    return sum(ids[row] not in kept_ids for row in observation.rows(population))


def in_random_order(rows: Sequence[int], observation: Observation, population: Population) -> list[int]:
    """Return ``rows`` in the random order of their images; as they come where they are no images, or all are needed.

    Folders are sorted by class and videos by time, so the first rows as they come would be no sample of the others.
    """
    if isinstance(observation, CleanCodes) or observation.ids(population) != population.images.ids:
        return list(rows)
    return [rows[position] for position in population.order_of[list(rows)].argsort().tolist()]


def cell_of(evaluation: Evaluation, encoder: Encoder, images: Images, run: RunSettings, bank: Images | None) -> Cell:
    """Return the cell's record, from which the store tells later which files are still needed."""
    keys = [key_of(what, encoder, images, run, bank) for what in (CleanCodes(), *components(evaluation)[1:])]
    if bank is not None:
        keys.append(key_of(CleanCodes(), encoder, bank, run))
    result = key_of(evaluation, encoder, images, run, bank).stem
    made_from = tuple(key.stem for key in keys)
    return Cell(evaluation=evaluation.name, encoder=encoder.name, result=result, made_from=made_from)


def compute(
    pieces: Sequence[Shard],
    population: Population,
    store: Store,
    engine: Engine,
    choose: Choose,
    on_progress: OnProgress,
    failed: dict[Observation, Exception],
    patient: Callable[[], bool] = lambda: True,
    first: Mapping[Observation, int] | None = None,
    recut: bool = True,
) -> None:
    """Compute the shards that ``store`` does not hold, as ``choose`` says.

    Errors are put into the caller's ``failed``, because ``on_progress`` may raise to stop the work.

    ``first`` limits observations to a number of rows, the first in random order: exactly these rows, cut again, or the
    whole shards of an unbroken run that hold them. Ranks wait for each other as long as they are ``patient``.
    """
    queue = _Queue(choose, failed)
    totals = {observation: len(rows) for observation, rows in pieces}
    done: dict[Observation, int] = {}
    for observation, rows in pieces:
        ids, most = observation.ids(population), (first or {}).get(observation)
        kept_ids = store.kept_ids(_key(observation, population))
        queue.waiting[observation] = _missing_shards(rows, kept_ids, observation, population, most, recut)
        done[observation] = sum(ids[row] in kept_ids for row in rows)
        on_progress(observation, done[observation], len(rows), 0.0)
    outcomes: Generator[tuple[Shard, ShardOutcome], None, None]
    if isinstance(engine, Ranks):
        outcomes = _shared(queue, population, store, engine, patient)
    else:
        outcomes = engine.map(observe_shard, population, queue.taken())
    with closing(outcomes) as finished:
        for (observation, rows), (values, seconds) in finished:
            if isinstance(values, Exception):
                queue.failed.setdefault(observation, values)
                continue
            if values is not None:
                store.keep(_key(observation, population), _ids((observation, rows), population), values)
            done[observation] += len(rows)
            on_progress(observation, done[observation], totals[observation], seconds)


@final
@dataclass
class _Queue:
    """The shards that are to be computed, in turns; none of an observation that has failed."""

    choose: Choose
    failed: dict[Observation, Exception]
    waiting: dict[Observation, list[list[int]]] = field(default_factory=dict)

    def taken(self) -> Iterator[Shard]:
        """Yield one shard after the other, each chosen when there is room for it."""
        while left := {each: shards for each, shards in self.waiting.items() if shards and each not in self.failed}:
            chosen = self.choose(left)
            if chosen is None:
                return
            yield chosen, self.waiting[chosen].pop(0)

    def begins(self, shard: Shard) -> bool:
        """Return whether this process computes this shard; another rank may have begun it."""
        observation, rows = shard
        return observation not in self.failed and self.choose({observation: [rows]}) is not None


def _shared(
    queue: _Queue, population: Population, store: Store, ranks: Ranks, patient: Callable[[], bool]
) -> Generator[tuple[Shard, ShardOutcome], None, None]:
    """Yield each shard with what was observed of it and the seconds it took, or with None once another rank has kept it.

    Observations take turns by shards.
    """
    keys = {observation: _key(observation, population) for observation in queue.waiting}
    turns = zip_longest(*([(each, rows) for rows in shards] for each, shards in queue.waiting.items()))
    units = {
        f"{keys[shard[0]].stem}-{checksum(json.dumps(_ids(shard, population)).encode())}": shard
        for turn in turns
        for shard in turn
        if shard is not None
    }
    for shard, outcome in ranks.share(
        observe_shard,
        population,
        units,
        is_kept=lambda shard: store.kept_ids(keys[shard[0]]).issuperset(_ids(shard, population)),
        begin=queue.begins,
        patient=patient,
    ):
        yield shard, (None, None) if outcome is None else outcome


def _ids(shard: Shard, population: Population) -> list[str]:
    known = shard[0].ids(population)
    return [known[row] for row in shard[1]]


def _key(observation: Observation, population: Population) -> Key:
    return key_of(observation, population.encoder, population.images, population.run, population.bank_images)


def _missing_shards(
    rows: Sequence[int],
    kept_ids: set[str],
    observation: Observation,
    population: Population,
    most: int | None = None,
    recut: bool = True,
) -> list[list[int]]:
    """Return the rows among the first ``most`` that ``kept_ids`` lacks, cut into shards.

    Cutting comes first, so that an interrupted run goes on with the very shards of an unbroken one; but what is begun of
    under a budget is cut as it comes, in no more shards than needed.
    """
    ids = observation.ids(population)
    cut = shards_of(rows, observation, population)
    if most is not None and recut:
        size = _size(population, observation)
        left = [row for row in in_random_order(rows, observation, population)[:most] if ids[row] not in kept_ids]
        cut = [left[start : start + size] for start in range(0, len(left), size)]
    elif most is not None:
        cut = cut[: _reaching(cut, most)]
    shards = ([row for row in shard if ids[row] not in kept_ids] for shard in cut)
    return [shard for shard in shards if shard]


def shards_of(rows: Sequence[int], observation: Observation, population: Population) -> list[list[int]]:
    """Return ``rows`` in random order, cut into the shards of an unbroken run."""
    size = _size(population, observation)
    # Clean codes are quick, and copies of one image keep one code while they share a batch.
    first = size if isinstance(observation, CleanCodes) else min(size, max(1, len(rows) // FIRST))
    rows = in_random_order(rows, observation, population)
    return [rows[:first], *(rows[start : start + size] for start in range(first, len(rows), size))]


def rows_in_shards(count: int, rows: Sequence[int], observation: Observation, population: Population) -> int:
    """Return the number of rows of the whole shards that hold the first ``count`` of ``rows`` in random order."""
    cut = shards_of(rows, observation, population)
    return sum(map(len, cut[: _reaching(cut, count)]))


def _reaching(cut: Sequence[Sequence[int]], count: int) -> int:
    """Return how many of these shards hold ``count`` rows."""
    ends = list(accumulate(map(len, cut)))
    return min(len(cut), bisect_left(ends, count) + 1) if count else 0


def _size(population: Population, observation: Observation) -> int:
    """Return the rows per shard: one batch of inputs, fewer if slow, several batches of clean embeddings."""
    run, encoder, inputs = population.run, population.encoder, observation.inputs(population)
    if run.computes_on != "cpu":
        return max(1, run.batch_size // inputs)
    size = min(run.batch_size, CPU_VALUES // prod(encoder.domain.shape))
    if isinstance(observation, CleanCodes):
        # Whole batches, so that a file is not written every few milliseconds.
        most = min(CPU_VALUES // prod(encoder.domain.shape), CLEAN_OPERATIONS // max(operations(encoder), 1))
        return max(1, size, size * (most // max(1, size)))
    fastest = max(CPU_OPERATIONS // max(operations(encoder), 1), attacked_together(encoder))
    size = max(1, min(size, fastest))
    return max(1, min(size, max(size, SHARD_OPERATIONS // max(operations(encoder), 1)) // inputs))


@final
@dataclass
class Turns:
    """Chooses the next shard: that of the observation which the least work is left of, so that most of them have answers.

    Or the one that takes longest, if everything is computed in any case.

    The parts of a joint one go on side by side, because it is concluded on the rows that all of them have.

    Args:
        observations: take turns, joint ones as one.
        seconds: expected seconds of a number of rows of a part.
        affordable: whether this many seconds are left.
        whole: these say nothing before all of their waiting rows are seen: they go on only if there is time for those.
        side_by_side: how many seconds pass while shards take one.
        longest_first: whether the longest shard is next, because everything is computed in any case.
    """

    observations: Sequence[Observation]
    seconds: Callable[[Observation, int], float]
    affordable: Callable[[float], bool]
    whole: Collection[Observation] = ()
    side_by_side: Callable[[], float] = lambda: 1.0
    longest_first: bool = False
    refused: bool = False
    """Whether there was no time for any shard."""

    def choose(self, waiting: Waiting) -> Observation | None:
        """Return the part whose first shard is next, None if there is no time for any; see ``shards.compute``."""
        left = {
            each: sum(self.seconds(part, sum(map(len, waiting.get(part, ())))) for part in parts(each))
            for each in self.observations
        }
        going = [(each, part) for each in sorted(left, key=left.__getitem__) if (part := self._behind(each, waiting))]
        seconds_of = {part: self.seconds(part, len(waiting[part][0])) for _, part in going}
        if self.longest_first:
            going.sort(key=lambda pair: -seconds_of[pair[1]])
        for observation, part in going:
            seconds = seconds_of[part]
            whole = max(seconds, left[observation] * self.side_by_side())
            if self.affordable(whole if observation in self.whole else seconds):
                return part
        self.refused = True
        return None

    def _behind(self, observation: Observation, waiting: Waiting) -> Observation | None:
        going = [part for part in parts(observation) if part in waiting]
        return max(going, key=lambda part: sum(map(len, waiting[part])), default=None)
