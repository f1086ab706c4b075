from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from holdfast.cli.app import run
from holdfast.measure.store import Key, Store
from tests.cli.stored import breakaway, failure, run_of
from tests.commands.test_inventory import fill
from tests.facts import says
from tests.pages import ROOT
from tests.tiny import Mean


def test_stored_runs_are_read_without_torch(tmp_path: Path) -> None:
    asked = ("builtin:one", "builtin:two", "builtin:three", "codes.npy")  # the last is a file of embeddings
    failed = [failure("three"), failure("codes.npy")]
    folder = run_of(tmp_path / "run", [breakaway("one"), breakaway("two", fingerprint="two")], failed, asked)
    key = Key(kind="codes", version=1, settings={}, encoder="one", images="digits", seed=0, precision="float32")
    Store(Path(folder)).keep(key, ["image"], {"codes": torch.zeros(1, 2)})
    commands = (["runs", folder], ["check", folder, "--require", "breakaway_risk@linf:0.1<=1"], ["compare", folder])
    code = (
        "import sys; from holdfast.cli.app import run; status = run(sys.argv[1:])\n"
        "assert status < 2 and 'holdfast.measure.store' in sys.modules, status\n"
        "loaded = {'torch', 'scipy.stats'} & set(sys.modules); assert not loaded, loaded\n"
    )
    for command in (*commands, ["compare", folder, "--full", "--html", str(tmp_path / "page.html")]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "one" in done.stdout


def test_runs_says_what_there_is(tmp_path, capsys):
    folder = run_of(tmp_path, [breakaway("one")], [failure("two", "too large")])
    assert run(["runs", folder]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said[0] == folder
    assert "encoders one" in said
    assert "evaluations breakaway" in said
    assert "cells 1 finished, 1 failed" in said
    assert says(said, "breakaway of two", "too large")
    assert any(line.startswith("size ") and "results" in line for line in said)
    assert run(["runs", folder, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["finished"], len(told["failed"]), told["bytes"]["shards"]) == (1, 1, 0)


def test_what_a_budget_left_out_did_not_fail(tmp_path, capsys):
    spent = failure("two", "not run: the budget was spent").model_copy(update={"error": "BudgetSpentError"})
    some = breakaway("three").model_copy(update={"planned": 300})
    later = spent.model_copy(update={"encoder": "five"})
    folder = run_of(tmp_path, [breakaway("one"), some], [spent, later, failure("four", "too large")])
    assert run(["runs", folder]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "cells 1 finished, 1 partial, 2 not measured, 1 failed" in said
    assert says(said, "breakaway of three", "60 of 300")
    assert says(said, "breakaway of five and two", "budget")
    assert [line for line in said if line.startswith("failed")] == ["failed breakaway of four: too large"]


def test_runs_without_a_run_is_one_sentence(tmp_path, capsys):
    assert run(["runs", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_clean_asks_before_it_removes_and_keeps_results(tmp_path, capsys):
    store = fill(tmp_path, Mean())
    assert run(["clean", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "shards" in shown.out
    assert "--yes" in shown.err
    assert list(tmp_path.glob("shards/*/*"))
    assert run(["clean", str(tmp_path), "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("deleted ")
    assert not list(tmp_path.glob("shards/*/*"))
    assert len(store.results()) == 1
    assert run(["clean", str(tmp_path), "--yes"]) == 0
    assert "no intermediate files" in capsys.readouterr().out


def test_clean_without_a_run_is_one_sentence(tmp_path, capsys):
    (tmp_path / "shards").mkdir()
    assert run(["clean", str(tmp_path), "--yes"]) == 2
    assert "holds no run" in capsys.readouterr().err
