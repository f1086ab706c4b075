"""Where a verb that fills one folder computes, for how long, and what it leaves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from holdfast.commands.inputs import require_folder, shown
from holdfast.core.clock import beginning
from holdfast.core.errors import BudgetSpentError, HoldfastError, HoldfastWarning
from holdfast.core.options import Observing
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.core.settings import seconds
from holdfast.measure.keys import key_of
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run.computing import Progress, observe_one
from holdfast.run.engines.base import Engine
from holdfast.run.engines.ranks import leads
from holdfast.run.engines.requested import engine_of, run_settings
from holdfast.run.folder import REQUEST, claim, require_free
from holdfast.run.progress import Shown
from holdfast.run.table import unfit

DONE = {"attack": "attacked", "certify": "certified"}
"""What each verb does to an encoder."""


@dataclass(frozen=True)
class Observer:
    """What computes a verb's observations, into which folder, and until when."""

    run: RunSettings
    store: Store
    engine: Engine
    show: Shown | None
    budget: float | None
    began: float
    started: datetime
    kept: bool
    """Whether somebody named the folder; the others go with the call."""

    @property
    def leads(self) -> bool:
        """Return whether this process concludes: all do but ranks after the first."""
        return leads(self.engine)

    @property
    def spent(self) -> bool:
        """Return whether the budget is over."""
        return self.budget is not None and monotonic() >= self.began + self.budget

    def observe(
        self,
        verb: str,
        observation: Observation,
        population: Population,
        codes: bool = True,
        doing: str = "",
        progress: Progress | None = None,
    ) -> tuple[Population, list[int], Observed]:
        """Return the population with its clean codes, the rows that were observed by the end of the budget, and those.

        ``doing`` is what progress calls the observation, by its name otherwise; ``progress`` is told instead of ``show``.

        Raises:
            HoldfastError: the folder holds the answer to another request, or the encoder is not fit for this.
            BudgetSpentError: the budget ended before anything was observed.
        """
        claim(self.store, verb, key_of(observation, population.encoder, population.images, population.run))
        if problem := unfit(population, self.engine):
            raise HoldfastError(f"{population.encoder.name} is not fit to be {DONE[verb]}: {problem}")
        population, rows, observed = observe_one(
            observation,
            population,
            self.store,
            self.engine,
            progress or self.show,
            self.budget,
            self.began,
            codes,
            doing,
        )
        if self.leads and not rows:
            inputs = sum(observation.inputs(population) for _ in observation.rows(population))
            raise BudgetSpentError(self.left_over(min(inputs, len(population.images))))
        return population, rows, observed

    def left_over(self, missing: int) -> str:
        """Return a sentence on how many images a spent budget left over."""
        what = "1 image is" if missing == 1 else f"{missing:,} images are"
        again = "run the same command again to continue" if self.kept else "name a folder as out to go on later"
        return f"{what} missing: the budget was spent; {again}"

    def warn_of(self, missing: int) -> None:
        """Say how many images are missing, if any."""
        if missing and self.leads:
            warnings.warn(self.left_over(missing), HoldfastWarning, stacklevel=5)  # from who called the verb


@contextmanager
def observing(
    run: RunSettings, options: Observing, cluster: str | None = None, mark: str = REQUEST
) -> Iterator[Observer]:
    """Give where ``run``, whose device is the one asked for, is computed; ``mark`` is the file its folder is known by.

    Raises:
        HoldfastError: there is no such engine, or the folder is in use for something else.
    """
    began, started = beginning(), datetime.now(UTC)
    out, workers = options["out"], options["workers"]
    budget = None if options["budget"] is None else seconds(options["budget"])
    require_folder(out, cluster)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-")) if out is None else out)
        where = engine_of(cluster, run.device, workers, folder)
        placed = run_settings(
            cluster, run.device, workers, seed=run.seed, precision=run.precision, batch_size=run.batch_size
        )
        require_free(folder, mark)
        show = stack.enter_context(shown(options["progress"] if leads(where) else False))
        yield Observer(placed, Store(folder), where, show, budget, began, started, out is not None)
