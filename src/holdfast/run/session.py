"""A request carried out: encoders and images loaded, and the table filled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.core.clock import beginning
from holdfast.core.errors import HoldfastWarning
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.data.reading.remembered import FILE, Remembered
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.store import Store, some
from holdfast.run.computing import Computing, Progress
from holdfast.run.engines.base import Engine
from holdfast.run.engines.processes import Automatic, Processes
from holdfast.run.engines.ranks import leads
from holdfast.run.engines.requested import engine_of, left_to_threads, run_settings
from holdfast.run.forecast import Deadline, Forecast
from holdfast.run.inputs import NOTHING, AtHand, Inputs
from holdfast.run.plan import adapt_plan
from holdfast.run.radii import changed, in_informative_balls, left_open
from holdfast.run.request import Request, planned
from holdfast.run.rounds import WriteReport
from holdfast.run.table import fill_table, refuse_same_names

MANY = 10
"""Cells of a new run that take so long that workers are started at once."""
EARLIER = " Earlier results in this folder are of other radii and stay beside these."


@dataclass(frozen=True)
class Session:
    """A request with everything it needs: nothing of it can be wrong any more, and nothing is computed yet."""

    request: Request
    run: RunSettings
    inputs: Inputs
    plan: Sequence[Evaluation]
    store: Store
    began: float
    """When its budget began to run, by ``time.monotonic``."""

    @classmethod
    def of(cls, request: Request, store: Store, at_hand: AtHand = NOTHING) -> Session:
        """Return the session of ``request`` whose results go to ``store``; what is ``at_hand`` is not loaded.

        Raises:
            HoldfastError: something it names does not exist, cannot be read or does not fit.
        """
        began, plan = beginning(), planned(request)
        run = run_settings(
            request.cluster,
            request.device,
            request.workers,
            seed=request.seed,
            precision=request.precision,
            batch_size=request.batch_size,
            attack_seed=request.attack_seed,
        )
        _warn_of_damage(store)
        inputs = Inputs.of(request, at_hand, Remembered.at(store.folder / FILE, request.rehash))
        refuse_same_names(inputs.encoders)
        return cls(request, run, inputs, adapt_plan(request, plan, inputs), store, began)

    def fill(
        self,
        progress: Progress | None = None,
        write: WriteReport | None = None,
        say: Callable[[str], None] | None = None,
    ) -> tuple[list[Result], list[Failure]]:
        """Return the results and failures of all cells, which the store then holds.

        Args:
            progress: is told how far things are.
            write: writes a report while the run goes on.
            say: is told, before the work begins, how long it will take.

        Raises:
            HoldfastError: the store cannot be written.
            KeyboardInterrupt: somebody stopped it; the store then holds what follows from what was seen.
        """
        request = self.request
        engine = engine_of(request.cluster, request.device, request.workers, self.store.folder)
        cells = len(self.plan) * sum(not left_to_threads(encoder) for encoder in self.inputs.encoders)
        if isinstance(engine, (Automatic, Processes)) and cells >= MANY and not self.store.cells():
            engine.begin()
        if leads(engine):
            self.store.request(request.model_dump_json(indent=1))
        plan, reason_for_radii = self.in_informative_balls(engine, progress)
        if say and reason_for_radii and leads(engine):
            say(reason_for_radii)
        return fill_table(
            self.inputs.encoders,
            self.inputs.images,
            plan,
            self.run,
            self.store,
            engine,
            progress=progress,
            budget=request.budget,
            began=self.began,
            bank_for=self.inputs.bank,
            write=write if leads(engine) else None,
            say=say if leads(engine) else None,
            reason_for_radii=reason_for_radii,
        )

    def in_informative_balls(self, engine: Engine, progress: Progress | None) -> tuple[Sequence[Evaluation], str]:
        """Return the plan with radii that tell the encoders apart where nobody named any, and why."""
        if not left_open(self.request, self.plan):
            return self.plan, ""
        work = Computing(self.store, engine, progress, Deadline(Forecast({}), self.request.budget, self.began))
        plan, reason = in_informative_balls(self.request, self.plan, self.inputs, self.run, work)
        earlier = EARLIER if reason and changed(self.store.results(), plan) else ""
        return plan, reason + earlier


def _warn_of_damage(store: Store) -> None:
    if damaged := store.damaged():
        warnings.warn(
            f"{some(damaged)} cannot be read (damaged, or of another version of holdfast) and count as never computed; what "
            "this command asks for is computed anew from what else is kept, delete the others",
            HoldfastWarning,
            stacklevel=2,
        )
