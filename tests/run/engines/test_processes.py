"""Worker processes: the same results, and a killed one loses and changes nothing."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.encoders import Options, load
from holdfast.encoders.loading import inputs
from holdfast.run.engines.processes import Processes
from holdfast.run.engines.requested import devices_of, engine_of
from tests import tiny
from tests.facts import refused
from tests.run.engines.tasks import dying, dying_once, logged, name_of, power, visible
from tests.run.test_table import fill, findings


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers load no torch, as long as no network is sent: other tests may have declared operators, which needs it."""
    monkeypatch.setattr(inputs, "operators_are_declared", lambda: False)


@pytest.mark.usefixtures("bare")
def test_each_shard_comes_back_with_what_was_made_of_it() -> None:
    engine = Processes(2)
    assert sorted(engine.map(power, 2, range(5))) == [(k, 2**k) for k in range(5)]
    assert sorted(engine.map(power, 3, range(3))) == [(0, 1), (1, 3), (2, 9)]


def test_a_context_that_cannot_be_pickled_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(TypeError, match="lock"):
        Processes(1).send([bytes(1000), Lock()])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_results_do_not_depend_on_processes(tmp_path: Path) -> None:
    results, failures = fill(tmp_path / "a", [tiny.Mean()], engine=Processes(2))
    assert failures == []
    assert findings(results) == findings(fill(tmp_path / "b", [tiny.Mean()])[0])
    broken, (failure,) = fill(tmp_path / "c", [tiny.Mean(log=str(tmp_path / "no" / "folder"))], engine=Processes(2))
    assert (broken, failure.error) == ([], "FileNotFoundError")


@pytest.mark.slow
def test_workers_read_networks_beside_whatever_torch_there_is() -> None:
    """Where torchvision's operators are missing, a worker that did not declare them could not import timm."""
    encoder = load("timm:resnet10t?pretrained=false", Options(size=32))
    assert list(Processes(1).map(name_of, encoder, [1])) == [(1, encoder.name)]


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    assert sorted(Processes(2).map(dying_once, tmp_path, [1, 2, 3])) == [(1, 1), (2, 4), (3, 9)]


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_workers_that_always_die_end_with_a_sentence() -> None:
    with refused(HoldfastError, "4 times"):
        list(Processes(1).map(dying, 0, [1]))


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_each_worker_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are made up: no task touches them."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    where = engine_of(None, "cuda", 8, Path())
    assert isinstance(where, Processes)
    assert {name for _, name in where.map(visible, 0.2, range(8))} == {"5", "3"}
    assert devices_of(None, "cuda", 8) == {"workers": "cuda"}


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_workers_take_all_gpus_or_none(device: str) -> None:
    with pytest.raises(HoldfastError, match="or --workers"):
        engine_of(None, device, 2, Path())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_workers_without_a_gpu_are_refused() -> None:
    with pytest.raises(HoldfastError, match="torch sees no GPU"):
        engine_of(None, "cuda", 2, Path())


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_twenty_kills_lose_nothing_and_repeat_a_shard_each_at_most(tmp_path: Path) -> None:
    kills, moments, results = 0, random.Random(0), dict[int, int]()
    for shard, square in Processes(2).map(logged, tmp_path / "log", range(60)):
        results[shard] = square
        workers = multiprocessing.active_children()
        if kills < 20 and workers and shard % 2:
            time.sleep(moments.uniform(0.0, 0.1))
            with suppress(ProcessLookupError):
                os.kill(moments.choice(workers).pid or 0, signal.SIGKILL)
                kills += 1
    begun = (tmp_path / "log").read_text().splitlines()
    assert kills == 20
    assert results == {shard: shard * shard for shard in range(60)}
    assert len(begun) <= 60 + kills


def test_no_workers_are_refused() -> None:
    with pytest.raises(HoldfastError, match="at least 1"):
        Processes(0)


@pytest.mark.parametrize("workers", [0, -1, 2.5, True, "x", "8"])
def test_what_is_no_number_of_processes_is_refused(workers: Any, unchecked: None) -> None:
    with pytest.raises(HoldfastError, match=rf"at least 1, or 'auto', got {workers!r}\.$"):
        engine_of(None, "cpu", workers, Path())


def test_a_number_of_a_gpu_means_nothing_to_a_cluster() -> None:
    with refused(HoldfastError, "--device", "cuda:1", "instead"):
        engine_of("local", "cuda:1", None, Path())
