"""The frontier of certified training: its page follows from stored numbers, and a case is measured from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studies.certified import frontier, frontier_page
from studies.certified.frontier import Case, Study, planned
from studies.common import plain

from tests.facts import says

QUANTITIES = ("breakaway", "overlap", "displacement", "linear radius", "attacked linear radius")


def stored(folder: Path, case: Case, accuracy: float, radius: float, tight: float, seed: int = 0) -> None:
    """Store made-up numbers."""
    numbers = {
        "accuracy": accuracy,
        "certified radius, interval": radius,
        "certified radius, crown": 0.9 * radius,
        "attacked radius": radius / tight,
        "tightness, interval": tight,
        "tightness, crown": 0.9 * tight,
        **dict.fromkeys(QUANTITIES, 0.5),
    }
    path = folder / "results" / f"{plain(str(case))}-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(numbers))


def test_the_page_says_which_aims_are_met(tmp_path: Path) -> None:
    cases = [case for case, _ in planned() if (case.dataset, case.architecture) == ("mnist", "base")]
    simclr, rocl, *certified = cases
    stored(tmp_path, simclr, 0.97, 0.02, 0.3)
    stored(tmp_path, rocl, 0.95, 0.20, 0.5)
    stored(tmp_path, certified[0], 0.935, 0.26, 0.96)
    page = frontier_page.render(tmp_path)
    text = page["training/frontier.md"]
    assert says(text, "0.200", "RoCL", "1", "1.25", "published")
    assert says(text, "1.30", "0.935", "0.96", "published")
    stored(tmp_path, certified[0], 0.92, 0.24, 0.9)
    text = frontier_page.render(tmp_path)["training/frontier.md"]
    assert text.count("(missed)") == 3
    picture = page[frontier_page.FIGURE]
    assert picture.count("<circle") == 3 + 3, "a point for each encoder, and the legend"
    assert "SimCLR" in picture


def test_what_the_same_training_keeps_without_bounds_stands_beside_it(tmp_path: Path) -> None:
    cases = [case for case, _ in planned() if (case.dataset, case.architecture) == ("cifar10", "cnn-b")]
    for case, accuracy in zip(cases, (0.58, 0.55, 0.45, 0.41), strict=False):
        stored(tmp_path, case, accuracy, 0.02, 0.5)
    text = frontier_page.render(tmp_path)["training/frontier.md"]
    assert says(text, "46 epochs", "12,000", "0.450", "training")
    assert text.count("0.45 of the attacked radius") == 0, "it is no candidate for the aims"
    assert text.count("times the best published (") == 1


def test_seeds_stand_as_their_mean(tmp_path: Path) -> None:
    case = next(case for case, seeds in planned() if seeds > 1)
    for seed, accuracy in enumerate((0.9, 0.94)):
        stored(tmp_path, case, accuracy, 0.3, 0.9, seed)
    ((point,),) = frontier_page.points(tmp_path).values()
    assert point.mean("accuracy") == pytest.approx(0.92)
    assert frontier_page.row(point)[1:3] == ["2", "0.920 ± 0.254"]


@pytest.mark.parametrize("fresh", [True, False])
def test_who_taught_an_encoder_stands_in_its_name_and_beside_its_point(tmp_path: Path, fresh: bool) -> None:
    case = next(case for case, _ in planned() if case.teacher and case.fresh == fresh)
    stored(tmp_path, case, 0.9, 0.3, 0.9)
    ((point,),) = frontier_page.points(tmp_path).values()
    assert says(point.name, case.teacher)
    assert point.words.endswith(f"* {case.teacher}" if fresh else f"* from {case.teacher}")
    assert case.teacher in str(case)


def test_cases_have_names_of_their_own() -> None:
    names = [plain(str(case)) for case, _ in planned()]
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize(("teacher", "fresh"), [("", True), ("SimCLR", True), ("SimCLR", False)])
def test_a_case_is_trained_and_measured(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teacher: str, fresh: bool
) -> None:
    monkeypatch.setattr(frontier, "ANCHORS", 2)
    monkeypatch.setattr(frontier, "NEGATIVES", 1)
    monkeypatch.setattr(frontier, "PROBED", 40)
    monkeypatch.setattr(frontier, "BANK", 100)
    monkeypatch.setattr(frontier, "SEARCH", {"samples": 2, "attack": "adaptive:restarts=1,steps=2", "tolerance": 1e-2})
    study = Study(reference, tmp_path)
    case = Case("mnist", "base", radius=0.1, share=0.2, epochs=1, images=256, teacher=teacher, fresh=fresh)
    found = study.measure(case, 0)
    assert 0 < found["certified radius, crown"] <= found["attacked radius"]
    assert 0 <= found["accuracy"] <= 1
    assert set(QUANTITIES) < set(found)
