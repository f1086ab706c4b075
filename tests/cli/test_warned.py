"""A command prints each warning once and at most three; the demo's records give none."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from holdfast.cli import app
from holdfast.cli.app import run
from holdfast.cli.evaluate import _print
from holdfast.cli.terminal import MOST, limited, show_result
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.core.errors import HoldfastWarning
from holdfast.core.records import Result, Warned
from tests.report.overview.test_first_screen import kept
from tests.report.synthetic import breakaway, warned

MANY = tuple(f"Cause {letter} spoils the numbers." for letter in "abcdefg")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out = capsys.readouterr()
    return [line for line in (out.out + out.err).splitlines() if "Cause" in line]


@pytest.mark.parametrize("debug", [False, True])
def test_any_command_prints_at_most_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    def command(_: list[str]) -> int:
        for sentence in (*MANY, *MANY):
            warnings.warn(sentence, HoldfastWarning, stacklevel=1)
        show_result(warned(breakaway("a"), *MANY, "Cause z."))
        return 0

    monkeypatch.setattr(app, "_run_command", command)
    assert run(["evaluate", *(["--debug"] if debug else [])]) == 0
    said = lines(capsys)
    assert (len(said) > MOST) == debug


def test_how_many_more_there_are_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with limited(False):
        show_result(warned(breakaway("a"), *MANY))
    out = capsys.readouterr()
    assert out.out.count("Cause") == MOST
    assert str(len(MANY) - MOST) in out.err
    show_result(warned(breakaway("a"), *MANY))
    assert capsys.readouterr().out.count("Cause") == len(MANY), "Python code hears all"


def stored(folder: Path, *results: Result) -> EvaluatedRun:
    page = folder / "report.html"
    return EvaluatedRun(results, (), folder, page)


def test_evaluate_prints_notes_only_where_a_reader_can_act_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = kept("a", {"linf:0.05": (0.5, 0.6)})
    with limited(False):
        _print(stored(tmp_path, warned(plain, *MANY)), "quick")
    out = capsys.readouterr()
    assert out.err == "", "they are notes of the report, as in the demo"
    assert f"{len(MANY)} notes" in out.out
    copies = Warned("3 of 597 images are copies.", "duplicates")
    with limited(False):
        _print(stored(tmp_path, warned(plain, *MANY, copies)), "quick")
    assert [copies in line for line in capsys.readouterr().err.splitlines()] == [True]
    bare = breakaway("a").model_copy(update={"questions": ()})
    with limited(False):
        _print(stored(tmp_path, warned(bare, *MANY)), "quick")
    assert len(lines(capsys)) == MOST
