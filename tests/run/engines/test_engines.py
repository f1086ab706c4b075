"""Wherever a run computes, its numbers are the same but for last bits: every evaluation there is, on every engine."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from holdfast import data
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import load
from holdfast.measure.store import Store
from holdfast.run import catalog
from holdfast.run.engines import processes as automatic
from holdfast.run.engines.base import Engine
from holdfast.run.engines.processes import Processes
from holdfast.run.engines.ranks import Ranks
from holdfast.run.request import build
from tests import tiny
from tests.filled import fill_table
from tests.run.engines.tasks import logged, stuck_then_lost
from tests.run.test_table import CHEAP, fill

FEW = CHEAP | {
    "attacks": ["pgd:steps=3", "adaptive:restarts=2,steps=3"],
    "severities": [1, 3],
    "steps": 20,
    "restarts": 1,
    "searches": ["square:queries=40", "nes:queries=40"],
    "decisions": 40,
}
"""Settings with which each evaluation takes a moment: what engines do wrong, they do wrong in few steps."""


def cells(folder: Path, engine: Engine | None = None) -> dict[str, Result]:
    """Return the result of every evaluation, by its name."""
    encoder = load("builtin:digits-random")
    digits = data.load("builtin:digits", encoder.domain, limit=12)
    bank = data.load("builtin:digits-train", encoder.domain, limit=30)
    evaluations = []
    for kind in catalog.evaluations().values():
        cheap = {field.name: FEW[field.name] for field in fields(kind) if field.name in FEW}
        if kind.__module__.split(".")[1] in ("spectral", "synthetic"):  # which say nothing of so few
            cheap.pop("samples", None)
        if kind.name == "sites":
            sites = folder.parent / "sites.csv"
            sites.write_text("".join(f"{name},{row % 2}\n" for row, name in enumerate(digits.ids)))
            cheap |= {"tags": str(sites), "least": 1, "repeats": 1, "samples": 12, "repairs": ["centre"]}
        evaluations.append(build(kind, cheap))
    results, failures = fill_table(
        [encoder],
        lambda encoder: digits,
        evaluations,
        RunSettings(precision="float64", batch_size=5),
        Store(folder),
        engine,
        bank_for=lambda encoder: bank,
    )
    assert not failures, failures
    return {result.evaluation: result for result in results}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    found = cells(tmp_path_factory.mktemp("alone"))
    assert set(found) == set(catalog.evaluations())
    return found


def different(found: dict[str, Result], expected: dict[str, Result]) -> list[str]:
    """Return the evaluations whose numbers differ by more than the last bits of float64.

    Those may: products of what was read back sum in another order, since it lies elsewhere in memory.
    """
    return [
        name
        for name, result in expected.items()
        if numbers(found[name]) != pytest.approx(numbers(result), rel=1e-11, abs=1e-13, nan_ok=True)
    ]


def numbers(result: Result) -> list[float]:
    """Return everything that was measured, and what it comes to."""
    values = [value for series in result.series for value in series.values]
    return [*values, *(number for one in result.estimates for number in (one.value, one.low, one.high))]


@pytest.fixture(scope="module")
def workers() -> Processes:
    """Two workers, which import what evaluations need once for all tests: that takes as long as the evaluations."""
    return Processes(2)


@pytest.mark.slow
def test_two_workers_give_the_numbers_of_one_process(
    alone: dict[str, Result], tmp_path: Path, workers: Processes
) -> None:
    assert different(cells(tmp_path, workers), alone) == []


@pytest.mark.slow
def test_workers_that_start_midway_give_the_numbers_of_one_process(
    alone: dict[str, Result], tmp_path: Path, workers: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic, "PATIENCE", 1.0)
    engine = automatic.Automatic(workers, lambda _: False)
    assert different(cells(tmp_path, engine), alone) == []
    assert engine.spent >= 1, "vacuous: nothing was done here"
    assert engine.ready is not None, "vacuous: all was done here"


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one_process(alone: dict[str, Result], tmp_path: Path) -> None:
    leases = tmp_path / "leases"
    other = multiprocessing.get_context("fork").Process(target=cells, args=(tmp_path, Ranks(1, 2, leases)))
    other.start()
    found = cells(tmp_path, Ranks(0, 2, leases))
    other.join(60)
    assert other.exitcode == 0
    assert different(found, alone) == []


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    """Two Ray workers on this machine."""
    cluster = pytest.importorskip("ray", reason="ray is not installed: pip install ray")
    from holdfast.run.engines.ray import Ray

    cluster.init(num_cpus=2, object_store_memory=80_000_000, log_to_driver=False, include_dashboard=False)
    yield Ray()
    cluster.shutdown()


@pytest.mark.slow
def test_two_ray_workers_give_the_numbers_of_one_process(alone: dict[str, Result], tmp_path: Path, ray: Engine) -> None:
    assert different(cells(tmp_path, ray), alone) == []


@pytest.mark.slow
def test_what_fails_on_ray_fails_as_it_does_here(tmp_path: Path, ray: Engine) -> None:
    results, (failure,) = fill(tmp_path, [tiny.Mean(log=str(tmp_path / "no" / "folder"))], engine=ray)
    assert (results, failure.error) == ([], "FileNotFoundError")


@pytest.mark.slow
def test_an_idle_ray_worker_repeats_what_a_slow_one_holds_and_another_if_it_dies(tmp_path: Path, ray: Engine) -> None:
    """The first worker that gets shard 5 stands still, which must not stop the run; the second one dies."""
    results = dict(ray.map(stuck_then_lost, tmp_path, range(8)))
    assert results == {shard: shard * shard for shard in range(8)}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_killed_ray_workers_lose_nothing_and_cost_a_shard_each_at_most(tmp_path: Path, ray: Engine) -> None:
    """Three kills: a Ray worker takes seconds to start, and ``test_ray`` has every order of losses."""
    log, kills, moments, results = tmp_path / "log", 0, random.Random(0), dict[int, int]()
    for shard, square in ray.map(logged, log, range(24)):
        results[shard] = square
        begun = log.read_text().splitlines()
        if kills < 3 and shard % 4 == 0:
            process = int(moments.choice(begun[-2:]).split()[1])
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
            kills += 1
    assert kills >= 2
    assert results == {shard: shard * shard for shard in range(24)}
    assert len(log.read_text().splitlines()) <= 24 + kills
