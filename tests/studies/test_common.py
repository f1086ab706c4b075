"""What studies share: results are kept, resumed and concluded from."""

from __future__ import annotations

import doctest
from math import isnan, nan
from pathlib import Path

import pytest
from studies.common import Found, Results
from studies.objectives.training_small import PART, conclude
from studies.pretraining import tables as pretraining_tables
from studies.pretraining import under_change as pretraining_under_change

import holdfast as hf
from studies import common


@pytest.mark.parametrize("module", [common, pretraining_tables, pretraining_under_change], ids=lambda m: m.__name__)
def test_examples_are_right(module) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    done: list[tuple[str, int]] = []

    def measure(case: str, seed: int) -> Found:
        done.append((case, seed))
        return {"accuracy": 0.5 + seed / 10, "radius": nan}

    for _ in range(2):
        results = Results(tmp_path, {"epochs": 1})
        results.run({"part": measure}, {"part": ["one"], "other": ["two"]}, 2)
    assert done == [("one", 0), ("one", 1)]
    assert results.values("part: one", "accuracy", 3)[:2] == [0.5, 0.6]
    assert all(map(isnan, results.values("part: one", "radius", 2)))
    assert (results.has("part"), results.has("other")) == (True, False)
    with pytest.raises(hf.HoldfastError, match="choose another --out"):
        Results(tmp_path, {"epochs": 2})


def test_what_is_missing_is_said_with_its_reason(tmp_path: Path) -> None:
    def measure(case: str, seed: int) -> Found:
        if seed:
            raise hf.HoldfastError("the codes have collapsed")
        return {"accuracy": 1.0}

    results, planned = Results(tmp_path, {}), {"part": ["one"], "other": ["two"]}
    results.run({"part": measure}, planned, 2)
    said = [line for line in results.missing(planned, 2) if line.startswith("-")]
    assert said == ["- part: one, seeds 1: the codes have collapsed", "- other: two, seeds 0, 1: not run"]
    assert [*results.missing({"part": ["one"]}, 1)][-1] == "Nothing."


def test_the_small_study_concludes_each_quantity(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    results.run({PART: lambda case, seed: {"kNN accuracy": 0.5 + 0.2 * seed}}, {PART: ["simclr"]}, 2)
    assert [*conclude(results, ["simclr", "byol"], 2)][-1] == "| simclr | kNN accuracy | 0.600 ± 1.271 | 2 |"
