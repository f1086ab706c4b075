"""Worker processes: the same results, and a killed one loses and changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.execution.engines.processes import Processes
from tests import tiny
from tests.execution.test_table import fill, findings


def power(given: int, shard: int) -> int:
    return given**shard


def dying_once(given: Path, shard: int) -> int:
    """Kill the worker that first works on each shard."""
    mark = given / str(shard)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return shard * shard


def dying(given: int, shard: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return shard


def test_each_shard_comes_back_with_what_was_made_of_it() -> None:
    engine = Processes(2)
    assert sorted(engine.map(power, 2, range(5))) == [(k, 2**k) for k in range(5)]
    assert sorted(engine.map(power, 3, range(3))) == [(0, 1), (1, 3), (2, 9)]


@pytest.mark.slow
def test_results_do_not_depend_on_processes(tmp_path: Path) -> None:
    results, failures = fill(tmp_path / "a", [tiny.Mean()], engine=Processes(2))
    assert failures == []
    assert findings(results) == findings(fill(tmp_path / "b", [tiny.Mean()])[0])
    broken, (failure,) = fill(tmp_path / "c", [tiny.Mean(log=str(tmp_path / "no" / "folder"))], engine=Processes(2))
    assert (broken, failure.error) == ([], "FileNotFoundError")


@pytest.mark.slow
def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    assert sorted(Processes(2).map(dying_once, tmp_path, [1, 2, 3])) == [(1, 1), (2, 4), (3, 9)]


@pytest.mark.slow
def test_workers_that_always_die_end_with_a_sentence() -> None:
    with pytest.raises(HoldfastError, match="died 4 times in a row"):
        list(Processes(1).map(dying, 0, [1]))


def test_no_workers_are_refused() -> None:
    with pytest.raises(HoldfastError, match="at least 1"):
        Processes(0)
