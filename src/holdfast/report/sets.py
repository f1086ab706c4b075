"""Several data sets in one table: the numbers of each set, their mean with its interval, and the ranks of the encoders.

The mean over m sets gives every set the same weight. Its interval combines those of sets that share no image:

    mean - low = sqrt(sum_i (value_i - low_i)^2) / m,    high - mean = sqrt(sum_i (high_i - value_i)^2) / m

(Zou and Donner 2008, https://doi.org/10.1002/sim.3095). On one set, encoders are ranked by their values: 1 is the best, and
equal values share the mean of their places. The mean rank is that of Friedman's test.
"""

from __future__ import annotations

import csv as comma
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isnan, nan, sqrt

from holdfast.core.records import Estimate, Result
from holdfast.report import text
from holdfast.report.comparison.comparable import RowKey, baselines, row_key
from holdfast.report.papers import TABLES
from holdfast.report.printed import without_formulas

Cells = Mapping[str, Estimate]
"""Estimates by encoder."""
Key = tuple[str, RowKey]
"""Evaluation, metric and setting of a row."""


def mean(parts: Sequence[Estimate]) -> Estimate:
    """Return the mean of the estimates of several data sets; undefined if one of them is."""
    m = len(parts)
    value = sum(part.value for part in parts) / m
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts)) / m
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts)) / m
    known = isfinite(value) and isfinite(below) and isfinite(above)
    update = {
        "value": value,
        "low": value - below if known else nan,
        "high": value + above if known else nan,
        "n": sum(part.n for part in parts),
        "method": f"mean over {m} data sets",
        "reason": next((part.reason for part in parts if isnan(part.value)), None),
        "most": None,
    }
    return parts[0].model_copy(update=update)


def ranks(cells: Cells) -> dict[str, float]:
    """Return the rank of each encoder by its value; empty if one is undefined or no direction is better."""
    better = {estimate.better for estimate in cells.values()}
    if len(cells) < 2 or "neither" in better or any(isnan(estimate.value) for estimate in cells.values()):
        return {}
    sign = -1 if "higher" in better else 1
    order = sorted(sign * estimate.value for estimate in cells.values())
    places = {value: order.index(value) + (order.count(value) + 1) / 2 for value in order}
    return {name: places[sign * estimate.value] for name, estimate in cells.items()}


@dataclass(frozen=True)
class SetRow:
    """One metric on every data set."""

    evaluation: str
    cells: Mapping[str, Cells]
    """Estimates by data set and encoder."""
    like: Estimate
    """One of them: all share its name, setting and direction."""

    @property
    def title(self) -> str:
        """Name, setting and direction in words."""
        parts = (text.name_of(self.like), text.conditions(self.like.conditions, aim=self.like.aim))
        return f"{' · '.join(filter(None, parts))} {text.ARROWS[self.like.better]}".rstrip()

    def lines(self, unranked: Collection[str]) -> Iterator[tuple[str, Cells, Mapping[str, float]]]:
        """Yield name, estimates and ranks for each data set, and for the mean if there are several."""
        first, *others = self.cells.values()
        everywhere = [name for name in first if all(name in cells for cells in others)]
        places = [
            ranks({name: cells[name] for name in everywhere if name not in unranked}) for cells in self.cells.values()
        ]
        yield from zip(self.cells, self.cells.values(), places, strict=True)
        if others:
            means = {name: mean([cells[name] for cells in self.cells.values()]) for name in everywhere}
            ranked = places[0] if all(places) else {}
            yield (
                f"mean of {len(places)}",
                means,
                {name: sum(each[name] for each in places) / len(places) for name in ranked},
            )


@dataclass(frozen=True)
class Sets:
    """The results of several data sets that were asked for together."""

    results: Mapping[str, Sequence[Result]]
    """Results by data set; empty for a set that was not measured."""
    suite: str = ""

    @property
    def measured(self) -> list[str]:
        """Data sets that have results."""
        return [name for name, results in self.results.items() if results]

    @cached_property
    def _all(self) -> list[Result]:
        return [result for results in self.results.values() for result in results]

    @property
    def encoders(self) -> list[str]:
        """Names of the encoders, in the order of the results."""
        return list(dict.fromkeys(result.encoder.name for result in self._all))

    @cached_property
    def _found(self) -> dict[str, dict[Key, dict[str, Estimate]]]:
        """Return the estimates of each measured data set by row and encoder.

        They are the main metrics, and those of the paper's table in the suite of a paper.
        """
        found: dict[str, dict[Key, dict[str, Estimate]]] = {name: {} for name in self.measured}
        for name, rows in found.items():
            for result in self.results[name]:
                own = (
                    [e for line in TABLES[self.suite] if (e := line.found([result]))]
                    if self.suite in TABLES
                    else [e for e in result.estimates if e.quantity in result.headline]
                )
                for estimate in own:
                    rows.setdefault((result.evaluation, row_key(estimate)), {})[result.encoder.name] = estimate
        return found

    @property
    def rows(self) -> list[SetRow]:
        """Metrics that all measured sets have with the same settings."""
        first, *others = self._found.values() or [{}]
        shared = {key: cells for key, cells in first.items() if all(key in other for other in others)}
        return [
            SetRow(key[0], {name: rows[key] for name, rows in self._found.items()}, next(iter(cells.values())))
            for key, cells in shared.items()
        ]

    @property
    def title(self) -> str:
        """Title of the table."""
        return f"Mean and ranks over {text.counted(len(self.measured), 'data set')}"

    @property
    def note(self) -> str:
        """Note on reading the table and on missing values."""
        sentences = [
            "Each data set has the same weight.",
            "The interval of the mean assumes that the sets share no image.",
            "# is the rank by value; equal values share their places, and baselines have none.",
        ]
        if missing := [name for name in self.results if name not in self.measured]:
            sentences.append(f"Not measured: {', '.join(missing)}.")
        if left_out := len({key for rows in self._found.values() for key in rows}) - len(self.rows):
            sentences.append(
                f"{text.counted(left_out, 'metric')} left out: not measured on every set with the same settings. "
                "Radii that are chosen from the data differ; use --eps to share them."
            )
        return " ".join(sentences)

    def _lines(self) -> Iterator[tuple[SetRow, str, Cells, Mapping[str, float]]]:
        """Yield metric, data set, estimates and ranks, without those of baselines and of collapsed encoders."""
        unranked = {*baselines(self._all), *(each.encoder.name for each in self._all if each.findings.collapsed)}
        for row in self.rows:
            for line in row.lines(unranked):
                yield (row, *line)

    def lines(self) -> Iterator[list[str]]:
        """Yield metric, data set and one cell for each encoder."""
        for row, name, cells, places in self._lines():
            written = list[str]()
            for encoder in self.encoders:
                if (e := cells.get(encoder)) is None:
                    written.append("not measured")
                elif isnan(e.value):
                    written.append(f"n/a ({e.reason or 'no reason was recorded'})")
                else:
                    rank = f" #{places[encoder]:g}" if encoder in places else ""
                    written.append(f"{text.value(e, e.value)} {text.interval(e)}".rstrip() + rank)
            yield [row.title, name, *written]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        head = ["metric", "data set", *self.encoders]
        rows = [[cell.replace("|", r"\|") for cell in row] for row in (head, ["---"] * len(head), *self.lines())]
        return "\n".join([f"{self.title}. {self.note}\n", *("| " + " | ".join(row) + " |" for row in rows), ""])

    def csv(self) -> str:
        """Return one line for each metric, data set and encoder; the data set of a mean is empty."""
        out = io.StringIO()
        writer = comma.writer(out, lineterminator="\n")
        writer.writerow(["evaluation", "quantity", "conditions", "data_set", "encoder", "value", "low", "high", "rank"])
        for row, name, cells, places in self._lines():
            where = "; ".join(f"{key}={value}" for key, value in row.like.conditions.items())
            for encoder, e in cells.items():
                numbers = ["" if isnan(x) else repr(x) for x in (e.value, e.low, e.high)]
                data_set = name if name in row.cells else ""
                line = [row.evaluation, e.quantity, where, data_set, encoder, *numbers, places.get(encoder, "")]
                writer.writerow(without_formulas(line))
        return out.getvalue()
