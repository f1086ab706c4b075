"""The summary as Markdown and LaTeX, and every estimate as CSV."""

from __future__ import annotations

import csv as comma
import io
import re
from collections.abc import Callable, Sequence
from math import isnan

from holdfast.report import text
from holdfast.report.compare import Comparison
from holdfast.report.protocol import Group
from holdfast.report.tables import Cell, Row, Section, Table

FIXED = (
    "evaluation", "version", "protocol", "images", "encoder", "quantity", "value", "low", "high", "confidence", "n",
    "method", "claim", "of", "unit", "better", "rank", "reason",
)  # fmt: skip


def csv(groups: Sequence[Group], comparison: Comparison) -> str:
    """Return one line per estimate; each condition is a column of its own, and undefined values are empty."""
    every = [estimate for group in groups for result in group.results for estimate in result.estimates]
    keys = list(dict.fromkeys(key for estimate in every for key in estimate.conditions))
    out = io.StringIO()
    writer = comma.writer(out, lineterminator="\n")
    writer.writerow([*FIXED, *(f"condition_{key}" for key in keys)])
    for group in groups:
        for name, result in group.items():
            for e in result.estimates:
                contest = comparison.contest(group.key, e)
                rank = contest.ranks.get(name, "") if contest else ""
                numbers = ["" if isnan(value) else repr(value) for value in (e.value, e.low, e.high)]
                fixed = (
                    result.evaluation, result.version, group.key, result.images.name, name, e.quantity, *numbers,
                    e.confidence, e.n, e.method, e.claim.value, e.of, e.unit, e.better, rank, e.reason or "",
                )  # fmt: skip
                writer.writerow([*fixed, *(e.conditions.get(key, "") for key in keys)])
    return out.getvalue()


def markdown(tables: Sequence[Table]) -> str:
    """Return the summary tables; the best value is bold, those tied for best are marked with ``=``."""
    parts = []
    for table in tables:
        names = [_markdown(name) for name in table.encoders]
        lines = [f"### {_markdown(table.title)}", "", f"| measure | under | {' | '.join(names)} |"]
        lines.append("|" + " --- |" * (2 + len(names)))
        for section, row in _rows(table):
            cells = [_styled(cell, "**{}**", "{} =", str) for cell in row.cells]
            lines.append(f"| {_markdown(_title(section))} | {_markdown(_under(row))} | {' | '.join(cells)} |")
        lines += ["", *(f"- {_markdown(note)}" for note in table.notes)]
        parts.append("\n".join(lines).rstrip())
    return "\n\n".join([*parts, "Bold: best. =: tied for best. [ ]: interval. ↓ ↑: the better direction."]) + "\n"


def latex(tables: Sequence[Table]) -> str:
    """Return the summary as ``tabular`` environments (booktabs); the best value is bold, those tied are underlined."""
    parts = []
    for table in tables:
        names = " & ".join(_latex(name) for name in table.encoders)
        lines = [
            f"% {table.title}".replace("\n", " "),
            rf"\begin{{tabular}}{{ll{'r' * len(table.encoders)}}}",
            r"\toprule",
        ]
        lines += [rf"measure & under & {names} \\", r"\midrule"]
        for section, row in _rows(table):
            cells = [_styled(cell, r"\textbf{{{}}}", r"\underline{{{}}}", _latex) for cell in row.cells]
            lines.append(rf"{_latex(_title(section))} & {_latex(_under(row))} & {' & '.join(cells)} \\")
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(["% Needs \\usepackage{booktabs}. Bold: best; underlined: tied for best.", *parts]) + "\n"


def _rows(table: Table) -> list[tuple[Section, Row]]:
    return [(section, row) for section in table.sections for row in section.rows]


def _title(section: Section) -> str:
    return f"{section.title} {text.ARROWS[section.like.better]} ({section.like.claim})".replace("  ", " ")


def _under(row: Row) -> str:
    return " · ".join(filter(None, (row.first, row.rest))) or "all images"


def _styled(cell: Cell | None, best: str, tied: str, escape: Callable[[str], str]) -> str:
    if cell is None:
        return "–"
    value = escape(f"{cell.value} {cell.interval}".strip())
    return {"best": best, "tied": tied}.get(cell.mark, "{}").format(value)


def _markdown(said: str) -> str:
    for mark in "\\`*_|<>[]#":
        said = said.replace(mark, f"\\{mark}")
    return " ".join(said.split())


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≤": r"$\le$",
    "ℓ∞": r"$\ell_\infty$", "ℓ2": r"$\ell_2$", "ℓ1": r"$\ell_1$",
    "∞": r"$\infty$", "↓": r"$\downarrow$", "↑": r"$\uparrow$", "−": "$-$", "·": r"$\cdot$", "–": "--",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def _latex(said: str) -> str:
    pattern = "|".join(re.escape(mark) for mark in SPECIAL)
    return re.sub(pattern, lambda found: SPECIAL[found[0]], " ".join(said.split()))
