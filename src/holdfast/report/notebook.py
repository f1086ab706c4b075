"""Notebook output of stored records: first screen, numbers and plots, by the page's templates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

from holdfast.core.errors import HoldfastError, UnknownName, explained
from holdfast.core.files import write_whole
from holdfast.core.records import Failure, Result
from holdfast.report import text
from holdfast.report.comparison.comparable import with_relative_errors
from holdfast.report.comparison.tables import Table
from holdfast.report.contents import Contents
from holdfast.report.figures.plots import Plate, drawings
from holdfast.report.overview.alerts import alerts
from holdfast.report.overview.first_screen import FirstScreen
from holdfast.report.page.page import colours_of, environment


@dataclass(frozen=True)
class Output:
    """Output of one notebook cell, from top to bottom."""

    colours: Mapping[str, str]
    headline: str = ""
    sentences: Sequence[str] = ()
    screens: Sequence[FirstScreen] = ()
    tables: Sequence[Table] = ()
    plates: Sequence[Plate] = field(default_factory=tuple)
    numbers: str = ""
    """No file lies beside a cell."""


@final
@dataclass(frozen=True)
class Drawing:
    """Plots of one evaluation or quantity, encoders overlaid: a notebook shows them, ``save`` writes them."""

    contents: Contents

    @cached_property
    def documents(self) -> dict[str, str]:
        """Every plot as an SVG document that stands alone, by its name."""
        contents = self.contents
        return drawings(contents.groups, contents.plates, contents.comparison.encoders)

    def save(self, folder: str | Path) -> list[Path]:
        """Write every plot as an SVG file into ``folder`` and return their paths.

        Raises:
            HoldfastError: the folder cannot be written.
        """
        paths = [Path(folder) / f"{name}.svg" for name in self.documents]
        with explained(f"plots cannot be written to {folder}", "choose another folder", OSError):
            for path, document in zip(paths, self.documents.values(), strict=True):
                write_whole(path, document.encode())
        return paths

    def _repr_html_(self) -> str:
        contents = self.contents
        plates = [plate for group in contents.groups for plate in contents.plates[group.key]]
        return shown(Output(colours_of(contents.comparison), plates=plates))

    def __repr__(self) -> str:
        return f"{text.counted(len(self.documents), 'plot')}: {', '.join(self.documents)}"


def plot(results: Sequence[Result], what: str | None = None) -> Drawing:
    """Return the plots of ``results``: of the evaluation or the quantity that is called ``what``, or all.

    Raises:
        HoldfastError: there is nothing to draw, or nothing is called so.
    """
    drawing = Drawing(Contents(_about(results, what), ()))
    if not drawing.documents:
        raise HoldfastError(
            f"{what or 'this'} has no curve, and no series that varies, to draw; its numbers are in table()"
        )
    return drawing


def _about(results: Sequence[Result], what: str | None) -> list[Result]:
    if what is None:
        return list(results)
    if of_evaluation := [result for result in results if result.evaluation == what.replace("_", "-")]:
        return of_evaluation
    quantities = {quantity for result in results for quantity in _drawn(result)}
    if what not in quantities:
        known = sorted({result.evaluation for result in results} | quantities)
        raise UnknownName("evaluation or encoder", what, known)
    only = list[Result]()
    for result in (each for each in results if what in _drawn(each)):
        findings = result.findings
        series = tuple(series for series in findings.series if series.quantity == what)
        curves = tuple(curve for curve in findings.curves if curve.quantity == what)
        part = findings.model_copy(update={"series": series, "curves": curves})
        only.append(result.model_copy(update={"findings": part}))
    return only


def _drawn(result: Result) -> set[str]:
    return {series.quantity for series in result.series} | {curve.quantity for curve in result.findings.curves}


def run_html(results: Sequence[Result], failures: Sequence[Failure], headline: str) -> str:
    """Return the first screen of a run, or its main numbers where it has none, and what has no result."""
    contents = Contents(with_relative_errors(results), failures)
    missing = [f"{each.state}: {each.evaluation} of {each.encoder}: {each.reason}" for each in failures]
    screens = contents.first_screens
    tables = () if screens or not results else contents.tables
    return shown(Output(colours_of(contents.comparison), headline, missing, screens, tables))


def result_html(result: Result) -> str:
    """Return the numbers of one result with their intervals, what they mean, and the warnings beside them."""
    contents = Contents([result], ())
    sentences = [result.meaning, *(alert.warning for alert in alerts(contents.groups))]
    headline = f"{result.title}: {result.encoder.name} on {result.images.name}"
    return shown(Output(colours_of(contents.comparison), headline, sentences, tables=contents.tables))


def shown(output: Output) -> str:
    """Return ``output`` as HTML that brings the page's style with it and leaves the notebook's alone."""
    jinja = environment()
    style = jinja.get_template("style.css").render().replace(":root", "&")  # the rules are nested in one element
    html = jinja.get_template("notebook.html").render(page=output, style=style)
    return re.sub(r' href="#[^"]*"', "", html)  # sections of a page that is not there
