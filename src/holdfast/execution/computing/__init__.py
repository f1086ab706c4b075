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
from holdfast.execution.computing.shards import CleanCodes, clean_codes, compute
from holdfast.execution.computing.subject import Subject
from holdfast.execution.computing.turns import Turns
from holdfast.execution.engines.base import Engine
from holdfast.protocol.evaluation import Evaluation, parts
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population
from holdfast.store.store import Store

Progress = Callable[[str, float, float], None]
"""Told what is being done, which share of all work is finished and how many seconds are left (infinite if unknown)."""
OVERRUN = 1.1
"""How many times the budget a piece of work may be expected to end at and still begin."""

SHORT = 10.0
"""Seconds of work that are done at once, in one round: nobody would look at a part of it."""
REPORT, REPORT_SHARE = 5.0, 0.03
"""The seconds that are kept for the report, and the share of a budget that they are at most."""


@dataclass
class Done:
    """What came of computing shards."""

    failed: dict[Observation, Exception] = field(default_factory=dict)
    fresh: int = 0
    """How many rows were computed."""
    left: int = 0
    """How many were not."""


@final
@dataclass
class Computing:
    """Computes what a store lacks on an engine, within a budget."""

    store: Store
    engine: Engine
    progress: Progress | None
    budget: float | None
    began: float
    forecast: Forecast
    share: float = 0.0
    until: float = inf
    """When the turn of an encoder ends, by ``time.monotonic``: no work begins later ..."""
    strict: bool = False
    """... nor, if so, would any end later."""
    stopped: bool = False
    """Whether somebody stopped the run."""

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
        if done.left:
            raise self.spent()

    def shards(
        self,
        population: Population,
        doing: Mapping[Observation, str],
        most: int | None = None,
        first: Mapping[Observation, int] | None = None,
        whole: Collection[Observation] = (),
    ) -> Done:
        """Compute what the store does not hold of observations, of each at most so many shards, while there is time.

        Args:
            doing: the observations, with what progress calls them.
            most: shards of each part.
            first: of these observations only so many rows, the first in random order; without a budget the whole shards
                that hold them.
            whole: these say nothing before all of those rows are seen.
        """
        called = {part: sentence for observation, sentence in doing.items() for part in parts(observation)}
        name = population.encoder.name
        turns = Turns(
            list(doing),
            lambda part, count: self.forecast.expected((name, part), count),
            self.affordable,
            most,
            whole,
        )
        tally = Tally(self, name, called, turns)
        pieces = [(part, part.rows(population)) for part in called]
        with suppress(BudgetSpentError):
            patient = partial(self.affordable, 0.0)
            tally.done.failed = compute(
                pieces,
                population,
                self.store,
                self.engine,
                turns.choose,
                tally,
                patient,
                limits(first or {}),
                recut=self.budget is not None,
            )
        return tally.done

    def forward(
        self,
        subject: Subject,
        groups: Mapping[Observation, Sequence[Evaluation]],
        most: int | None = None,
        first: Mapping[Observation, int] | None = None,
        whole: Collection[Observation] = (),
    ) -> bool:
        """Compute what the store does not hold for ``groups``, and return whether any of it was; what fails is noted."""
        sound = {
            observation: " and ".join(evaluation.name for evaluation in group)
            for observation, group in groups.items()
            if not subject.why_not(observation)
        }
        done = self.shards(subject.population, sound, most, first, whole)
        subject.failed |= done.failed
        return done.fresh > 0

    def affordable(self, seconds: float) -> bool:
        """Return whether work that takes so long may begin."""
        if self.budget is None:
            return True
        now = monotonic()
        latest = self.until if self.strict else self.latest
        return now < min(self.end, self.until) and now + seconds <= latest

    @property
    def over(self) -> bool:
        """Whether no more work begins."""
        return monotonic() >= self.end

    @property
    def end(self) -> float:
        """When no more work begins: conclusions, as far as they are known, end no more than a tenth of the budget later."""
        if self.budget is None:
            return inf
        return min(self.began + self.budget, self.latest)

    @property
    def latest(self) -> float:
        """When all work but conclusions and the report must be over."""
        budget = inf if self.budget is None else self.budget
        after = self.forecast.conclusions + min(REPORT, REPORT_SHARE * budget)
        return self.began + max(OVERRUN * budget - after, budget / 2)

    @property
    def left(self) -> float:
        """Return the seconds left of a turn: without a budget as many as have passed, for rounds double."""
        if self.budget is None:
            return max(SHORT, monotonic() - self.began)
        return max(0.0, min(self.end, self.until) - monotonic())

    @property
    def foretold(self) -> float:
        """Return the seconds until everything is done, or the budget ends; infinite while nobody knows."""
        left = self.forecast.left
        return left if self.budget is None else min(left, max(0.0, self.began + self.budget - monotonic()))

    def turn(self, share: float, strict: bool = False) -> None:
        """Begin a turn of this share of the time that is left; a strict one ends in time."""
        now, self.strict = monotonic(), strict
        self.until = now + (self.end - now) * share

    def spent(self) -> BudgetSpentError:
        """Return why something is not run."""
        why = "the run was stopped" if self.stopped else "the budget was spent"
        return BudgetSpentError(f"not run: {why}; run the same command again to continue")

    def tell(self, doing: str) -> None:
        """Report progress, if anyone listens."""
        spent, left = monotonic() - self.began, self.foretold
        if left < inf and (self.forecast.worked or not left):  # plans alone are too rough for what never falls
            self.share = max(self.share, spent / (spent + left) if left else 1.0)
        if self.progress:
            self.progress(doing, self.share, left)


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
    late: int = 0
    """How many shards ended after their time."""

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
        self.done.left += total - count if part not in self.counts else -fresh
        self.done.fresh, self.counts[part], self.since = self.done.fresh + fresh, count, now
        if fresh or count < total:
            self.work.tell(f"{self.name}: {self.called[part]}, {count} of {total}")
        self._stop_in_time(fresh, now)

    def _stop_in_time(self, fresh: int, now: float) -> None:
        """Abandon what was handed out if it would end too late."""
        # At the first shard that ends too late nobody has been refused yet, who asks for one at a time.
        self.late += fresh > 0 and now > min(self.work.end, self.work.until)
        outlasts = now > self.work.began + OVERRUN * (self.work.budget or inf)
        if self.late and ((self.late > 1 and not self.turns.refused) or outlasts):
            raise self.work.spent()


def limits(first: Mapping[Observation, int]) -> dict[Observation, int]:
    """Return how many rows each part is computed of, where observations that share it ask for different numbers."""
    most: dict[Observation, int] = {}
    for observation, count in first.items():
        for part in parts(observation):
            most[part] = max(count, most.get(part, 0))
    return most
