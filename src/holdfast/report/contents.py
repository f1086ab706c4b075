"""Contents of a report for all its forms: groups, tables, first screens and plots, each computed once.

Also here: the report's heading, the progress of its run, and parts of stored results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

from holdfast.core.errors import HoldfastError, check_known
from holdfast.core.records import Failure, ImagesInfo, Result
from holdfast.report import text
from holdfast.report.comparison.comparable import Group, groups
from holdfast.report.comparison.compare import Comparison, compare
from holdfast.report.comparison.tables import Table, summary
from holdfast.report.figures.plots import Plate, plates
from holdfast.report.gate import fits, selectors
from holdfast.report.overview.first_screen import FirstScreen, first_screens
from holdfast.report.overview.tally import Tally, tally
from holdfast.report.text import listed


@dataclass(frozen=True)
class Contents:
    """Stored records, and what every form of the report derives from them."""

    results: Sequence[Result]
    """Everything measured."""
    failures: Sequence[Failure]
    """The results that are missing."""

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Return the results by protocol."""
        return groups(self.results)

    @cached_property
    def comparison(self) -> Comparison:
        """Return all paired comparisons of the encoders."""
        return compare(self.results)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Return the main numbers: one table per set of images, and one more for each further protocol on it."""
        return summary(self.groups, self.comparison)

    @cached_property
    def tallies(self) -> tuple[Tally, ...]:
        """Return who won how often: one count per table."""
        return tuple(tally(table) for table in self.tables)

    @cached_property
    def first_screens(self) -> tuple[FirstScreen, ...]:
        """Return the first screens, one per table with rows for it."""
        return first_screens(self.groups, self.comparison, self.tables, self.failures)

    @property
    def screen(self) -> FirstScreen | None:
        """Return the first screen of the first table that has one."""
        return self.first_screens[0] if self.first_screens else None

    @cached_property
    def plates(self) -> dict[str, tuple[Plate, ...]]:
        """Return the plots by the key of their group."""
        return {group.key: plates(group, self.comparison.encoders) for group in self.groups}


USUAL = "Robustness of {encoders} on {images}"


def heading(results: Sequence[Result], encoders: str) -> str:
    """Return the heading of ``results``, of which there are some, on ``encoders``: their own if they share one."""
    headings = {result.heading for result in results}
    if "" in headings:
        form = USUAL
    elif len(headings) == 1:
        (form,) = headings
    else:
        form = USUAL.replace("Robustness", listed(dict.fromkeys(result.title for result in results)))
    names = {
        "encoders": encoders,
        "images": _names(result.images for result in results),
        "bank": _names(result.bank for result in results if result.bank),
    }
    return re.sub(r"\{(\w+)\}", lambda place: names.get(place[1], place[0]), form)


def _names(sets: Iterable[ImagesInfo]) -> str:
    return listed(list(dict.fromkeys(images.name for images in sets)) or ["none"])


RELOAD = 20
"""Seconds after which the page of a run that lasts reads itself again from where it lies."""


@dataclass(frozen=True)
class RunState:
    """Progress of a run when its report was written."""

    share: float
    """Fraction of the run's time that has passed."""
    left: float
    """Seconds that it will take yet, infinite if no one knows."""
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


def select_results(results: Sequence[Result], only: Sequence[str] = (), where: Sequence[str] = ()) -> list[Result]:
    """Return ``results`` of the evaluations ``only`` with the numbers, series and curves ``where`` conditions hold.

    Args:
        results: of any encoders.
        only: names of evaluations; none: all.
        where: ``condition=value`` or a ball, as in ``attack=adaptive``, ``linf:8/255`` or ``8/255``; all must hold.

    Raises:
        HoldfastError: there is no such evaluation or condition, or nothing is left.
    """
    known = sorted({result.evaluation for result in results})
    check_known("--only", only, known)
    selected = [result for result in results if not only or result.evaluation in only]
    if not where:
        return selected
    radius, wanted = selectors(where, f"--where {' --where '.join(where)}")
    every = [estimate.conditions for result in selected for estimate in result.estimates]
    keys = sorted({key for conditions in every for key in conditions})
    check_known("--where", wanted, keys)
    left = list[Result]()
    for result in selected:
        kept = {
            name: tuple(item for item in getattr(result.findings, name) if fits(item.conditions, radius, wanted))
            for name in ("estimates", "series", "curves")
        }
        if kept["estimates"]:
            left.append(result.model_copy(update={"findings": result.findings.model_copy(update=kept)}))
    if not left:
        offered = "; ".join(f"{key}: {', '.join(dict.fromkeys(c[key] for c in every if key in c))}" for key in keys)
        raise HoldfastError(f"no number was taken under all of {', '.join(where)}; there are {offered}")
    return left
