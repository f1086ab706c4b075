"""Until when a run may compute: its budget, the turn of one encoder in it, and what must be kept for the end."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import final

from holdfast.execution.computing.cost import Forecast

OVERRUN = 1.1
"""How many times the budget a piece of work may be expected to end at and still begin."""
SHORT = 10.0
"""Seconds of work that are done at once, in one round: nobody would look at a part of it."""
REPORT, REPORT_SHARE = 5.0, 0.03
"""The seconds that are kept for the report, and the share of a budget that they are at most."""


@final
@dataclass
class Deadline:
    """What time there is for work whose conclusions ``forecast`` foresees. Moments are by ``time.monotonic``.

    In the order in which they come: the budget began to run (``began``), the turn of the encoder at work is over
    (``turn_end``), no more work begins (``last_beginning``), all work but conclusions and the report must be over
    (``last_end``), what still computes is abandoned (``last_overrun``).
    """

    forecast: Forecast
    budget: float | None
    """Seconds; None for as long as it takes."""
    began: float
    turn_end: float = inf
    strict: bool = False
    """Whether work must end by ``turn_end``, too, and not only begin."""

    def begin_turn(self, share: float, strict: bool = False) -> None:
        """Begin a turn of this share of the time that is left; in a strict one nothing begins that would outlast it."""
        now = monotonic()
        self.turn_end, self.strict = now + (self.last_beginning - now) * share, strict

    def leave_turn(self) -> None:
        """Let work last until the end of the budget again, whoever it is for."""
        self.turn_end = inf

    def affords(self, seconds: float) -> bool:
        """Return whether work that takes so long may begin."""
        if self.budget is None:
            return True
        now = monotonic()
        last_end = self.turn_end if self.strict else self.last_end
        return now < self.last_beginning_of_turn and now + seconds <= last_end

    @property
    def passed(self) -> bool:
        """Whether no more work begins."""
        return monotonic() >= self.last_beginning

    @property
    def last_beginning_of_turn(self) -> float:
        """The moment after which no more work begins in this turn."""
        return min(self.last_beginning, self.turn_end)

    @property
    def last_beginning(self) -> float:
        """The moment after which no more work begins.

        Conclusions, as far as they are known, end no more than a tenth of the budget later.
        """
        if self.budget is None:
            return inf
        return min(self.began + self.budget, self.last_end)

    @property
    def last_end(self) -> float:
        """The moment when all work but conclusions and the report must be over."""
        budget = inf if self.budget is None else self.budget
        after = self.forecast.conclusions + min(REPORT, REPORT_SHARE * budget)
        return self.began + max(OVERRUN * budget - after, budget / 2)

    @property
    def last_overrun(self) -> float:
        """The moment after which a run is too late in any case."""
        return self.began + OVERRUN * (self.budget or inf)

    @property
    def seconds_of_turn(self) -> float:
        """The seconds left of this turn: without a budget as many as have passed, for rounds double."""
        if self.budget is None:
            return max(SHORT, monotonic() - self.began)
        return max(0.0, self.last_beginning_of_turn - monotonic())

    @property
    def seconds_left(self) -> float:
        """The seconds until everything is done, or the budget ends; infinite while nobody knows."""
        seconds = self.forecast.seconds_left
        return seconds if self.budget is None else min(seconds, max(0.0, self.began + self.budget - monotonic()))
