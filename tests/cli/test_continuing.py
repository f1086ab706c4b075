"""``attack``, ``certify`` and ``spade`` keep what they did: killed or out of time, the same command continues."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load

from holdfast.attacks import adversarial as adversarial
from holdfast.bounds.pair_bounds import PairBounds
from holdfast.cli.app import main, run
from holdfast.core.run_settings import Observed
from holdfast.measure.packs import IDS
from holdfast.run import computing
from holdfast.run import forecast as deadline
from tests.cli.overriding import overriding
from tests.facts import says
from tests.marks import rest_slow
from tests.spectral.graphs import folded

DIGITS = ["--images", "builtin:digits", "--limit"]
CERTIFY = [
    "certify",
    "builtin:digits-contrastive",
    *DIGITS,
    "5",
    "--negatives",
    "2",
    "--eps",
    "0.2",
    "--batch-size",
    "2",
]
ATTACK = ["attack", "builtin:digits-random", *DIGITS, "9", "--batch-size", "3"]
KILLED = {
    "certify": [*CERTIFY, "--attack", "adaptive:steps=10,restarts=1"],
    "attack": [*ATTACK, "--attack", "pgd:steps=100,restarts=4"],
    "whole batches": [*ATTACK, "--preset", "rocl", "--attack", "pgd:steps=100,restarts=4"],
}
SHORT = {
    "certify": [*CERTIFY, "--attack", "adaptive:steps=5,restarts=1"],
    "attack": [*ATTACK, "--attack", "pgd:steps=2"],
    "whole batches": [*ATTACK, "--preset", "rocl"],
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def shards(folder: str) -> dict[Path, tuple[int, int]]:
    """Return the shards of what is not clean codes, with what changes when one is written again."""
    found = [
        path for path in Path(folder, "shards").glob("*/*.safetensors") if not path.parent.name.startswith("codes-")
    ]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def looked_at(folder: str) -> list[str]:
    """Return the ids of everything that the shards hold, those held twice twice."""
    return sorted(name for path in shards(folder) for name in json.loads(bytes(load(path.read_bytes())[IDS].numpy())))


def answer(folder: str) -> dict[str, Any]:
    """Return all final files but the times: records as JSON, tensors with their header, pictures as bytes."""
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and "shards" not in path.parts]
    return {str(path.relative_to(folder)): _content(path) for path in files}


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        record = json.loads(path.read_text())
        record.pop("provenance", None)
        return record
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            return file.metadata(), {name: tensor.tolist() for name, tensor in load(path.read_bytes()).items()}
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_command_goes_on_from_its_shards(name):
    # Forked, so that it need not load torch again.
    process = multiprocessing.get_context("fork").Process(target=run, args=([*KILLED[name], "--out", "out"],))
    process.start()
    limit = monotonic() + 120
    while not shards("out") and monotonic() < limit:
        sleep(0.005)
    process.kill()
    process.join()
    before = shards("out")
    assert before
    assert not Path("out", f"{KILLED[name][0]}.json").exists(), "killed too late"
    status = run([*KILLED[name], "--out", "out"])
    after = shards("out")
    assert len(after) > len(before), "killed too late"
    assert {path: after[path] for path in before} == before, "a finished shard was written again"
    assert len(set(looked_at("out"))) == len(looked_at("out")), "a finished shard was computed again"
    assert run([*KILLED[name], "--out", "unbroken"]) == status
    assert answer("out") == answer("unbroken")


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_slow(["attack", "whole batches", "certify"]))
def test_a_spent_budget_leaves_a_part_that_is_finished_and_then_not_computed_again(name, capsys, monkeypatch):
    assert run([*SHORT[name], "--out", "unbroken", "--budget", "1000"]) == 0
    with monkeypatch.context() as patch:
        # Time stands still until something but clean codes was kept, and then the budget is spent.
        for module in (computing, deadline):
            patch.setattr(module, "monotonic", lambda: 1e9 if shards("out") else 0.0)
        patch.setattr("holdfast.run.run.budget_start", lambda: 0.0)
        assert run([*SHORT[name], "--out", "out", "--budget", "1000"]) == 1
    record = json.loads(Path("out", f"{SHORT[name][0]}.json").read_text())
    done = len(record["certificates"] if name == "certify" else record["moved"])
    total = int(SHORT[name][SHORT[name].index("--limit") + 1])
    assert 0 < done < total
    assert record["missing"] == total - done
    assert f"{total - done} images are missing: the budget was spent; run the same" in capsys.readouterr().err
    assert run([*SHORT[name], "--out", "out"]) == 0
    assert (whole := answer("out")) == answer("unbroken")
    said = capsys.readouterr().out

    def refused(*_: object) -> Observed:
        raise AssertionError("computed again")

    monkeypatch.setattr(PairBounds, "pair_attack", refused)
    monkeypatch.setattr(adversarial.AdversarialImages, "observe", refused)
    assert run([*SHORT[name], "--out", "out"]) == 0
    assert (answer("out"), capsys.readouterr().out) == (whole, said)


@pytest.mark.parametrize("name", SHORT)
def test_a_budget_for_nothing_writes_no_answer(name, capsys):
    assert run([*SHORT[name], "--out", "out", "--budget", "1e-9"]) == 1
    assert says(capsys.readouterr().err, "missing", "budget")
    assert not Path("out", f"{SHORT[name][0]}.json").exists()


@pytest.mark.parametrize("name", rest_slow(["attack", "certify"]))
def test_the_folder_of_another_request_is_refused(name, capsys):
    assert run([*SHORT[name], "--out", "out"]) == 0
    first = answer("out")
    capsys.readouterr()
    assert run([*SHORT[name], "--out", "out", "--seed", "1"]) == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("holdfast: ")]
    assert sentence.startswith("holdfast: out holds the answer to another request (other ")
    assert "seed" in sentence
    assert sentence.endswith("; choose another --out, or delete what is in it")
    assert answer("out") == first


def test_a_request_that_failed_does_not_keep_its_folder(capsys):
    assert run(overriding(SHORT["attack"], ["--out", "out", "--preset", "rocl", "--limit", "1"])) == 2
    assert "at least 2 images" in capsys.readouterr().err
    assert run([*SHORT["attack"], "--out", "out"]) == 0


@pytest.mark.parametrize("name", rest_slow(["attack", "certify"]))
def test_a_folder_whose_name_is_not_utf_8_and_that_the_terminal_lacks(name, monkeypatch):
    folder, said = os.fsdecode("größe-".encode() + b"\xff"), BytesIO()
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # which the command would set for good
    monkeypatch.setattr(sys, "argv", ["holdfast", *SHORT[name], "--out", folder])
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(said, "ascii", write_through=True))
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    assert b"gr\\xf6\\xdfe-\xff/" in said.getvalue()
    assert Path(folder, f"{name}.json").is_file()


@pytest.mark.slow
def test_scores_of_the_same_arrays_are_kept(capsys, monkeypatch):
    x, y = folded(120)
    np.save("x.npy", x)
    np.save("y.npy", y)
    spade = ["spade", "--inputs", "x.npy", "--outputs", "y.npy", "--k", "5", "--subsets", "0", "--out", "out"]
    assert run(spade) == 0
    said = capsys.readouterr().out

    def refused(*_: object) -> None:
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.spectral.arrays.measure", refused)
        assert run(spade) == 0
    assert capsys.readouterr().out == said
    assert run([*spade, "--seed", "1"]) == 2
    assert "another request (other seed)" in capsys.readouterr().err
    np.save("y.npy", y + 1)
    assert run(spade) == 2
    assert "another request (other encoder)" in capsys.readouterr().err
