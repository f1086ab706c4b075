"""Rounds in which all encoders and evaluations go forward together, and the reports of unfinished runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from math import inf
from time import monotonic
from typing import Any, final

from holdfast.core.errors import BudgetSpentError
from holdfast.encoders.baseline import is_baseline
from holdfast.measure.population import Fit
from holdfast.report.contents import RunState
from holdfast.run.computing import Computing, EncoderState, learn
from holdfast.run.conclusions import Cells, conclude_so_far
from holdfast.run.engines.ranks import Ranks
from holdfast.run.steps import Step, steps

WriteReport = Callable[[RunState], None]
"""Writes the report of what is stored, with how far the run is."""
SHARE = 0.03
"""The share of the time that partial results and reports may take."""


@final
@dataclass
class Interim:
    """Concludes what was seen so far and has the report written, as often as that takes a small share of the time."""

    cells: Cells
    write: WriteReport | None = None
    cost: float = 0.0
    """The seconds that it took last ..."""
    last: float = -inf
    """... and when that was."""
    rehearsed: bool = False

    def rehearse(self, subject: EncoderState) -> None:
        """Conclude what was seen of an encoder, once: how long conclusions take is known from then on."""
        if not self.rehearsed:
            self.rehearsed = True
            conclude_so_far(subject, self.cells)

    def report(self, encoders: Sequence[EncoderState]) -> None:
        """Conclude what was seen of ``encoders`` and have the report written, unless it is too soon for that."""
        work, since = self.cells.work, monotonic()
        budget = work.deadline.budget
        dear = budget is not None and work.forecast.conclusions > SHARE * budget
        if dear or since - self.last < self.cost / SHARE:
            return
        for subject in encoders:
            conclude_so_far(subject, self.cells)
        if self.write is not None and (self.cells.concluded or self.cells.partial):
            self.write(
                RunState(work.finished, work.deadline.seconds_left, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))
            )
        self.last = monotonic()
        self.cost = self.last - since


# Rounds: all encoders and all questions go forward together, so that a run has answers to everything whenever it
# stops.
#
# Under a budget each encoder has its share of the time that is left, and baselines wait until the others have their
# first answers. Without one a round waits for nothing that takes longer than all before it.

LONG = 120.0
"""Seconds that are left of a run which has something to show before: for less nobody opens a page."""


@final
@dataclass(frozen=True)
class Rounds:
    """Encoders that are measured side by side.

    In a round nothing begins that would outlast its encoder's turn, unless nothing else is left; what one encoder does not
    need is shared by the others. Under a budget nothing is seen better before everything has an answer that can have one.
    """

    work: Computing
    encoders: Sequence[EncoderState]
    interim: Interim

    def run(self) -> None:
        """Bring all encoders forward until all is seen or the time is spent."""
        if isinstance(self.work.engine, Ranks):
            self._once()
            return
        if self.work.deadline.budget is None:
            self._while_any_goes(self.encoders, covering=False)
            return
        self._while_any_goes([each for each in self.encoders if not is_baseline(each.encoder)], covering=True)
        self._while_any_goes(self.encoders, covering=True)
        self._while_any_goes(self.encoders, covering=False)

    def _while_any_goes(self, encoders: Sequence[EncoderState], covering: bool) -> None:
        """Go on while there is time for anything; if ``covering``, for what has no answer yet."""
        strict = True
        while not self.work.deadline.passed:
            going = self._round(encoders, strict, covering)
            if not going and not strict:
                return
            strict = going
            if going and not self.work.deadline.passed and self.work.deadline.seconds_left > LONG:
                self.interim.report(self.encoders)

    def _once(self) -> None:
        """Give each encoder one turn: ranks would wait for each other at every step."""
        for position, subject in enumerate(self.encoders):
            self.work.deadline.begin_turn(1 / (len(self.encoders) - position))
            self.work.forward(subject, subject.groups)

    def _round(self, encoders: Sequence[EncoderState], strict: bool, covering: bool) -> bool:
        """Give each of ``encoders`` a turn, and return whether any went forward."""
        going, deadline = False, self.work.deadline
        for position, subject in enumerate(encoders):
            deadline.begin_turn(1 / (len(encoders) - position), strict)
            going |= self._together(subject, strict) if deadline.budget is None else self._advance(subject, covering)
            if deadline.budget is not None and position == 0:
                self.interim.rehearse(subject)
            if len(self.encoders) > 1:
                subject.release()
        return going

    def _together(self, subject: EncoderState, strict: bool) -> bool:
        """Bring an encoder's cells one step forward, all at once so that no worker waits, and return whether any went.

        What would take longer than everything before it waits until nothing else is left.
        """
        planned = sorted(steps(subject, self.work), key=lambda step: step.seconds)
        taken = (
            [step for step in planned if step.seconds <= self.work.deadline.seconds_of_turn] if strict else planned[:1]
        )
        fits = dict.fromkeys(fit for step in taken for fit in step.fits)
        went = self._learned(subject, tuple(fits)) and bool(fits)
        return self._take(subject, taken) or went

    def _advance(self, subject: EncoderState, covering: bool) -> bool:
        """Bring an encoder's cells one step forward, the quickest first, and return whether there was time for any."""
        planned = sorted(steps(subject, self.work), key=lambda step: step.seconds)
        planned = [step for step in planned if step.whole or not covering]
        went = False
        for alone, some in groupby(planned, key=lambda step: step.alone):
            if alone:
                for step in some:
                    went |= self._take_alone(subject, step)
            else:
                went |= self._take(subject, list(some))
        return went

    def _take_alone(self, subject: EncoderState, step: Step) -> bool:
        """Learn what a step needs and observe what it asks for, if there is time for all of it."""
        if not self.work.deadline.affords(step.seconds) or not self._learned(subject, step.fits):
            return False
        self._take(subject, [step])
        return True

    def _take(self, subject: EncoderState, steps: Sequence[Step]) -> bool:
        """Observe what these steps ask for, and return whether there was time for any of it."""
        for step in steps:
            self.work.forecast.concluding |= step.concluding
            self.work.forecast.pictures |= step.pictures
        groups = {step.observation: subject.groups[step.observation] for step in steps if step.rows}
        first = {step.observation: step.rows for step in steps}
        whole = [step.observation for step in steps if step.whole]
        return self.work.forward(subject, groups, first, whole)

    def _learned(self, subject: EncoderState, fits: Sequence[Fit[Any]]) -> bool:
        """Return whether all ``fits`` are learned now, or known to be impossible; fewer are if the time is spent."""
        for fit in fits:
            if fit not in subject.learned:
                learned = learn(self.work, subject.population, fit)
                if isinstance(learned, BudgetSpentError):
                    return False
                subject.add_fit(fit, learned)
        return True
