"""Rounds: all encoders go forward together, each for its share of the time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

from holdfast.core.errors import BudgetSpentError
from holdfast.execution.computing import Computing
from holdfast.execution.conclusions import rehearse
from holdfast.execution.engines.ranks import Ranks
from holdfast.execution.fitting import learn
from holdfast.execution.steps import Step, steps
from holdfast.execution.subject import Subject
from holdfast.protocol.fits import Fit


@final
@dataclass(frozen=True)
class Rounds:
    """Encoders that share a budget.

    In a round nothing begins that would outlast its encoder's turn, unless nothing else is left; what one encoder does not
    need is shared by the others.
    """

    work: Computing
    encoders: Sequence[Subject]

    def run(self) -> None:
        """Bring all encoders forward until all is seen or the time is spent."""
        if isinstance(self.work.engine, Ranks):
            self._once()
            return
        strict, rehearsed = True, False
        while not self.work.over:
            going = self._round(strict, rehearsed)
            rehearsed = True
            if not going and not strict:
                return
            strict = going

    def _once(self) -> None:
        """Give each encoder one turn: ranks would wait for each other at every step."""
        for place, subject in enumerate(self.encoders):
            self.work.turn(1 / (len(self.encoders) - place))
            self.work.forward(subject, subject.groups)

    def _round(self, strict: bool, rehearsed: bool) -> bool:
        """Give each encoder a turn, and return whether any went forward."""
        going = False
        for place, subject in enumerate(self.encoders):
            self.work.turn(1 / (len(self.encoders) - place), strict)
            going |= self._advance(subject)
            if not rehearsed and place == 0:
                rehearse(subject, self.work)
            if len(self.encoders) > 1:
                subject.rest()
        return going

    def _advance(self, subject: Subject) -> bool:
        """Bring an encoder's cells one step forward, the quickest first, and return whether there was time for any."""
        planned = sorted(steps(subject, self.work), key=lambda step: step.seconds)
        went = False
        for alone, some in groupby(planned, key=lambda step: step.alone):
            if alone:
                for step in some:
                    went |= self._take_alone(subject, step)
            else:
                went |= self._take(subject, list(some))
        return went

    def _take_alone(self, subject: Subject, step: Step) -> bool:
        """Learn what a step needs and observe what it asks for, if there is time for all of it."""
        if not self.work.affordable(step.seconds) or not self._learned(subject, step.fits):
            return False
        self._take(subject, [step])
        return True

    def _take(self, subject: Subject, taken: Sequence[Step]) -> bool:
        """Observe what these steps ask for, and return whether there was time for any of it."""
        for step in taken:
            self.work.forecast.concluding |= step.concluding
            self.work.forecast.pictures |= step.pictures
        groups = {step.observation: subject.groups[step.observation] for step in taken}
        first = {step.observation: step.rows for step in taken}
        whole = [step.observation for step in taken if step.whole]
        return self.work.forward(subject, groups, None, first, whole)

    def _learned(self, subject: Subject, fits: Sequence[Fit[Any]]) -> bool:
        """Return whether all ``fits`` are learned now, or known to be impossible; fewer are if the time is spent."""
        for fit in fits:
            if fit not in subject.learned:
                learned = learn(self.work, subject.population, fit)
                if isinstance(learned, BudgetSpentError):
                    return False
                subject.know(fit, learned)
        return True
