"""What all forms of a report show: groups, tables, scorecards, counts and plots, each computed once and when first asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast.core.records import Failure, Result
from holdfast.report.comparison import Comparison, compare
from holdfast.report.comparison.protocol import Group, groups
from holdfast.report.comparison.tables import Table, summary
from holdfast.report.figures.plots import Plate, plates
from holdfast.report.overview.scorecard import Scorecard, scorecards
from holdfast.report.overview.tally import Tally, tally


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
    def scorecards(self) -> tuple[Scorecard, ...]:
        """Return the answers to plain questions: one card per table that answers any."""
        return scorecards(self.groups, self.comparison, self.tables)

    @cached_property
    def plates(self) -> dict[str, tuple[Plate, ...]]:
        """Return the plots by the key of their group."""
        return {group.key: plates(group, self.comparison.encoders) for group in self.groups}
