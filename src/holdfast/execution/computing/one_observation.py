"""One observation of one encoder, as verbs that write files ask for it: computed like a table's, with no cell around it."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

from holdfast.core.errors import BudgetSpentError
from holdfast.core.run_settings import Observed
from holdfast.execution.computing import Computing, Progress
from holdfast.execution.computing.cost import Forecast, pace
from holdfast.execution.computing.deadline import Deadline
from holdfast.execution.computing.shards import CleanCodes
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.ranks import Ranks, leads
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population
from holdfast.store.keys import key_of
from holdfast.store.store import Store


def observe_one(
    observation: Observation,
    population: Population,
    store: Store,
    engine: Engine | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    began: float | None = None,
    codes: bool = True,
    doing: str = "",
) -> tuple[Population, list[int], Observed]:
    """Return the population with its clean codes, the rows of ``observation`` that ``store`` then holds, and those.

    Computes what is missing, shard by shard, as a table does; fewer rows than asked for mean a spent budget.
    ``codes`` says whether the clean codes of all images are needed, and ``doing`` what progress calls the observation.

    Raises:
        HoldfastError: the encoder cannot be measured like this.
        StoreError: the store cannot be written.
    """
    encoder, images, run = population.encoder, population.images, population.run
    began = monotonic() if began is None else began
    forecast = Forecast({encoder.name: pace(population.encoder, attacked=not isinstance(observation, CleanCodes))})
    work = Computing(store, engine or Local(), progress, Deadline(forecast, budget, began))
    for piece in (CleanCodes(), observation) if codes else (observation,):
        forecast.expect((encoder.name, piece))
    rows, ids = observation.rows(population), observation.ids(population)
    with suppress(BudgetSpentError if leads(work.engine) else Exception):  # rank 0 says what went wrong
        if codes:
            population = Population(encoder, images, run, work.codes(population, "codes"))
        forecast.plan((encoder.name, observation), observation.forwards(population), len(rows))
        work.compute(observation, population, doing or observation.name)
    if isinstance(engine, Ranks):
        engine.end()
    ids_kept, observed = store.observed(key_of(observation, encoder, images, run), [ids[row] for row in rows])
    known = set(ids_kept)
    return population, [row for row in rows if ids[row] in known], observed
