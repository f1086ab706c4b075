"""Ranks: one command in several processes over one folder; each unit is computed once, and the dead are replaced."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Barrier, Event, Thread
from time import monotonic, sleep

import numpy as np
import pytest
from PIL import Image

from holdfast.cli.app import run
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.measure.store import Store
from holdfast.run.engines import ranks
from holdfast.run.engines.ranks import Ranks, is_main
from holdfast.run.engines.requested import devices_of
from tests import tiny
from tests.facts import refused
from tests.run.test_table import fill, findings, looked_at

UNITS = {f"unit-{k}": k for k in range(12)}


def shared(engine: Ranks, results: dict[int, object], task: Callable[[int, int], object]) -> list[int]:
    """Return which units ``engine`` computes, until all are among the ``results``."""
    mine = []
    for unit, done in engine.share(task, 2, UNITS, results.__contains__):
        if done is not None:
            mine.append(unit)
            if not isinstance(done, Exception):
                results[unit] = done
    return mine


def slow_power(given: int, unit: int) -> int:
    sleep(0.005)
    return given**unit


def side_by_side(*work: Callable[[], object]) -> None:
    threads = [Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a rank hangs"


def test_each_unit_is_computed_once(tmp_path: Path) -> None:
    results, mine, ready = dict[int, object](), dict[int, list[int]](), Barrier(3)

    def work(rank: int) -> None:
        ready.wait()
        mine[rank] = shared(Ranks(rank, 3, tmp_path), results, slow_power)

    side_by_side(*(lambda rank=rank: work(rank) for rank in range(3)))
    assert sorted(unit for units in mine.values() for unit in units) == [*range(12)]
    assert results == {k: 2**k for k in range(12)}
    assert all(mine.values())
    assert not list(tmp_path.iterdir())


def test_a_rank_takes_its_own_units_first_and_then_those_of_others(tmp_path: Path) -> None:
    first, second = (shared(Ranks(rank, 2, tmp_path), {}, pow) for rank in (0, 1))
    own = next(k for k in range(13) if sorted(first[:k]) == sorted(second[12 - k :]) and first[:k] != second[:k])
    assert 0 < own < 12
    assert sorted(first) == sorted(second) == [*range(12)]
    assert set(first[:own]).isdisjoint(second[: 12 - own])


def test_a_unit_that_fails_is_tried_once_by_each_rank(tmp_path: Path) -> None:
    tried, results = list[int](), dict[int, object]()

    def task(given: int, unit: int) -> object:
        if unit == 5:
            tried.append(unit)
            return ValueError("no such image")
        return slow_power(given, unit)

    side_by_side(*(lambda rank=rank: shared(Ranks(rank, 2, tmp_path), results, task) for rank in range(2)))
    assert len(tried) == 2
    assert len(results) == 11


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "BEAT", 0.02)
    monkeypatch.setattr(ranks, "STALE", 0.2)


@pytest.mark.parametrize("shift", [-1e6, 0.0, 1e6])
def test_what_a_dead_rank_left_is_taken_over_whatever_its_clock_said(
    tmp_path: Path, quickly: None, shift: float
) -> None:
    left = tmp_path / "unit-3"
    left.touch()
    os.utime(left, (left.stat().st_atime, left.stat().st_mtime + shift))
    began = monotonic()
    assert shared(Ranks(0, 1, tmp_path), {}, pow)[-1] == 3
    assert monotonic() - began > 0.2
    assert not list(tmp_path.iterdir())


def test_what_a_living_rank_holds_is_left_to_it(tmp_path: Path, quickly: None) -> None:
    results = dict[int, object]()

    def last_long(given: int, unit: int) -> int:
        sleep(0.6 if unit == 0 else 0.0)
        return given**unit

    mine = dict[int, list[int]]()

    def work(rank: int) -> None:
        mine[rank] = shared(Ranks(rank, 2, tmp_path), results, last_long)

    side_by_side(lambda: work(0), lambda: work(1))
    assert sorted(mine[0] + mine[1]) == [*range(12)]


def test_a_unit_that_a_slow_rank_holds_is_computed_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "SOONEST", 0.05)
    results, mine, held = dict[int, object](), dict[int, list[int]](), Event()
    others = [Event(), Event()]

    def held_up(given: int, unit: int) -> int:
        held.set()
        assert all(other.wait(15) for other in others)
        return given**unit

    def healthy(rank: int) -> None:
        held.wait(15)
        mine[rank] = shared(Ranks(rank, 3, tmp_path), results, slow_power)
        others[rank].set()

    def slow() -> None:
        mine[2] = shared(Ranks(2, 3, tmp_path), results, held_up)

    side_by_side(slow, lambda: healthy(0), lambda: healthy(1))
    assert results == {k: 2**k for k in range(12)}
    assert len(mine[2]) == 1
    assert sorted(mine[0] + mine[1]) == [*range(12)]
    assert not list(tmp_path.iterdir())


def test_a_rank_knows_how_long_others_hold_units_before_it_has_nothing_else_to_do(
    tmp_path: Path, quickly: None
) -> None:
    engine, held = Ranks(0, 1, tmp_path), list[float]()
    (tmp_path / "unit-3").touch()

    def task(given: int, unit: int) -> int:
        sleep(0.01)
        held.append(engine._held("unit-3"))
        return slow_power(given, unit)

    shared(engine, {}, task)
    assert held[0] >= 0.01, "it is noted before the first unit, not when unit-3 is asked for"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused(Exception, "ranks", "folder"):
        shared(Ranks(0, 2, tmp_path / "file" / "leases"), {}, pow)


def ranked(rank: int, folder: Path, evaluation: tiny.Mean) -> tuple[list[Result], list[Failure]]:
    return fill(folder, [evaluation], RunSettings(batch_size=1), Ranks(rank, 2, folder / "leases"))


def test_a_table_filled_by_two_processes_is_that_of_one(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    slow = tiny.Mean(log=str(log), pause=0.02)
    other = multiprocessing.get_context("fork").Process(target=ranked, args=(1, folder, slow))
    other.start()
    results, failures = ranked(0, folder, slow)
    other.join(20)
    assert other.exitcode == 0
    assert failures == []
    assert len(looked_at(log)) == len(set(looked_at(log))) == 16
    assert findings(results) == findings(fill(tmp_path / "alone", [slow])[0])
    assert not (folder / "leases").exists()


def test_a_following_rank_computes_and_leaves_the_conclusions(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert ranked(1, tmp_path / "run", tiny.Mean(log=str(log))) == ([], [])
    assert len(looked_at(log)) == 16
    results, _ = ranked(0, tmp_path / "run", tiny.Mean(log=str(log)))
    assert len(results) == 1
    assert len(looked_at(log)) == 16, "nothing is computed twice"


@pytest.mark.slow
def test_a_budget_ends_a_rank_that_waits_for_another(tmp_path: Path) -> None:
    """The other seems to be at work on everything."""
    began, evaluation, engine = monotonic(), tiny.Mean(pause=1e-3), Ranks(0, 2, tmp_path / "leases")
    claim = Ranks._claim
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "_claim", lambda self, name: None if name.startswith("seen") else claim(self, name))
        _, (failure,) = fill(tmp_path, [evaluation], RunSettings(batch_size=4), engine, budget=1.0)
    assert failure.error == "BudgetSpentError"
    assert monotonic() - began < 10
    assert fill(tmp_path, [evaluation], RunSettings(batch_size=4))[1] == []


def test_a_failing_cell_is_recorded_by_rank_0_alone(tmp_path: Path) -> None:
    broken = tiny.Mean(log=str(tmp_path / "no" / "folder"))
    ranked(1, tmp_path / "run", broken)
    assert Store(tmp_path / "run").failures() == []
    results, (failure,) = ranked(0, tmp_path / "run", broken)
    assert (results, failure.error) == ([], "FileNotFoundError")
    assert Store(tmp_path / "run").failures() == [failure]


def test_ranks_of_one_machine_take_its_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("SLURM_PROCID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert devices_of("ranks", "cuda") == {"device": "cuda:1"}
    assert devices_of("ranks", "cuda:0") == {"device": "cuda:0"}
    assert is_main(Ranks(0, 8, Path()))


PGD = ["--set", "displacement.attacks=pgd:steps=2", "--eps", "0.1"]
DIGITS = ["builtin:digits-random", "--images", "builtin:digits", "--limit", "6"]
COMMANDS = {
    "evaluate": (["evaluate", *DIGITS, "--only", "displacement", *PGD], "table.csv"),
    "attack": (["attack", *DIGITS, "--attack", "pgd:steps=2"], "attack.safetensors"),
    "certify": (["certify", *DIGITS, "--eps", "0.01", "--method", "interval", "--negatives", "1"], "certify.json"),
    "corrupt": (["corrupt", "photos", "--transform", "gamma:0.5", "--size", "32"], "gamma_0.5/2.png"),
}


@pytest.mark.parametrize(
    "command", [name if name == "corrupt" else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_the_second_rank_is_silent_and_the_first_reports(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for k in range(3):
        pixels = np.random.default_rng(k).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{k}.png")
    arguments, made = COMMANDS[command]
    assert run([*arguments, "--out", "alone"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert run([*arguments, "--out", "out"]) == 0
    assert capsys.readouterr() == ("", "")
    assert not any((Path("out") / name).exists() for name in ("run.json", "results", "attack.json", "certify.json"))
    monkeypatch.setenv("RANK", "0")
    assert run([*arguments, "--out", "out"]) == 0
    if command != "certify":  # which says when it was made
        assert (Path("out") / made).read_bytes() == (Path("alone") / made).read_bytes()
    assert (Path("out") / made).exists()
    assert not Path("out/leases").exists()


def beginning(folder: Path, rank: int, slow: tiny.Mean) -> multiprocessing.process.BaseProcess:
    started = multiprocessing.get_context("fork").Process(target=ranked, args=(rank, folder, slow))
    started.start()
    return started


@pytest.mark.slow
def test_twenty_kills_lose_nothing_and_repeat_a_shard_each_at_most(tmp_path: Path, quickly: None) -> None:
    kills, moments = 0, random.Random(0)
    for attempt in count():
        log, folder = tmp_path / f"log-{attempt}", tmp_path / f"run-{attempt}"
        slow = tiny.Mean(log=str(log), pause=0.05)
        working, before = [beginning(folder, rank, slow) for rank in (0, 1)], kills
        while working[0].is_alive():
            sleep(moments.uniform(0.1, 0.4))
            rank = moments.randrange(2)
            if working[rank].is_alive():
                working[rank].kill()
                working[rank].join()
                working[rank], kills = beginning(folder, rank, slow), kills + 1
        for process in working:
            process.join(20)
            assert process.exitcode == 0
        assert set(looked_at(log)) == set(fill(folder, [slow])[0][0].findings.ids)
        assert len(looked_at(log)) <= 16 + kills - before
        assert findings(fill(folder, [slow])[0]) == findings(fill(tmp_path / f"alone-{attempt}", [slow])[0])
        if kills >= 20:
            return


@pytest.mark.slow
def test_torchrun_gives_the_table_of_one_process(tmp_path: Path) -> None:
    arguments, _ = COMMANDS["evaluate"]
    assert run([*arguments, "--out", str(tmp_path / "alone")]) == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "holdfast", *arguments, "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"Report: {Path('out') / 'report.html'}"
    assert (tmp_path / "out" / "table.csv").read_bytes() == (tmp_path / "alone" / "table.csv").read_bytes()


def test_torchrun_starts_no_workers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert run(["evaluate", "--workers", "2"]) == 2
    assert "leave --cluster and --workers out" in capsys.readouterr().err
