"""``holdfast compare``: who is better, said once and only where it may be said."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO
from pathlib import Path

import pytest

from holdfast.cli.app import run
from holdfast.core.records import Findings
from holdfast.core.statistics.summaries import summarise
from holdfast.report.comparison.compare import compare
from holdfast.report.files import Report
from tests.cli.stored import breakaway, failure, renamed, run_of
from tests.facts import says
from tests.report.overview.test_first_screen import kept

ROBUST, WEAK, MIDDLE = "digits-robust", "digits-random", "digits-contrastive"
TWIN = renamed(breakaway(ROBUST), "twin", "7" * 16)
"""An encoder of exactly the same numbers."""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def both() -> str:
    return run_of("both", [breakaway(ROBUST), breakaway(WEAK)])


def printed(capsys, *arguments: str, status: int = 0) -> str:
    assert run(["compare", "--full", *arguments]) == status
    return capsys.readouterr().out


def rows(table: str) -> list[list[str]]:
    """Return the cells of the rows that hold numbers."""
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if re.match(r" {4}\S", line)]


def test_of_two_encoders_the_paired_difference_is_shown(both, capsys):
    shown = printed(capsys, both)
    numbers = rows(shown)
    contests = [c for c in compare([breakaway(WEAK), breakaway(ROBUST)]).contests if c.ranks]
    assert len(numbers) == len(contests) > 0
    outcomes = [contest.pairs[0].difference.outcome for contest in contests]
    better = outcomes.count("b is better")
    assert better > len(outcomes) / 2, "another fixture"
    assert set(outcomes) <= {"b is better", "tied"}
    assert f"{WEAK} − {ROBUST}" in shown
    assert sum(cells[3].endswith(f"] {ROBUST} is better") for cells in numbers) == better
    assert f"better in {better}" not in shown, "a count beside the verdict"


def test_two_equal_encoders_are_tied_in_words(capsys):
    shown = printed(capsys, run_of("run", [breakaway(ROBUST), TWIN]))
    numbers = rows(shown)
    assert numbers
    assert all(cells[3].startswith("0 [−0.0") and cells[3].endswith("] tied") for cells in numbers)


def test_ranks_of_three_encoders_admit_ties(capsys):
    shown = rows(printed(capsys, run_of("three", [breakaway(WEAK), breakaway(ROBUST), TWIN])).partition("Paired")[0])
    assert any(weak.endswith("] #3") for _, weak, _, _ in shown)
    for _, weak, robust, twin in shown:
        assert weak.endswith(("] #3", "] tied #1"))
        assert robust.endswith("] tied #1")
        assert twin.endswith("] tied #1")


def test_the_same_encoder_in_two_runs_counts_once(both, capsys):
    once = printed(capsys, both)
    again = run_of("again", [breakaway(ROBUST)])
    assert printed(capsys, both, again, both) == once


def test_encoders_of_two_runs_meet_in_one_table(capsys):
    one, two = run_of("one", [breakaway(ROBUST)]), run_of("two", [breakaway(WEAK)])
    assert f"{ROBUST} is better" in printed(capsys, one, two)


def test_protocols_are_not_mixed(capsys):
    one, two = run_of("one", [breakaway(ROBUST)]), run_of("two", [breakaway(WEAK, seed=1)])
    assert run(["compare", one, two]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (sentence,) = captured.err.splitlines()
    assert says(sentence, "nothing", "compared")
    assert "different protocol: seed 0 instead of 1" in sentence


def test_what_cannot_be_compared_is_named_beside_what_can(both, capsys):
    other = run_of("other", [breakaway(MIDDLE, seed=1)])
    assert run(["compare", "--full", both, other]) == 0
    captured = capsys.readouterr()
    assert f"{ROBUST} is better" in captured.out
    lines = [line for line in captured.err.splitlines() if line.startswith("not compared: breakaway of")]
    (line,) = lines
    assert all(name in line for name in (ROBUST, WEAK, MIDDLE))
    assert says(line, "seed 0 instead of 1")


def test_unrelated_runs_differ_in_one_line_whatever_they_measured(both, capsys):
    second = {"evaluation": "overlap"}
    run_of(both, [breakaway(name).model_copy(update=second) for name in (ROBUST, WEAK)])
    three = [breakaway(name, seed=1) for name in (ROBUST + "-2", WEAK + "-2", MIDDLE)]
    other = run_of("other", [*three, *(result.model_copy(update=second) for result in three)])
    assert run(["compare", "--full", both, other]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not compared")]
    (line,) = lines
    assert line.startswith("not compared: breakaway and overlap of ")
    assert "seed 0 instead of 1" in line


def test_one_encoder_under_two_protocols_stands_in_two_tables(capsys):
    one, two = run_of("one", [breakaway(ROBUST)]), run_of("two", [breakaway(ROBUST, seed=1)])
    shown = printed(capsys, one, two)
    assert "with seed 1 instead of 0" in shown
    assert "better" not in shown


def test_one_name_for_other_weights_is_told_apart_by_the_run(capsys):
    before = run_of("before", [breakaway(WEAK, fingerprint="1" * 16)])
    after = run_of("after", [breakaway(WEAK, fingerprint="2" * 16)], [failure(WEAK, "out of memory")])
    assert run(["compare", "--full", before, after]) == 0
    captured = capsys.readouterr()
    assert f"{WEAK} (before) − {WEAK} (after)" in captured.out
    assert f"failed: breakaway of {WEAK} (after): out of memory" in captured.err


@pytest.mark.parametrize("form", ["markdown", "csv", "latex", "json"])
def test_every_format_is_alone_on_standard_output(both, form, capsys):
    shown = printed(capsys, both, "--format", form)
    if form == "json":
        assert [result.encoder.name for result in Report.model_validate_json(shown).results] == [WEAK, ROBUST]
        assert json.loads(shown)["comparison"]["contests"]
    elif form == "csv":
        assert {row["encoder"] for row in csv.DictReader(StringIO(shown))} == {ROBUST, WEAK}
    else:
        assert shown.startswith({"markdown": "### On 597 images", "latex": "% Needs"}[form])
    assert ROBUST in shown


def test_the_page_is_one_file(both, capsys):
    printed(capsys, both, "--html", "new/page.html")
    page = Path("new/page.html").read_text()
    assert ROBUST in page
    assert WEAK in page
    assert [path.name for path in Path("new").iterdir()] == ["page.html"]


def test_a_damaged_result_is_named(both, capsys):
    damaged = next(Path(both).glob("results/*.json"))
    damaged.write_text(damaged.read_text()[:200])
    assert run(["compare", both]) == 2
    assert str(damaged) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "nowhere holds no run (no run.json)"),
        (["both", "--format", "tabel"], "Did you mean 'table'"),
        (["both", "--html", "."], "cannot write the page to the folder .; name a file"),
        (["both", "--html", "both/run.json/page.html"], "name another file with --html"),
        (["empty"], "empty: no results to compare"),
        (["both", "--only", "breakway"], "Did you mean 'breakaway'"),
        (["both", "--where", "atack=adaptive"], "Did you mean 'attack'"),
        (
            ["both", "--where", "attack=square"],
            "no number was taken under all of attack=square; there are attack: u-pgd",
        ),
        (["both", "--where", "l3:1"], "'l3'"),
        (["both", "--where", "strong"], "radius in --where strong"),
        ([], "Missing argument 'RUNS...'"),
    ],
)
def test_mistakes_are_one_sentence(both, arguments, expected, capsys):
    run_of("empty", [], [failure(WEAK)])
    assert run(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    (sentence,) = captured.err.splitlines()
    assert sentence.startswith("holdfast: ")
    assert expected in sentence
    assert captured.out == ""


def test_of_three_encoders_every_difference_is_shown_below_the_ranks(capsys):
    shown = printed(capsys, run_of("three", [breakaway(WEAK), breakaway(ROBUST), TWIN]))
    ranks, below = shown.split("Paired differences")
    assert f"{WEAK} − {ROBUST}" not in ranks
    for heads in (f"{WEAK} − {ROBUST}", f"{WEAK} − twin", f"{ROBUST} − twin"):
        assert heads in below
    # Equal on all 60 images: what was not seen may still tell them apart.
    assert all(cells[3].startswith("0 [−0.0") and cells[3].endswith("] tied") for cells in rows(below))


def test_evaluations_and_conditions_can_be_chosen(both, capsys):
    run_of(both, [breakaway(name).model_copy(update={"evaluation": "overlap"}) for name in (ROBUST, WEAK)])
    whole = list(csv.DictReader(StringIO(printed(capsys, both, "--format", "csv"))))
    some = ["--only", "overlap", "--where", "attack=adaptive", "--where", "linf:0.1"]
    part = list(csv.DictReader(StringIO(printed(capsys, both, "--format", "csv", *some))))
    wanted = [
        row
        for row in whole
        if (row["evaluation"], row["condition_attack"], row["condition_ball"]) == ("overlap", "adaptive", "linf:0.1")
    ]
    assert 0 < len(wanted) < len(whole)
    assert part == wanted
    shown = printed(capsys, both, *some, "--html", "page.html")
    assert "ℓ∞ ≤ 25.5/255 · adaptive" in shown
    assert "ℓ∞ ≤ 12.75/255" not in shown
    assert "linf:0.05" not in Path("page.html").read_text().partition("What was measured")[0].partition("Settings")[0]


def test_who_was_asked_for_and_is_missing_is_counted_and_named(capsys):
    asked = [f"builtin:{name}" for name in (ROBUST, WEAK, MIDDLE)]
    folder = run_of("run", [breakaway(ROBUST), breakaway(WEAK)], asked=asked)
    assert run(["compare", folder, "--html", "page.html"]) == 0
    captured = capsys.readouterr()
    assert run(["compare", folder, "--full"]) == 0
    assert ", 2 of 3 encoders" in capsys.readouterr().out
    assert f"not measured: evaluate of builtin:{MIDDLE}: the run in run stopped before it" in captured.err
    assert "Robustness of 2 of 3 encoders" in Path("page.html").read_text()


def test_a_tie_whose_interval_leaves_out_zero_says_why(capsys):
    def five(name, offset):
        one = breakaway(name)
        wanted = [s for s in one.findings.series if s.quantity == "nearest_neighbour_accuracy"]
        few = tuple(s.model_copy(update={"values": tuple(offset + k for k in range(5)), "reasons": {}}) for s in wanted)
        findings = Findings(
            ids=one.findings.ids[:5], series=few, estimates=tuple(summarise(s, "median", "higher") for s in few)
        )
        return one.model_copy(update={"findings": findings})

    shown = rows(printed(capsys, run_of("run", [five("a", 0.0), five("b", 0.5)])))
    assert shown
    assert all(cells[3].endswith("[−0.500, −0.500] tied (too few differ)") for cells in shown)


def test_the_first_screen_comes_alone_unless_all_is_asked_for(capsys):
    folder = run_of("screens", [kept(ROBUST, {"linf:0.05": (0.88, 0.92)}), kept(WEAK, {"linf:0.05": (0.1, 0.2)})])
    assert run(["compare", folder]) == 0
    short = capsys.readouterr().out
    assert run(["compare", folder, "--full"]) == 0
    full = capsys.readouterr().out
    for printed in (short, full):
        assert says(printed, "proved", "88%", "attacked", "92%")
    assert len(short.splitlines()) <= 15
    assert len(short.splitlines()) < len(full.splitlines())
    assert not says(short, "certified nearest neighbour")
