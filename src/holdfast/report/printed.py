"""The summary as Markdown and LaTeX, every estimate as CSV, and answers to gates as Markdown."""

from __future__ import annotations

import csv as comma
import io
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import isnan
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from holdfast.core.records import Estimate, Result
from holdfast.report import text
from holdfast.report.comparison import tables as differences
from holdfast.report.comparison.comparable import Group
from holdfast.report.comparison.compare import Comparison, Pair
from holdfast.report.comparison.tables import Cell, Row, Section, Table
from holdfast.report.gate import Answer
from holdfast.report.overview.first_screen import FirstScreen
from holdfast.report.overview.tally import tally

FIXED = (
    "evaluation", "version", "protocol", "images", "encoder", "minus", "quantity", "value", "low", "high", "confidence", "n",
    "method", "claim", "of", "unit", "better", "rank", "outcome", "reason",
    "planned",
)  # fmt: skip

FORMULA = re.compile(r"[=+\-@\t\r]")
"""Characters at the start of a text that spreadsheets take for a formula: https://owasp.org/www-community/attacks/CSV_Injection"""


def csv(groups: Sequence[Group], comparison: Comparison) -> str:
    """Return one line per estimate and one per paired difference, which names the other encoder under ``minus``.

    Each condition is a column of its own, and undefined values are empty. Text that a spreadsheet would run as a formula
    begins with an apostrophe.
    """
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
                where = [e.conditions.get(key, "") for key in keys]
                fixed = _fixed(group, result, name, e)
                writer.writerow(
                    without_formulas([*(fixed | {"rank": rank, "reason": e.reason or ""}).values(), *where])
                )
                for pair in contest.pairs if contest else ():
                    if pair.a == name:
                        writer.writerow(without_formulas([*(fixed | _minus(pair, e)).values(), *where]))
    return out.getvalue()


def _fixed(group: Group, result: Result, name: str, e: Estimate) -> dict[str, object]:
    values = (
        result.evaluation, result.version, group.key, result.images.name, name, "", e.quantity,
        *map(_digits, (e.value, e.low, e.high)), e.confidence, e.n, e.method, e.claim.value, e.of, e.unit, e.better,
        "", "", "", "" if result.planned is None else result.planned,
    )  # fmt: skip
    return dict(zip(FIXED, values, strict=True))


def _minus(pair: Pair, e: Estimate) -> dict[str, object]:
    gap = pair.difference
    return {
        "minus": pair.b,
        **{name: _digits(getattr(gap, name)) for name in ("value", "low", "high")},
        "n": gap.n,
        "method": "paired, sample by sample" if gap.paired else "from the two intervals, as if independent",
        "claim": "estimate",
        "of": f"difference of {e.of}",
        "outcome": differences.outcome(pair),
    }


def without_formulas(cells: Sequence[object]) -> list[object]:
    """Return ``cells`` with an apostrophe before text, of whatever name, that a spreadsheet would take for a formula.

    Example:
        >>> without_formulas(["=1+1", "resnet", "-0.5", 3])
        ["'=1+1", 'resnet', '-0.5', 3]
    """
    return [
        f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) and not _is_number(cell) else cell for cell in cells
    ]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _digits(value: float) -> str:
    return "" if isnan(value) else repr(value)


def markdown(tables: Sequence[Table], screens: Sequence[FirstScreen] = ()) -> str:
    """Return first screens and tables; the best value is bold, those tied for best are marked with ``=``."""
    parts = [_screen(screen) for screen in screens]
    for table in tables:
        names = [_markdown(name) for name in table.encoders]
        near, separate = differences.pairs_in_table(table), differences.table_of_differences(table)
        rows = [
            (section, row, [_markdown_cell(cell) for cell in row.cells] + _differences(row, near, str))
            for section, row in _rows(table)
        ]
        lines = [f"### {_markdown(table.title)}", "", *_grid([*names, *_heads(near, _markdown)], rows)]
        if separate.sections:
            pairs = differences.pairs(separate)
            rows = [(section, row, _differences(row, pairs, str)) for section, row in _rows(separate)]
            lines += ["", "Paired differences:", "", *_grid(_heads(pairs, _markdown), rows)]
        lines += [
            "",
            *(f"- {_markdown(note)}" for note in (*(gap.sentence for gap in tally(table).gaps), *table.notes)),
        ]
        parts.append("\n".join(lines).rstrip())
    legend = (
        "Bold: best. =: tied for best. [ ]: interval. A − B: difference on the same images. ↓ ↑: the better direction."
    )
    return "\n\n".join([*parts, legend]) + "\n"


COMMENT = 60_000
"""Characters of a table that fit into a comment on a pull request (65,536) with its other text."""


def gates_markdown(answers: Sequence[Answer], results: Sequence[Result], warnings: Sequence[str] = ()) -> str:
    """Return a table of ``answers`` about ``results``, failures first, that fits into a comment.

    Rows that do not fit are counted in its last line.
    """
    failed = {answer.gate.text for answer in answers if not answer.passed}
    count = text.counted(len({answer.gate.text for answer in answers}), "gate")
    sets = dict.fromkeys(f"{text.counted(r.images.count, 'image')} of {r.images.name}" for r in results)
    versions = sorted({r.provenance["holdfast"] for r in results if "holdfast" in r.provenance})
    by = f" by holdfast {text.listed(versions)}" if versions else ""
    table = ["| | gate | answer |", "| --- | --- | --- |"]
    table += [
        f"| {'passed' if answer.passed else '**FAILED**'} | {_markdown(answer.gate.text)} | {_markdown(answer.sentence)} |"
        for answer in sorted(answers, key=lambda answer: answer.passed)
    ]
    ends = accumulate(len(line) + 1 for line in table)
    shown = [line for line, end in zip(table, ends, strict=True) if end <= COMMENT]
    parts = [
        f"### Holdfast: {f'{len(failed)} of {count} failed' if failed else f'{count} passed'}",
        _markdown(f"Measured on {text.listed(sets)}{by}.") if sets else "Nothing was measured.",
        "\n".join(f"- {_markdown(warning)}" for warning in warnings),
        "\n".join(shown),
        f"{len(table) - len(shown):,} more answers did not fit." if len(shown) < len(table) else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def gates_junit(answers: Sequence[Answer], errors: Mapping[str, str] | None = None) -> str:
    """Return ``answers`` as JUnit XML: a test for each gate and encoder, whose failure says what was measured.

    Gates that could not be checked are ``errors``, by their text, each with the reason.
    """
    errors = errors or {}
    failed, count = sum(not answer.passed for answer in answers), str(len(answers) + len(errors))
    suite = Element("testsuite", name="holdfast", tests=count, failures=str(failed), errors=str(len(errors)))
    for answer in answers:
        case = SubElement(suite, "testcase", classname=f"holdfast.{answer.encoder}", name=answer.gate.text)
        if not answer.passed:
            SubElement(case, "failure", message=answer.sentence)
        SubElement(case, "system-out").text = answer.sentence
    for gate, reason in errors.items():
        SubElement(SubElement(suite, "testcase", classname="holdfast", name=gate), "error", message=reason)
    indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(suite, encoding="unicode")}\n'


def _screen(screen: FirstScreen) -> str:
    heads = [*screen.encoders, *(["baselines"] if screen.baselines else [])]
    table = [f"| | {' | '.join(map(_markdown, heads))} |", "|" + " --- |" * (1 + len(heads))]
    for name, _, rows in screen.groups:
        table.append(f"| **{_markdown(name)}** |" + " |" * len(heads))
        for row in rows:
            cells = [f"**{_markdown(c.said)}**" if c.best else _markdown(c.said) for c in screen.shown(row)]
            cells += [_markdown(", ".join(screen.beside(row)))] if screen.baselines else []
            table.append(f"| {_markdown(row.title)} ({_markdown(row.under)}) | {' | '.join(cells)} |")
    said = [_markdown(sentence) for sentence in (*screen.verdict, screen.red, screen.amber) if sentence]
    checks = [f"Checks: {_markdown(screen.checks)}"] if screen.checks else []
    return "\n\n".join([f"### {_markdown(screen.title)}", *said, "\n".join(table), *checks])


def _grid(heads: Sequence[str], rows: Sequence[tuple[Section, Row, list[str]]]) -> list[str]:
    return [
        f"| measure | condition | {' | '.join(heads)} |",
        "|" + " --- |" * (2 + len(heads)),
        *(
            f"| {_markdown(_title(section))} | {_markdown(row.where or 'all images')} | {' | '.join(cells)} |"
            for section, row, cells in rows
        ),
    ]


def _heads(pairs: Sequence[tuple[str, str]], escape: Callable[[str], str]) -> list[str]:
    return [escape(differences.head(names)) for names in pairs]


def _differences(row: Row, pairs: Sequence[tuple[str, str]], escape: Callable[[str], str]) -> list[str]:
    return [escape(differences.difference_text(row, names)) for names in pairs]


def latex(tables: Sequence[Table]) -> str:
    """Return the summary as ``tabular`` environments (booktabs) with a group of rows per measure.

    The best value is bold, those tied for best are underlined.
    """
    parts = []
    for table in tables:
        near, separate = differences.pairs_in_table(table), differences.table_of_differences(table)
        heads = [*map(_latex, table.encoders), *_heads(near, _latex)]
        comments = [
            f"% {' '.join(line.split())}" for line in (table.title, *(gap.sentence for gap in tally(table).gaps))
        ]
        cells = {id(row): [*map(_latex_cell, row.cells), *_differences(row, near, _numbers)] for _, row in _rows(table)}
        parts.append("\n".join([*comments, *_tabular(table, heads, cells)]))
        if separate.sections:
            pairs = differences.pairs(separate)
            cells = {id(row): _differences(row, pairs, _numbers) for _, row in _rows(separate)}
            comment = f"% Paired differences. {' '.join(table.title.split())}"
            parts.append("\n".join([comment, *_tabular(separate, _heads(pairs, _latex), cells)]))
    return "\n\n".join(["% Needs \\usepackage{booktabs}. Bold: best; underlined: tied for best.", *parts]) + "\n"


def _tabular(table: Table, heads: Sequence[str], cells: dict[int, list[str]]) -> list[str]:
    lines = [rf"\begin{{tabular}}{{l{'r' * len(heads)}}}", r"\toprule", rf"condition & {' & '.join(heads)} \\"]
    for section in table.sections:
        title = _latex(_title(section))
        lines += [r"\midrule", rf"\multicolumn{{{1 + len(heads)}}}{{l}}{{\textit{{{title}}}}} \\"]
        lines += [
            rf"\quad {_latex(row.where or 'all images')} & {' & '.join(cells[id(row)])} \\" for row in section.rows
        ]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _rows(table: Table) -> list[tuple[Section, Row]]:
    return [(section, row) for section in table.sections for row in section.rows]


def _title(section: Section) -> str:
    return f"{section.title} {text.ARROWS[section.like.better]} ({section.like.claim})".replace("  ", " ")


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    value = f"{cell.value} {cell.interval}".strip()
    return {"best": "**{}**", "tied": "{} ="}.get(cell.mark, "{}").format(value)


def _latex_cell(cell: Cell | None) -> str:
    """Return a cell in LaTeX with the mark inside the number, because text commands do not reach into mathematics."""
    if cell is None:
        return "--"
    style = {"best": r"\mathbf{{{}}}", "tied": r"\underline{{{}}}"}.get(cell.mark, "{}")
    return f"{_numbers(cell.value, style)} {_numbers(cell.interval)}".strip()


def _markdown(words: str) -> str:
    for mark in "\\`*_|<>[]#":
        words = words.replace(mark, f"\\{mark}")
    return " ".join(words.split())


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≤": r"$\le$",
    "ℓ∞": r"$\ell_\infty$", "ℓ2": r"$\ell_2$", "ℓ1": r"$\ell_1$",
    "∞": r"$\infty$", "↓": r"$\downarrow$", "↑": r"$\uparrow$", "−": "$-$", "·": r"$\cdot$", "–": "--",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def _latex(words: str) -> str:
    return _escaped(" ".join(words.split()))


def _escaped(words: str) -> str:
    return re.sub("|".join(map(re.escape, SPECIAL)), lambda match: SPECIAL[match[0]], words)


NUMBER = re.compile(r"−?(?:∞|\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)")


def _numbers(words: str, style: str = "{}") -> str:
    """Return ``words`` in LaTeX with its numbers as mathematics.

    Example:
        >>> print(_numbers("5.6e-4 [−∞, 12,346] (68%)"))
        $5.6\\times10^{-4}$ [$-\\infty$, $12{,}346$] ($68$\\%)
    """
    parts, end = [], 0
    for match in NUMBER.finditer(words):
        mantissa, _, exponent = match[0].partition("e")
        digits = mantissa.replace("−", "-").replace("∞", r"\infty").replace(",", "{,}")
        power = rf"\times10^{{{exponent}}}" if exponent else ""
        parts += [_escaped(words[end : match.start()]), f"${style.format(digits + power)}$"]
        end = match.end()
    return "".join([*parts, _escaped(words[end:])])
