"""Protocols by the names of papers: every row of their tables is measured by what the protocol asks for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hf
from holdfast.cli.app import run as cli
from holdfast.measure.evaluation import settings
from holdfast.report.papers import TABLES, Line, paper_table
from holdfast.run.catalog import PROTOCOLS, SUITES
from holdfast.run.request import Request, planned
from tests.marks import rest_slow

FEW: dict[str, dict[str, Any]] = {
    "certified-radius": {"samples": 3, "negatives": 2, "tolerance": 0.01},
    "linear-radius": {"samples": 3, "tolerance": 0.01},
    "margin-distribution": {"samples": 3, "tolerance": 0.01},
    "instance-accuracy": {"samples": 3},
    "robust-accuracy": {"samples": 8},
    "synbench": {"samples": 128},
    "corruption-error": {"samples": 8, "kinds": ["shot-noise-c"], "severities": [1]},
    "displacement": {"samples": 8},
    "impersonation": {"samples": 12},
    "breakaway": {"samples": 8},
    "overlap": {"samples": 8},
    "center-smoothing": {"samples": 2, "copies": 2000, "selection": 1500},
    "randomized-smoothing": {"samples": 2, "copies": 6000},
    "clever": {"batches": 8, "draws": 2, "rivals": 1, "random": 12},
}
"""Counts alone, so that what the rows are selected by is what the protocol says."""


def test_every_protocol_has_a_table_and_a_suite() -> None:
    assert PROTOCOLS.keys() == TABLES.keys() <= SUITES.keys()


@pytest.mark.parametrize("name", rest_slow(["zhong2022", *sorted(PROTOCOLS.keys() - {"zhong2022"})]))
def test_every_row_of_a_papers_table_is_measured(name: str, tmp_path: Path) -> None:
    asked = PROTOCOLS[name][1]
    few = {key: values for key, values in FEW.items() if key in asked}
    bank = None if name == "cheng2021" else "builtin:digits-train"
    run = hf.evaluate(
        "builtin:digits-contrastive",
        "builtin:digits",
        bank=bank,
        suite=name,
        settings=few,
        limit=130,
        out=tmp_path / "run",
    )
    assert not run.failures
    assert {result.evaluation for result in run.results} == asked.keys()
    table = paper_table(run.results, name)
    assert "Not measured" not in table
    assert len([line for line in table.splitlines() if line.startswith("|")]) == 2 + len(TABLES[name])
    run.report()
    assert (run.folder / f"{name}.md").read_text() == table


def test_the_command_line_ends_with_the_papers_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run"), "--limit", "60", "--only", "geometry"]
    assert cli(["evaluate", "builtin:digits-random", "--images", "builtin:digits", "--suite", "zhong2022", *out]) == 0
    assert (tmp_path / "run/zhong2022.md").read_text() in capsys.readouterr().out
    assert (
        cli(
            [
                "evaluate",
                "builtin:digits-random",
                "--suite",
                "zhong2022",
                "--only",
                "geometry",
                "--limit",
                "60",
                "--images",
                "builtin:digits",
                "--images",
                "builtin:digits-train",
                "--out",
                str(tmp_path / "both"),
            ]
        )
        == 0
    )
    table = (tmp_path / "both/sets.md").read_text()
    assert {line.split("|")[2].strip() for line in table.splitlines()[3:] if line.startswith("|")} >= {"mean of 2"}
    shown = [line.quantity for line in TABLES["zhong2022"] if line.evaluation == "geometry"]
    assert len(list(filter(lambda line: "mean of 2" in line, table.splitlines()))) == len(shown)


def test_settings_of_a_protocol_are_those_of_the_paper() -> None:
    plan = {e.name: settings(e) for e in planned(Request.of(encoders=("x",), images="y", suite="petrov2022"))}
    assert plan["displacement"]["attacks"] == [f"pgd:steps={k},step=0.001,keep=last" for k in (5, 10, 30, 50)]
    assert plan["breakaway"]["attacks"] == ["pgd:steps=25,step=0.001,keep=last"]
    assert plan["overlap"]["attacks"] == ["pgd:steps=10,step=0.001,keep=last"]
    assert plan["displacement"]["samples"] == 1000
    assert "randomized-smoothing" not in plan, "it needs a bank, and there is none"


def test_the_attack_on_pairs_is_the_papers() -> None:
    few = {"instance-accuracy": {"samples": 3}}
    run = hf.evaluate(
        "builtin:digits-random", "builtin:digits", suite="wang2022", only=["instance-accuracy"], settings=few, limit=60
    )
    line = next(each for each in TABLES["wang2022"] if each.quantity == "robust_instance_accuracy")
    found = line.found(run.results)
    assert found is not None
    assert found.conditions["attack"].endswith(" at the negative")
    assert "table E.2), K = 1" in paper_table(run.results, "wang2022")


def test_flags_are_stronger_than_a_protocol() -> None:
    request = Request.of(
        encoders=("x",), images="y", suite="petrov2022", eps=("0.02",), settings={"breakaway": {"samples": 7}}
    )
    plan = {e.name: settings(e) for e in planned(request)}
    assert plan["breakaway"]["balls"] == ["linf:0.02"]
    assert plan["breakaway"]["samples"] == 7
    only = planned(Request.of(encoders=("x",), images="y", suite="petrov2022", only=("overlap",)))
    assert [settings(e)["attacks"] for e in only] == [["pgd:steps=10,step=0.001,keep=last"]]


def test_the_score_is_correlated_with_probe_accuracy_over_encoders() -> None:
    run = hf.evaluate(
        ["builtin:digits-random", "builtin:digits-robust"],
        "builtin:digits",
        bank="builtin:digits-train",
        suite="ko2022",
        only=["synbench", "probe-accuracy"],
        settings={
            "synbench": {"samples": 64, "encodings": 10_000, "scales": [0.5, 1.5, 2.5, 3.5]},
            "probe-accuracy": {"probes": ["linear"]},
        },
        limit=40,
    )
    assert "Pearson" not in paper_table(run.results, "ko2022"), "two encoders say nothing about agreement"
    given = {"a": (0.1, 0.5), "b": (0.3, 0.6), "c": (0.35, 0.9), "d": (0.9, 0.8), "e": (0.7, 0.95)}
    names = {"synbench_score": 0, "top1_accuracy": 1}
    copies = []
    for name, numbers in {**given, "pixels": (5.0, 0.0)}.items():
        for result in run.results[:2]:
            changed = [
                each.model_copy(update={"value": numbers[names[each.quantity]]}) if each.quantity in names else each
                for each in result.estimates
            ]
            source = "baseline:pixels" if name == "pixels" else "python:x"
            encoder = result.encoder.model_copy(update={"name": name, "source": source})
            findings = result.findings.model_copy(update={"estimates": tuple(changed)})
            copies.append(result.model_copy(update={"encoder": encoder, "findings": findings}))
    assert {result.evaluation for result in copies} == {"synbench", "probe-accuracy"}
    rows = [line for line in paper_table(copies, "ko2022").splitlines() if line.endswith("| 5        |")]
    assert len(rows) == 15
    x, y = np.array(list(given.values())).T
    r, tau = np.corrcoef(x, y)[0, 1], 0.6  # 8 of 10 pairs in the same order
    # Fisher: atanh(r) is normal with standard deviation 1 / sqrt(n - 3).
    low, high = np.tanh(np.arctanh(r) + np.array([-1, 1]) * 1.959964 / np.sqrt(2))
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert cells[2:4] == [f"{r:.2f} [{low:.2f}, {high:.2f}]", f"{tau:.2f}"]


def test_numbers_are_written_with_their_intervals() -> None:
    run = hf.evaluate("builtin:digits-random", "builtin:digits", suite="zhong2022", only=["geometry"], limit=60)
    (table,) = [paper_table(run.results, "zhong2022")]
    estimate = run.results[0].estimate("uniformity")
    assert f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]" in table
    assert "Not measured: Orig, knn" in table
    assert paper_table(run.results, "quick") == ""
    assert Line("x", "geometry", "uniformity", {"k": "3"}).found(run.results) is None


def test_a_bar_in_a_name_begins_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    run = hf.evaluate("builtin:digits-random", "builtin:digits", suite="zhong2022", only=["geometry"], limit=60)
    name = "a|b"
    results = [
        each.model_copy(update={"encoder": each.encoder.model_copy(update={"name": name})}) for each in run.results
    ]
    monkeypatch.setitem(TABLES, "zhong2022", (Line("mean of |x|", "geometry", "uniformity"),))
    table = paper_table(results, "zhong2022").splitlines()
    cells = [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    assert [len(row) for row in cells] == [2, 2, 2]
    assert cells[0] == ["zhong2022", name]
    assert cells[2][0] == "mean of |x|"
    assert len({len(line) for line in table}) == 1, "columns are aligned"
