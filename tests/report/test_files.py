"""The files beside the page: the same numbers, readable by programs."""

from __future__ import annotations

import csv
import html
import json
import os
import re
from math import isnan
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.report import write
from holdfast.report.comparison.comparable import groups
from holdfast.report.comparison.compare import compare
from holdfast.report.comparison.tables import summary
from holdfast.report.files import Report
from holdfast.report.printed import latex, markdown
from holdfast.report.text import number
from tests.facts import says
from tests.report.synthetic import breakaway, displacement, everything

CASE = ("ball", "attack", "divergence")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    results, failures = everything()
    return write(results, failures, tmp_path_factory.mktemp("report") / "new" / "folder")


def test_every_file_is_there_and_nothing_else(written):
    tables = {"report.html", "report.json", "schema.json", "table.csv", "table.md", "table.tex"}
    charts = {name for name in written if name.startswith("charts/")}
    assert set(written) == tables | charts
    folder = written["report.html"].parent
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(written)


def test_every_chart_of_the_page_is_a_file_that_stands_alone(written):
    charts = {name: path.read_text(encoding="utf-8") for name, path in written.items() if name.startswith("charts/")}
    page = written["report.html"].read_text(encoding="utf-8")
    assert len(charts) == page.count("<svg ") > 10
    assert "charts/breakaway-breakaway-risk-by-linf-radius-linf-l2.svg" in charts
    for svg in charts.values():
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(r"var\(|currentColor|url\((?!#)", svg)
        said = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "digits-robust" in said, "the key is missing"


def test_the_json_holds_the_records_and_renders_again(written, tmp_path):
    report = Report.model_validate_json(written["report.json"].read_text(encoding="utf-8"))
    again = write(report.results, report.failures, tmp_path)
    for name, path in written.items():
        # The page names its own folder in the command to copy.
        expected = path.read_text(encoding="utf-8").replace(str(path.parent), str(tmp_path))
        assert again[name].read_text(encoding="utf-8") == expected, name


def test_the_json_follows_its_schema(written):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(written["schema.json"].read_text(encoding="utf-8"))
    report = json.loads(written["report.json"].read_text(encoding="utf-8"))
    jsonschema.validate(report, schema)
    report["results"] = report["results"][:1]
    report["results"][0]["findings"]["estimates"][0]["claim"] = "guess"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema)


def test_the_csv_holds_every_estimate(written):
    rows = list(csv.DictReader(written["table.csv"].open(encoding="utf-8", newline="")))
    every = [(r, e) for r in everything()[0] for e in r.estimates]
    alone = [row for row in rows if not row["minus"]]
    assert len(alone) == len(every)
    for r, e in every:
        (row,) = [
            row
            for row in alone
            if (row["encoder"], row["quantity"], row["evaluation"]) == (r.encoder.name, e.quantity, r.evaluation)
            and all(row[f"condition_{key}"] == value for key, value in e.conditions.items())
        ]
        assert row["value"] == ("" if isnan(e.value) else repr(e.value))
        assert row["claim"] == e.claim.value
        assert row["reason"] == (e.reason or "")


def test_a_partial_result_is_said_to_be_one_everywhere(tmp_path):
    results = [breakaway("digits-robust"), breakaway("digits-random", n=60, planned=300)]
    files = {name: path.read_text(encoding="utf-8") for name, path in write(results, [], tmp_path).items()}
    said = "PARTIAL: the run ended after 60 of 300 samples"
    assert said in files["report.html"]
    assert "(60 of 300)" in files["report.html"]
    assert "(60 of 300)" in files["table.md"]
    report = json.loads(files["report.json"])
    assert [result["planned"] for result in report["results"]] == [None, 300]
    rows = csv.DictReader(files["table.csv"].splitlines())
    assert {(row["encoder"], row["planned"]) for row in rows} == {("digits-robust", ""), ("digits-random", "300")}


@pytest.mark.parametrize("name", ["=1+1", "+1a", "-x", "@SUM(A1)", "\t=1"])
def test_names_in_the_csv_are_no_formulas(tmp_path, name):
    files = write([breakaway(name), breakaway("digits-random")], [], tmp_path)
    rows = list(csv.DictReader(files["table.csv"].open(encoding="utf-8", newline="")))
    assert {row["encoder"] for row in rows} == {f"'{name}", "digits-random"}
    assert {row["minus"] for row in rows} - {""} <= {f"'{name}", "digits-random"}
    values = [float(row["value"]) for row in rows if row["minus"]]
    assert min(values) < 0, "vacuous fixture: negative numbers stay numbers"


def test_the_csv_holds_every_paired_difference(written):
    rows = list(csv.DictReader(written["table.csv"].open(encoding="utf-8", newline="")))
    contests = compare(everything()[0]).contests
    pairs = [(contest, pair) for contest in contests for pair in contest.pairs]
    keys = ("evaluation", "quantity", "encoder", "minus", *(f"condition_{key}" for key in CASE))
    minus = {tuple(row[key] for key in keys): row for row in rows if row["minus"]}
    assert len(minus) == len(pairs) > 100
    for c, pair in pairs:
        row = minus[(c.evaluation, c.quantity, pair.a, pair.b, *(c.conditions[key] for key in CASE))]
        apart = pair.difference
        assert [row[key] for key in ("value", "low", "high")] == [repr(n) for n in (apart.value, apart.low, apart.high)]
        assert row["n"] == str(apart.n)
        named = {"a is better": f"{pair.a} is better", "b is better": f"{pair.b} is better"}
        assert row["outcome"].startswith(named.get(apart.outcome, "tied"))


@pytest.mark.parametrize("names", [("digits-random", "digits-robust"), ("digits-random", "digits-robust", "third")])
def test_paired_differences_stand_in_the_tables(names):
    results = [breakaway(name) for name in names]
    comparison = compare(results)
    tables = summary(groups(results), comparison)
    apart = comparison.contests[0].pairs[0].difference
    ends = [number(value) for value in (apart.value, apart.low, apart.high)]
    assert "{} [{}, {}]".format(*ends) in markdown(tables)
    assert "${}$ [${}$, ${}$]".format(*ends) in latex(tables)
    for printed in (markdown(tables), latex(tables).replace("$-$", "−")):
        assert "digits-random − digits-robust" in printed
        assert ("Paired differences" in printed) == (len(names) > 2)


def test_the_same_counts_stand_in_every_output(tmp_path):
    results = [*(make(name) for make in (breakaway, displacement) for name in ("one", "two")), displacement("three")]
    written = write(results, [], tmp_path)
    counts = Report.model_validate_json(written["report.json"].read_text(encoding="utf-8")).tallies
    said = [gap.sentence for gap in counts[0].gaps]
    assert (counts[0].meetings[0].tied, counts[0].conditions) == (8, 8)
    (missing,) = said  # who is better stands in the rows alone: a second count would say another thing
    assert says(missing, "three", 16)
    page = html.unescape(written["report.html"].read_text(encoding="utf-8"))
    assert said[-1] in page
    for text in (
        written["table.md"].read_text(encoding="utf-8"),
        written["table.tex"].read_text(encoding="utf-8"),
    ):
        assert all(sentence in text for sentence in said)
    rows = list(csv.DictReader(written["table.csv"].open(encoding="utf-8", newline="")))
    assert {row["evaluation"] for row in rows if row["rank"]} == {"displacement"}


def test_markdown_is_a_table_with_its_best_in_bold(written):
    lines = written["table.md"].read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {
        6,
        7,
        9,
    }  # four encoders with one or two heads before; their six pairs
    assert sum("**" in line for line in table) > 10
    assert "undefined" in "".join(table)


def test_special_characters_do_not_break_the_tables(tmp_path):
    written = write([breakaway(r"a|b_c & 100% {x} \y $z ~^#<i>")], [], tmp_path)
    lines = written["table.md"].read_text(encoding="utf-8")
    assert r"a\|b\_c & 100% {x} \\y $z ~^\#\<i\>" in lines
    printed = written["table.tex"].read_text(encoding="utf-8")
    assert r"a|b".replace("|", r"\textbar{}") + r"\_c \& 100\% \{x\} \textbackslash{}y \$z" in printed
    assert printed.isascii()


def test_latex_rows_are_grouped_and_have_a_cell_per_encoder(written):
    printed = written["table.tex"].read_text(encoding="utf-8")
    rows = [line for line in printed.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count("&") for line in rows} == {4, 6}  # four encoders; their six pairs
    measures = re.findall(r"\\midrule\n\\multicolumn\{5\}\{l\}\{\\textit\{(.*?) \$", printed)
    assert measures[:2] == ["universal quantile", "relative quantile"]
    assert len(measures) == len(set(measures)) == 6
    assert printed.count(r"\begin{tabular}") == printed.count(r"\end{tabular}") == printed.count(r"\toprule") == 2


def test_latex_numbers_are_mathematics():
    one = breakaway("digits-robust")
    tiny = {"value": 5.6e-4, "low": -3e-7, "high": 12_346.0, "confidence": 0.68}
    estimates = (one.estimates[0].model_copy(update=tiny),)
    one = one.model_copy(update={"findings": one.findings.model_copy(update={"estimates": estimates})})
    printed = latex(summary(groups([one]), compare([one])))
    assert r"$5.6\times10^{-4}$ [$-3.0\times10^{-7}$, $12{,}346$] ($68$\%)" in printed
    two = [breakaway("digits-random"), breakaway("digits-robust")]
    assert r"$\mathbf{5.6\times10^{-4}}$ [$5.0\times10^{-4}$" in latex(summary(groups(two), compare(two)))


def test_a_report_never_half_replaces_the_last(written, monkeypatch, tmp_path):
    results, failures = [breakaway("one"), breakaway("two")], everything()[1]
    before = write(results[:1], failures, tmp_path)["report.html"].read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(HoldfastError, match="No space left"):
        write(results, failures, tmp_path)
    assert not list(tmp_path.rglob(".*"))
    assert (tmp_path / "report.html").read_bytes() == before


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HoldfastError, match="choose a folder"):
        write(everything()[0][:1], [], tmp_path / "file" / "report")
