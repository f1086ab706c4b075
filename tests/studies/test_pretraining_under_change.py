"""The study of training under change: its tables by hand, and the command as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from studies.common import Results
from studies.pretraining.cases import REGULARISED, SUBSETS, Case, cases, orders
from studies.pretraining.tables import Tables
from studies.pretraining.under_change import Study, main, seeded, tail_of

import holdfast as hf

CHANGE = "global-shuffle:grid=4"
FIRST = [["supervised", "simclr"], [CHANGE]]


def test_every_change_is_before_and_after_the_augmentation_where_there_is_one() -> None:
    assert orders("simclr") == ("corrupt-aug", "aug-corrupt")
    assert orders("supervised without augmentation") == orders("pixels") == ("corrupt-aug",)
    planned = cases("pretraining", *FIRST)
    assert len(planned) == len(set(map(str, planned))) == 2 + 2 + 2 + 4
    assert [case.subset for case in cases("classes", ["simclr"], [])] == [*SUBSETS]
    assert [case.objective for case in cases("uniformity", *FIRST)] == [*REGULARISED]


def test_a_recipe_appends_the_change_to_its_augmentation_in_one_order_alone() -> None:
    study = Study("", "", Path(), 8, 1, "base", "digits-view", 1, 200, 9, 50, None)
    change = seeded(CHANGE, 3)
    assert "seed=3" in str(change)
    assert seeded("gamma:5", 3) == seeded("gamma:5", 0)
    late = study.recipe(Case("simclr", CHANGE, "aug-corrupt"), 3, change, 200)
    early = study.recipe(Case("simclr", CHANGE, "corrupt-aug"), 3, change, 200)
    assert (late["augmentation"], early["augmentation"]) == (f"digits-view + {change}", "digits-view")
    assert study.recipe(Case("moco-v2", subset="long-tail"), 0, None, 400)["objective"].endswith("queue=100")
    assert study.recipe(Case("supervised without augmentation"), 3, None, 200)["augmentation"] == "none"


def test_the_long_tail_has_a_hundredth_of_its_head() -> None:
    images = hf.Images(torch.rand(600, 1, 2, 2), labels=torch.tensor([0, 1, 2]).repeat_interleave(200))
    tail = tail_of(images, seed=0)
    assert (tail.counts[0], tail.counts[-1]) == (200, 2)


def test_drops_are_relative_and_by_seed(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    changed = str(Case("simclr", CHANGE, "corrupt-aug"))

    def measure(case: str, seed: int) -> dict[str, float]:
        found = {"chance": 0.1, "clean, linear": 0.8}
        return found | ({"changed, linear": (0.6, 0.4)[seed]} if case == changed else {})

    results.run({"pretraining": measure}, {"pretraining": ["simclr", changed]}, 2)
    lines = [*Tables(results, ["simclr"], [CHANGE], 2, measured=100)]
    assert "| simclr | corrupt-aug | 0.800 ± 0.000 | 0.500 ± 1.271 (37.5 ± 158.8%) | 37.5 ± 158.8% |" in lines
    assert "| simclr | aug-corrupt | 0.800 ± 0.000 | missing | missing |" in lines
    assert not [line for line in lines if "fluctuation" in line], "parts that were not run have no table"


@pytest.mark.slow
def test_the_study_runs_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = "--seeds 1 --epochs 2 --images 200 --measured 60 --batch 50 --size 8 --architecture base"
    named = f"--augmentation digits-view --objectives supervised simclr --changes {CHANGE}"
    whole = ["builtin:digits-train", "builtin:digits", "--out", str(tmp_path), *size.split(), *named.split()]
    whole += ["--substitute", "builtin:digits"]
    main(whole)
    out = capsys.readouterr().out
    assert (tmp_path / "table.md").read_text() == out
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")]
    names = [row[0].removeprefix("| ") for row in rows]
    # Four tables of training under change with two orders, one of the downstream test, two of classes, one of checkpoints.
    assert names.count("simclr") == 4 * 2 + 1 + 2 * 3 + 1
    assert names.count("pixels") == 4 + 1
    assert all(names.count(name) == 1 for name in REGULARISED if name != "supervised")
    # Further right, groups of classes may be empty: so few images are a few shots alone.
    assert not [row for row in rows if "missing" in row[:4]]
    pixels = next(row for row in rows if row[0] == "| pixels")
    assert pixels[3].endswith("(0.0 ± unknown%)"), "shuffling moves no raw pixel's neighbours"
    assert out.endswith("Nothing.\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    main(whole)
    again = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json") if path.name != "size.json"}
    assert again == {path: before[path] for path in again}, "what was done is not done again"
