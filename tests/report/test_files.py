"""The files beside the page: the same numbers, readable by programs."""

from __future__ import annotations

import csv
import json
from math import isnan
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.report import write
from holdfast.report.files import Report
from tests.report.synthetic import breakaway, everything


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    results, failures = everything()
    return write(results, failures, tmp_path_factory.mktemp("report") / "new" / "folder")


def test_every_file_is_there_and_nothing_else(written):
    assert set(written) == {"report.html", "report.json", "schema.json", "table.csv", "table.md", "table.tex"}
    assert {path.name for path in written["report.html"].parent.iterdir()} == set(written)


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
    report["results"][0]["findings"]["estimates"][0]["claim"] = "guess"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema)


def test_the_csv_holds_every_estimate(written):
    rows = list(csv.DictReader(written["table.csv"].open(encoding="utf-8", newline="")))
    every = [(r, e) for r in everything()[0] for e in r.estimates]
    assert len(rows) == len(every)
    for r, e in every:
        (row,) = [
            row
            for row in rows
            if (row["encoder"], row["quantity"], row["evaluation"]) == (r.encoder.name, e.quantity, r.evaluation)
            and all(row[f"condition_{key}"] == value for key, value in e.conditions.items())
        ]
        assert row["value"] == ("" if isnan(e.value) else repr(e.value))
        assert row["claim"] == e.claim.value
        assert row["reason"] == (e.reason or "")


def test_markdown_is_a_table_with_its_best_in_bold(written):
    lines = written["table.md"].read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}
    assert sum("**" in line for line in table) > 10
    assert "undefined" in "".join(table)


def test_special_characters_do_not_break_the_tables(tmp_path):
    written = write([breakaway(r"a|b_c & 100% {x} \y $z ~^#<i>")], [], tmp_path)
    markdown = written["table.md"].read_text(encoding="utf-8")
    assert r"a\|b\_c & 100% {x} \\y $z ~^\#\<i\>" in markdown
    latex = written["table.tex"].read_text(encoding="utf-8")
    assert r"a|b".replace("|", r"\textbar{}") + r"\_c \& 100\% \{x\} \textbackslash{}y \$z" in latex
    assert latex.isascii()


def test_latex_rows_have_a_cell_per_encoder(written):
    rows = [line for line in written["table.tex"].read_text(encoding="utf-8").splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {5}


def test_a_report_never_half_replaces_the_last(written, monkeypatch, tmp_path):
    results, failures = everything()
    before = write(results[:5], failures, tmp_path)["report.html"].read_bytes()
    real = Path.write_text

    def full_disk(self, content, **how):
        real(self, content[:100], **how)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(HoldfastError, match="No space left"):
        write(results, failures, tmp_path)
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*.part"))
    assert (tmp_path / "report.html").read_bytes() == before


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HoldfastError, match="choose a folder"):
        write(everything()[0][:1], [], tmp_path / "file" / "report")
