"""What a run that goes on has to show: partial results and a report, renewed as rounds end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import final

from holdfast.execution.computing.subject import Subject
from holdfast.execution.table.cells import Cells
from holdfast.execution.table.conclusions import conclude_so_far
from holdfast.report.run_state import RunState

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

    def rehearse(self, subject: Subject) -> None:
        """Conclude what was seen of an encoder, once: how long conclusions take is known from then on."""
        if not self.rehearsed:
            self.rehearsed = True
            conclude_so_far(subject, self.cells)

    def report(self, encoders: Sequence[Subject]) -> None:
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
