"""Shards computed while there is time, and what is told of it: what is being done, how far it is, how long it will take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from typing import final

from holdfast.core.encoder import Codes
from holdfast.core.errors import BudgetSpentError
from holdfast.execution.computing.cost import Forecast
from holdfast.execution.computing.deadline import Deadline
from holdfast.execution.computing.shards import CleanCodes, clean_codes, compute
from holdfast.execution.computing.subject import Subject
from holdfast.execution.computing.turns import Turns
from holdfast.execution.engines.base import Engine
from holdfast.protocol.evaluation import Evaluation, parts
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population
from holdfast.store.store import Store

PAUSE = 0.2
"""Seconds between two forecasts that are told, each of which goes through everything that waits."""

Progress = Callable[[str, float, float], None]
"""Told what is being done, which share of all work is finished and how many seconds are left (infinite if unknown)."""


@dataclass
class Done:
    """What came of computing shards."""

    failed: dict[Observation, Exception] = field(default_factory=dict)
    computed_rows: int = 0
    missing_rows: int = 0
    """Those that were not computed."""


@final
@dataclass
class Computing:
    """Computes what a store lacks on an engine, within a budget."""

    store: Store
    engine: Engine
    progress: Progress | None
    deadline: Deadline
    finished: float = 0.0
    """The share of all work that is done."""
    stopped: bool = False
    """Whether somebody stopped the run."""
    _foreseen: tuple[float, float] = field(default=(-inf, inf), init=False, repr=False)
    """When the last forecast that was told was made, and the seconds that were left."""

    @property
    def forecast(self) -> Forecast:
        """How long what is waiting will take."""
        return self.deadline.forecast

    def codes(self, population: Population, doing: str) -> Codes:
        """Return the clean codes of all images."""
        self.compute(CleanCodes(), population, doing)
        return clean_codes(population, self.store)

    def compute(self, observation: Observation, population: Population, doing: str) -> None:
        """Compute what the store does not hold of ``observation``.

        Raises:
            BudgetSpentError: there is no time for all of it.
            Exception: what went wrong with a part of it.
        """
        done = self.shards(population, {observation: doing})
        for error in done.failed.values():
            raise error
        if done.missing_rows:
            raise self.spent()

    def shards(
        self,
        population: Population,
        doing: Mapping[Observation, str],
        first: Mapping[Observation, int] | None = None,
        whole: Collection[Observation] = (),
    ) -> Done:
        """Compute what the store does not hold of observations, while there is time.

        Args:
            doing: the observations, with what progress calls them.
            first: of these observations only so many rows, the first in random order; without a budget the whole shards
                that hold them.
            whole: these say nothing before all of those rows are seen.
        """
        called = {part: sentence for observation, sentence in doing.items() for part in parts(observation)}
        name = population.encoder.name
        turns = Turns(
            list(doing),
            lambda part, count: self.forecast.expected((name, part), count),
            self.deadline.affords,
            whole,
            lambda: self.forecast.side_by_side,
            self.deadline.budget is None,
        )
        tally = Tally(self, name, called, turns)
        pieces = [(part, part.rows(population)) for part in called]
        with suppress(BudgetSpentError):
            patient = partial(self.deadline.affords, 0.0)
            compute(
                pieces,
                population,
                self.store,
                self.engine,
                turns.choose,
                tally,
                tally.done.failed,
                patient,
                limits(first or {}),
                recut=self.deadline.budget is not None,
            )
        return tally.done

    def forward(
        self,
        subject: Subject,
        groups: Mapping[Observation, Sequence[Evaluation]],
        first: Mapping[Observation, int] | None = None,
        whole: Collection[Observation] = (),
    ) -> bool:
        """Compute what the store does not hold for ``groups``, and return whether any of it was; what fails is noted."""
        sound = {
            observation: " and ".join(evaluation.name for evaluation in group)
            for observation, group in groups.items()
            if not subject.why_not(observation)
        }
        done = self.shards(subject.population, sound, first, whole)
        subject.failed |= done.failed
        return done.computed_rows > 0

    def spent(self) -> BudgetSpentError:
        """Return why something is not run."""
        why = "the run was stopped" if self.stopped else "the budget was spent"
        return BudgetSpentError(f"not run: {why}; run the same command again to continue")

    def tell(self, doing: str) -> None:
        """Report progress, if anyone listens."""
        now = monotonic()
        when, left = self._foreseen
        if now - when > PAUSE or not any(self.forecast.waiting.values()):
            left = self.deadline.seconds_left
            self._foreseen = now, left
        spent = now - self.deadline.began
        if left < inf and (self.forecast.worked or not left):  # plans alone are too rough for what never falls
            self.finished = max(self.finished, spent / (spent + left) if left else 1.0)
        if self.progress:
            self.progress(doing, self.finished, left)


@final
@dataclass
class Tally:
    """Counts the rows of an encoder as they come, and tells how far they are."""

    work: Computing
    name: str
    called: Mapping[Observation, str]
    """What progress calls each part."""
    turns: Turns
    done: Done = field(default_factory=Done)
    counts: dict[Observation, int] = field(default_factory=dict)
    since: float = field(default_factory=lambda: monotonic())
    """When the last of them came."""
    late_shards: int = 0
    """How many ended after their time."""

    def __call__(self, part: Observation, count: int, total: int, seconds: float | None) -> None:
        """Take note that ``count`` of ``total`` rows of a part are done; see ``shards.OnProgress``.

        Raises:
            BudgetSpentError: there is no time for what was handed out.
        """
        forecast, piece, now = self.work.forecast, (self.name, part), monotonic()
        fresh = count - self.counts.get(part, count)
        measured = 0 if seconds is None else fresh  # another rank's pace is taken for one's own
        seconds = (forecast.seconds(piece, fresh) or 0.0) if seconds is None else seconds
        forecast.tell(piece, measured, seconds, count, total)
        forecast.pass_time(seconds, now - self.since if fresh else 0.0)
        self.done.missing_rows += total - count if part not in self.counts else -fresh
        self.done.computed_rows += fresh
        self.counts[part], self.since = count, now
        if fresh or count < total:
            self.work.tell(f"{self.name}: {self.called[part]}, {count} of {total}")
        self._stop_in_time(fresh, now)

    def _stop_in_time(self, fresh: int, now: float) -> None:
        """Abandon what was handed out if it would end too late."""
        # At the first shard that ends too late nobody has been refused yet, who asks for one at a time.
        deadline = self.work.deadline
        self.late_shards += fresh > 0 and now > deadline.last_beginning_of_turn
        if self.late_shards and ((self.late_shards > 1 and not self.turns.refused) or now > deadline.last_overrun):
            raise self.work.spent()


def limits(first: Mapping[Observation, int]) -> dict[Observation, int]:
    """Return how many rows each part is computed of, where observations that share it ask for different numbers."""
    most: dict[Observation, int] = {}
    for observation, count in first.items():
        for part in parts(observation):
            most[part] = max(count, most.get(part, 0))
    return most
