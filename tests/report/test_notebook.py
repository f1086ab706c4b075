"""What a notebook shows is drawn as the page draws it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.core.errors import HoldfastError
from holdfast.report.contents import Contents
from holdfast.report.printed import markdown
from tests.facts import refused
from tests.report.synthetic import everything

VOID = {"br", "hr", "img", "meta", "input", "link", "col", "use", "path"}


class Nesting(HTMLParser):
    """Raises where a tag is closed that was not opened last."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(html)
        assert not self.tags

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.tags.pop() == tag


@pytest.fixture(scope="module")
def run():
    results, failures = everything()
    return EvaluatedRun(tuple(results), tuple(failures), Path("runs/mine"))


def test_a_run_shows_its_first_screen_and_what_is_missing(run):
    html = run._repr_html_()
    Nesting(html)
    (first, *_) = Contents(run.results, run.failures).first_screens
    assert all(row.title in html and row.cells[0].said in html for row in first.rows)
    assert all(failure.evaluation in html for failure in run.failures)
    assert "{{" not in html
    assert 'href="#' not in html
    assert ":root" not in html  # which would restyle the notebook


def test_a_run_without_questions_shows_its_numbers(run):
    plain = [result.model_copy(update={"questions": ()}) for result in run.results]
    html = EvaluatedRun(tuple(plain), (), Path("runs/mine"))._repr_html_()
    assert 'class="numbers"' in html
    assert 'class="first-screen"' not in html


def test_a_result_shows_its_numbers_with_intervals(run):
    result = run["displacement", "digits-robust"]
    html = result._repr_html_()
    Nesting(html)
    assert result.title in html
    printed = markdown(Contents([result], ()).tables, ())
    number = next(line.split("|")[2].split()[0] for line in printed.splitlines() if "adaptive" in line)
    assert number in html


def test_plots_are_those_of_the_page(run, tmp_path):
    drawing = run.plot("displacement")
    whole = Contents([r for r in run.results if r.evaluation == "displacement"], ())
    html = drawing._repr_html_()
    assert all(panel.svg in html for plates in whole.plates.values() for plate in plates for panel in plate.panels)
    paths = drawing.save(tmp_path)
    assert {path.stem for path in paths} == set(drawing.documents)
    for path in paths:
        ElementTree.parse(path)  # a whole document
    assert str(len(paths)) in repr(drawing)


def test_a_quantity_is_drawn_alone(run):
    names = set(run.plot("displacement").documents)
    alone = set(run.plot("universal_quantile").documents)
    assert alone == {name for name in names if "universal-quantile" in name}
    assert alone < names
    assert set(run["displacement", "digits-robust"].plot().documents) == names


def test_what_is_not_there_is_named(run):
    with pytest.raises(HoldfastError, match="Did you mean 'displacement'"):
        run.plot("displacment")
    result = run["masking", "digits-robust"]
    bare = result.model_copy(update={"findings": result.findings.model_copy(update={"series": (), "curves": ()})})
    with refused(HoldfastError, "series", "varies"):
        bare.plot()
