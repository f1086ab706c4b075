"""The study's first page is one screen, and its table says what the library's reports say."""

from __future__ import annotations

from holdfast.report.overview.study import study
from tests.pages import DOCS, rows

PAGE = (DOCS / "study.md").read_text(encoding="utf-8")
NAMES = {"adversarial_margin": "overlap margin", "average_certified_radius": "certified radius"}


def test_it_is_one_screen_with_one_table() -> None:
    assert len(PAGE.splitlines()) <= 45
    assert PAGE.count("\n| --- |") == 1
    assert "](study-results.md)" in PAGE


def test_its_verdicts_are_those_of_the_reports() -> None:
    table = rows(PAGE)
    confirmed = {name for name, cells in table.items() if cells[-1] == "**confirmed**" and not name.startswith("*")}
    held = {NAMES[one.quantity] for one in study().measures if one.again and one.again.held}
    assert held
    assert confirmed == held
    for one in study().measures:
        if one.again and one.again.held is not None:
            values = {cells[1] for cells in table.values()}
            assert one.again.words in values, one.quantity


def test_every_studied_metric_has_its_place() -> None:
    named = sum(len(name.split(", ")) for name in rows(PAGE))
    assert named == len(study().measures) + 1, "all metrics and the radius of the recipe"
