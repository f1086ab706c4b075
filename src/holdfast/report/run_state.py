"""How far a run is whose report is written while it lasts."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from holdfast.report import text

RELOAD = 20
"""Seconds after which the page of a run that lasts reads itself again from where it lies."""


@dataclass(frozen=True)
class RunState:
    """How far a run was when its report was written."""

    share: float
    """Of its time, what has passed."""
    left: float
    """Seconds that it will take yet, infinite if nobody knows."""
    written: str
    """When that was."""

    @property
    def sentence(self) -> str:
        """Return this in words.

        Example:
            >>> RunState(0.38, 230.0, "2026-11-23 10:00:00 UTC").sentence
            '38% done, about 4 minutes left: intervals will narrow; plots and missing results will follow.'
        """
        left = f", {text.about(self.left)} left" if isfinite(self.left) else ""
        return f"{self.share:.0%} done{left}: intervals will narrow; plots and missing results will follow."
