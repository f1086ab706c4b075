"""The order of a run: every evaluation first looks at a few images, then at twice as many, and so on.

Whenever a run stops, every evaluation has a result, and all results improve together.

- The fractions of images in ``SHARES`` are reached one after the other, by all encoders in turn.
- At each fraction the cheapest evaluation comes first. Under a budget, the first results are those of the report's rows
  under attack, in their order; each row begins once the one before has its result.
- Under a budget, a turn is an encoder's part of the time that is left. Time that one encoder does not need goes to the
  others. Baselines wait until the other encoders have their first results.
- The first step of an observation includes the fits that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from math import ceil, inf
from time import monotonic
from typing import Any, final

from holdfast.core.errors import BudgetSpentError
from holdfast.encoders.baseline import is_baseline
from holdfast.measure.evaluation import Evaluation, fits_of, parts
from holdfast.measure.observation import Observation
from holdfast.measure.population import Fit
from holdfast.report.contents import RunState
from holdfast.run.computing import Computing, EncoderState, learn
from holdfast.run.conclusions import Cells, conclude_so_far
from holdfast.run.engines.ranks import Ranks
from holdfast.run.forecast import Piece, pictures_of
from holdfast.run.shards import rows_in_shards, stored_prefix

SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Fractions of the planned rows. The first stands for the fewest rows that give an answer."""
ATTACKED = 50
"""Places of the scorecard before this one are rows under attack."""
LITTLE = 0.1
"""Pictures that take a smaller share of what an observation may take at once need no step of their own."""
LONG = 120.0
"""Seconds: a run with less time left writes no report before its last one."""
REPORTS = 0.03
"""Fraction of the time that partial results and reports may take."""

WriteReport = Callable[[RunState], None]
"""Writes the report of what is stored, with how far the run is."""


@final
@dataclass(frozen=True)
class Step:
    """Step that brings an observation to a fraction of its rows."""

    observation: Observation
    rows: int
    """Number of rows, the first in random order, that are seen afterwards."""
    answers: bool
    """Whether there is no answer before the step is complete."""
    fits: tuple[Fit[Any], ...]
    """Learned first."""
    seconds: float
    """Expected time, with conclusions and pictures that take long."""
    concluding: dict[Piece, float] = field(default_factory=dict)
    """Seconds of these conclusions."""
    pictures: dict[Piece, dict[Piece, int]] = field(default_factory=dict)
    """Rows that the pictures of full results observe again."""
    alone: bool = False
    """Whether, under a budget, the step is taken by itself and only if there is time for all of it."""


def step_to(share: float, state: EncoderState, observation: Observation, work: Computing) -> Step | None:
    """Return what brings ``observation`` to ``share`` of its rows; None if it is there, or if the rest takes too long."""
    name, group, population = state.encoder.name, state.groups[observation], state.planning
    budgeted = work.deadline.budget is not None
    fits = tuple(
        fit for fit in dict.fromkeys(fit for each in group for fit in fits_of(each)) if fit not in state.learned
    )
    learning = sum((work.forecast.expected((name, fit), 1) for fit in fits), 0.0)
    try:
        total, count = len(observation.rows(population)), len(stored_prefix(observation, population, work.store))
    except BudgetSpentError:  # which images it looks at is learned, too
        return Step(observation, 0, True, fits, learning, alone=budgeted)
    if count == total and not fits:
        return None
    concluding: dict[Piece, float] = {(name, each): long for each in group if (long := each.concluding(population))}
    if fits and any(each.partial and not each.fewest for each in group):  # fits alone give an answer
        return Step(observation, 0, True, fits, learning + sum(concluding.values()), concluding, alone=budgeted)
    partial = any(each.partial for each in group)
    if not partial and not budgeted and share < 1:
        return None  # it would keep the others from their first answers
    fewest = min(total, Evaluation.fewest) if partial else total
    row = sum((work.forecast.row((name, part)) for part in parts(observation)), 0.0) * work.forecast.side_by_side
    ample = work.deadline.seconds_of_turn / (2 * max(1, len(state.groups)))
    if share == SHARES[0] and count >= fewest and not fits:
        return None
    little = count >= fewest and (total - count) * row <= ample  # nearly nothing beside the others
    rows = total if little else max(fewest, ceil(share * total))
    if rows < min(total, 2 * count):
        return None  # a few rows would be a shard of their own
    if not budgeted:  # the whole shards of an unbroken run
        rows = max(rows_in_shards(rows, part.rows(population), part, population) for part in parts(observation))

    def to(rows: int) -> Step | None:
        if rows <= count and not fits:
            return None
        seconds = learning + max(0, rows - count) * row
        return Step(observation, rows, count < fewest, fits, seconds, alone=budgeted and bool(fits))

    if rows < total:
        return to(rows)
    pictures = pictures_of(name, observation, group, total)
    shown = sum((row * max(again.values()) for again in pictures.values()), 0.0)
    seconds = learning + (total - count) * row + sum(concluding.values()) + shown
    if pictures and partial and total > fewest and not work.deadline.affords(seconds):
        return to(total - 1)  # a partial result, whose pictures come with the full one
    alone = budgeted and (bool(fits or concluding) or shown > LITTLE * ample)
    return Step(observation, total, count < fewest, fits, seconds, concluding, pictures, alone)


def place_of(group: Sequence[Evaluation]) -> float:
    """Return the first place in the scorecard of rows under attack that one of ``group`` answers; infinite if none."""
    return min(
        (float(asked.place) for each in group for asked in each.questions if asked.place < ATTACKED), default=inf
    )


@final
@dataclass
class Schedule:
    """Brings encoders forward side by side, and has reports written of what is known so far."""

    cells: Cells
    encoders: Sequence[EncoderState]
    write: WriteReport | None = None
    cost: float = 0.0
    """Seconds that the last partial results and report took ..."""
    last: float = -inf
    """... and when that was."""

    @property
    def work(self) -> Computing:
        """What computes."""
        return self.cells.work

    def run(self) -> None:
        """Go on until everything is seen or the time is spent."""
        if isinstance(self.work.engine, Ranks):  # they would wait for each other at every step
            for position, state in enumerate(self.encoders):
                self.work.deadline.begin_turn(1 / (len(self.encoders) - position))
                self.work.forward(state, state.groups)
            return
        if self.work.deadline.budget is not None:
            self._reach(SHARES[0], [each for each in self.encoders if not is_baseline(each.encoder)])
        for share in SHARES:
            self._reach(share, self.encoders)

    def _reach(self, share: float, encoders: Sequence[EncoderState]) -> None:
        """Bring ``encoders`` to a fraction of the rows; at first nothing begins that would outlast its encoder's turn."""
        for strict in (True, False):
            while not self.work.deadline.passed and self._turns(share, encoders, strict):
                if self.work.deadline.seconds_left > LONG:
                    self._report()

    def _turns(self, share: float, encoders: Sequence[EncoderState], strict: bool) -> bool:
        """Give each of ``encoders`` a turn and return whether any made progress."""
        going, deadline = False, self.work.deadline
        for position, state in enumerate(encoders):
            deadline.begin_turn(1 / (len(encoders) - position), strict)
            going |= self._turn(share, state)
            if deadline.budget is not None and share == SHARES[0] and position == 0:
                conclude_so_far(state, self.cells)  # from then on it is known how long conclusions take
            if len(self.encoders) > 1:
                state.release()
        return going

    def _turn(self, share: float, state: EncoderState) -> bool:
        """Bring an encoder to a fraction of its rows, cheap evaluations first, and return whether any made progress."""
        urgent = self.work.deadline.budget is not None and share == SHARES[0]

        def order(step: Step) -> tuple[float, float]:
            return place_of(state.groups[step.observation]) if urgent else inf, step.seconds

        steps, went = sorted(self._steps(share, state), key=order), False
        for alone, some in groupby(steps, key=lambda step: step.alone or order(step)[0] < inf):
            for batch in ([step] for step in some) if alone else [list(some)]:
                if not alone or self.work.deadline.affords(batch[0].seconds):
                    went |= self._take(state, batch)
        return went

    def _steps(self, share: float, state: EncoderState) -> Iterator[Step]:
        """Yield the missing step of every observation; one that cannot be planned has failed."""
        for observation in state.groups:
            try:
                step = None if state.failure_of(observation) else step_to(share, state, observation, self.work)
            except Exception as error:  # what it needs could not be learned, say
                state.failed[parts(observation)[0]] = error
                continue
            if step:
                yield step

    def _take(self, state: EncoderState, steps: Sequence[Step]) -> bool:
        """Fit and observe what these steps need, and return whether there was time for any of it."""
        fits = tuple(dict.fromkeys(fit for step in steps for fit in step.fits))
        for fit in fits:
            if isinstance(learned := learn(self.work, state.population, fit), BudgetSpentError):
                return False
            state.learned[fit] = learned
            state.release()  # later populations know it
        for step in steps:
            self.work.forecast.concluding |= step.concluding
            self.work.forecast.pictures |= step.pictures
        first = {step.observation: step.rows for step in steps}
        groups = {step.observation: state.groups[step.observation] for step in steps if step.rows}
        whole = [step.observation for step in steps if step.answers]
        return self.work.forward(state, groups, first, whole) or bool(fits)

    def _report(self) -> None:
        """Conclude from the observations so far and write the report, unless it is too soon."""
        work, since = self.work, monotonic()
        budget = work.deadline.budget
        dear = budget is not None and work.forecast.conclusions > REPORTS * budget
        if dear or since - self.last < self.cost / REPORTS:
            return
        for state in self.encoders:
            conclude_so_far(state, self.cells)
        if self.write is not None and (self.cells.concluded or self.cells.partial):
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            self.write(RunState(work.finished, work.deadline.seconds_left, now))
        self.last = monotonic()
        self.cost = self.last - since
