"""Where nobody says where a run computes: here while it is small, then in workers, and here again if those are of no use."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Lock

import pytest
import torch

from holdfast.core.errors import HoldfastWarning
from holdfast.core.run_settings import RunSettings
from holdfast.data import load as load_images
from holdfast.encoders import load
from holdfast.encoders.embeddings import Embeddings
from holdfast.measure.population import Population
from holdfast.run.engines import processes as module
from holdfast.run.engines.base import Local
from holdfast.run.engines.processes import EACH, Automatic, Processes, automatic, torch_threads
from holdfast.run.engines.requested import engine_of, threaded
from tests import tiny
from tests.facts import warned
from tests.run.engines.tasks import dying_elsewhere, power, process
from tests.run.test_table import fill, findings


def never(_: object) -> bool:
    return False


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started at once, and waited for."""
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "_are_over", lambda _: True)
    monkeypatch.setattr(Processes, "begin", lambda _: [])  # they need no torch


def test_little_work_starts_no_worker() -> None:
    engine = Automatic(Processes(2), never)
    assert list(engine.map(power, 2, range(5))) == [(k, 2**k) for k in range(5)]
    assert not engine.workers._pools


@pytest.mark.slow
def test_much_work_is_done_by_workers_and_a_single_shard_here(impatient: None) -> None:
    engine = Automatic(Processes(2), never)
    assert sorted(engine.map(power, 2, range(5))) == [(k, 2**k) for k in range(5)]
    assert {done for _, done in engine.map(process, None, range(8))}.isdisjoint({os.getpid()})
    assert list(engine.map(process, None, [1])) == [(1, os.getpid())]


def test_while_workers_start_shards_are_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(Processes, "begin", lambda _: [])
    over = iter([False, False, True])
    monkeypatch.setattr(module, "_are_over", lambda _: next(over))
    engine = Automatic(Processes(1), never)
    places = [done == os.getpid() for _, done in engine.map(process, "context", range(6))]
    assert places == [True, True, False, False, False, False]


def test_workers_are_begun_where_much_is_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Processes] = []

    def begin(workers: Processes) -> list[Future[None]]:
        begun.append(workers)
        return []

    monkeypatch.setattr(Processes, "begin", begin)
    monkeypatch.setattr(module, "_are_over", lambda _: False)  # they are waited for
    engine = Automatic(Processes(1), never)
    engine.begin()
    assert begun == [engine.workers]
    assert {done for _, done in engine.map(process, "context", range(3))}.isdisjoint({os.getpid()})


def test_what_workers_cannot_be_given_stays_here(impatient: None) -> None:
    engine = Automatic(Processes(2), never)
    with warned(HoldfastWarning, "encoder", "computed"):
        assert {done for _, done in engine.map(process, Lock(), range(4))} == {os.getpid()}
    assert {done for _, done in engine.map(process, None, range(4))} == {os.getpid()}


@pytest.mark.slow
def test_shards_of_workers_that_die_are_done_here(impatient: None) -> None:
    engine = Automatic(Processes(2), never)
    engine.ready = given = os.getpid()
    assert sorted(engine.map(dying_elsewhere, given, range(9))) == [(k, k * k) for k in range(9)]


def test_there_are_no_more_workers_than_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 8)
    monkeypatch.setattr(module, "memory", lambda: 3 * EACH + 1)
    small = automatic(never)
    assert isinstance(small, Automatic)
    assert small.workers.count == 3
    monkeypatch.setattr(module, "memory", lambda: EACH)
    assert isinstance(automatic(never), Local)


def test_encoders_of_many_weights_are_left_to_threads(monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    encoder = load("builtin:digits-random")
    population = Population(encoder, load_images("builtin:digits", encoder.domain, limit=4), RunSettings())
    assert not threaded(population)
    monkeypatch.setattr("holdfast.run.engines.requested.THREADED", 0)
    assert threaded(population)
    engine = Automatic(Processes(2), threaded)
    assert {done for _, done in engine.map(process, population, range(4))} == {os.getpid()}


def test_codes_that_were_computed_elsewhere_are_left_to_this_process() -> None:
    """A worker wants a copy of every id, which for a million rows was more memory than all else."""
    embeddings = Embeddings(torch.rand(4, 3))
    assert threaded(Population(embeddings, embeddings.images(), RunSettings()))


def test_one_thread_computes_inside_and_as_many_as_before_afterwards() -> None:
    torch.set_num_threads(2)
    try:
        with torch_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_one_core_and_a_worker_start_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 1)
    assert isinstance(automatic(never), Local)
    monkeypatch.setattr(module, "cores", lambda: 100)
    monkeypatch.setattr(module, "memory", lambda: 100 * EACH)
    several = automatic(never)
    assert isinstance(several, Automatic)
    assert (several.workers.count, several.workers.threads) == (module.MOST, 1)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert isinstance(automatic(never), Local)


def test_only_the_cpu_of_this_machine_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 2)
    assert isinstance(engine_of(None, "cpu", "auto", Path()), Automatic)
    assert isinstance(engine_of(None, "mps", "auto", Path()), Local)
    assert isinstance(engine_of(None, "cpu", None, Path()), Local)
    assert isinstance(engine_of(None, "cpu", 1, Path()), Local)
    assert isinstance(engine_of(None, "cpu", 2, Path()), Processes)


@pytest.mark.slow
def test_results_are_the_same(tmp_path: Path, impatient: None) -> None:
    results, failures = fill(tmp_path / "a", [tiny.Mean()], engine=Automatic(Processes(2), never))
    assert failures == []
    assert findings(results) == findings(fill(tmp_path / "b", [tiny.Mean()])[0])


SCRIPT = """
print("once")
import holdfast as hf
from holdfast.run.engines import processes as automatic
automatic.PATIENCE, automatic.cores, automatic._are_over = 0.0, lambda: 2, lambda _: True
from torch import nn

class Network(nn.Module):
    def forward(self, x):
        return x.flatten(1)

encoder = hf.Encoder(Network(), "mine", hf.Domain((1, 28, 28)))
run = hf.evaluate(encoder, "builtin:digits", limit=40, only="overlap", settings={"overlap": {"samples": 16}})
print(len(run.results), len(run.failures))
"""


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Workers do not run the script that started them, and know the classes it defines."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["once", "1", "0"], done.stderr
