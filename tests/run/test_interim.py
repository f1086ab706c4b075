"""Whenever a run stops there is something to look at: partial results while it goes on, and after Ctrl-C."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from holdfast.core.run_settings import RunSettings
from holdfast.measure.store import Store
from holdfast.report.contents import RunState
from holdfast.run import scheduler as interim
from holdfast.run.conclusions import conclude_so_far
from tests import tiny
from tests.filled import fill_table
from tests.run.test_budget import COUNT, Clock, clock, mean

__all__ = ["clock"]


def run(
    folder: Path, reports: list[tuple[RunState, list[tuple[int | None, int]]]], pauses: tuple[float, ...], size: int = 5
) -> None:
    images, store = tiny.images(COUNT), Store(folder)

    def write(state: RunState) -> None:
        reports.append((state, [(result.planned, len(result.findings.ids)) for result in Store(folder).results()]))

    evaluations = [mean(pause) for pause in pauses]
    fill_table(
        [tiny.encoder("a"), tiny.encoder("b", 3.0)],
        lambda encoder: images,
        evaluations,
        RunSettings(batch_size=size),
        store,
        write=write,
    )


@pytest.fixture
def measured(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(interim, "monotonic", clock)
    return clock


def test_all_questions_have_an_answer_before_any_is_complete(tmp_path: Path, measured: Clock) -> None:
    reports: list[tuple[RunState, list[tuple[int | None, int]]]] = []
    run(tmp_path, reports, (1.0, 2.0, 3.0))
    state, first = reports[0]
    assert len(first) == 6
    assert all(planned == 80 and 4 <= count <= 16 for planned, count in first)
    assert 0 < state.share < 0.5
    assert 0 < state.left < inf
    assert len(reports) >= 3, "renewed as rounds end"
    assert [result.planned for result in Store(tmp_path).results()] == [None] * 6


def test_what_takes_seconds_is_done_in_one_go(tmp_path: Path, measured: Clock) -> None:
    reports: list[tuple[RunState, list[tuple[int | None, int]]]] = []
    run(tmp_path, reports, (0.01, 0.02))
    assert reports == []


def test_reports_take_a_small_share_of_the_time(
    tmp_path: Path, measured: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[RunState, list[tuple[int | None, int]]]] = []
    whole = conclude_so_far

    def slowly(*args: object) -> None:
        measured.sleep(1.0)
        whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(interim, "conclude_so_far", slowly)
    run(tmp_path, reports, (1.0, 2.0, 3.0))
    assert reports
    assert 2.0 * len(reports) <= 0.05 * measured.now, "two seconds each"


def test_a_stopped_run_leaves_what_was_seen_and_goes_on_to_the_same_numbers(
    tmp_path: Path, measured: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, observe = [0], tiny.Seen.observe

    def stopped(self: tiny.Seen, *args: object) -> object:
        log[0] += 1
        if log[0] == 20:
            raise KeyboardInterrupt
        return observe(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tiny.Seen, "observe", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", [], (1.0, 2.0, 3.0))
    left = Store(tmp_path / "stopped").results()
    assert len(left) == 6
    assert all(result.planned == 80 and len(result.findings.ids) >= 4 for result in left)
    run(tmp_path / "stopped", [], (1.0, 2.0, 3.0))
    run(tmp_path / "unbroken", [], (1.0, 2.0, 3.0))
    again, unbroken = (Store(tmp_path / name).results() for name in ("stopped", "unbroken"))
    assert [result.planned for result in again] == [None] * 6
    assert [result.findings for result in again] == [result.findings for result in unbroken]
