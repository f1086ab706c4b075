"""One run: what its parts share, and what its folder answers."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import pytest

from holdfast.core.errors import BudgetSpentError, HoldfastError
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run.engines.base import Local
from holdfast.run.run import Run
from holdfast.run.shards import CleanCodes
from tests import tiny


def test_a_run_has_defaults_for_options_that_a_command_lacks_and_removes_its_own_folder(tmp_path: Path) -> None:
    with Run.open("parity", {"seed": 3, "progress": False, "out": None, "workers": None}) as run:
        assert (run.settings.seed, run.settings.device, run.budget, run.kept) == (3, "cpu", None, False)
        assert isinstance(run.engine, Local)
        assert run.store.folder.is_dir()
    assert not run.store.folder.exists()
    with Run.open("attack", {"progress": False, "out": tmp_path / "kept", "workers": 1}) as run:
        assert run.kept
    assert run.store.folder.exists()


@pytest.mark.parametrize("cluster", ["slurm:ranks=8", "ranks"])
def test_a_cluster_that_a_call_cannot_use_is_refused_before_a_folder_is_made(cluster: str, tmp_path: Path) -> None:
    out = None if cluster == "ranks" else tmp_path / "run"
    with (
        pytest.raises(HoldfastError),
        Run.open("attack", {"cluster": cluster, "out": out, "progress": False, "workers": None}),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_all_parts_of_a_run_share_its_forecast_and_its_budget(tmp_path: Path) -> None:
    encoder, images, settings = tiny.encoder(), tiny.images(), RunSettings(batch_size=4)
    run, population = Run(settings, Store(tmp_path)), Population(encoder, images, settings)
    first = run.observe(CleanCodes(), population, codes=False)
    assert len(first.rows) == len(first.observed["codes"]) == len(images)
    assert encoder.name in run.forecast.measured[CleanCodes()], "what was timed is known to the next part"
    assert run.work.forecast is run.forecast
    spent = Run(settings, Store(tmp_path / "other"), budget=1.0, began=-1e9)
    with pytest.raises(BudgetSpentError, match=str(len(images))):
        spent.observe(CleanCodes(), population, codes=False)


def test_what_failed_is_not_waited_for(tmp_path: Path) -> None:
    """The search for radii may fail for one encoder; the rest of the run must still know how long it takes."""
    settings = RunSettings()
    run = Run(settings, Store(tmp_path))
    population = Population(tiny.encoder(), tiny.images(), settings)
    broken = tiny.Seen(log=str(tmp_path / "no folder" / "log"))
    run.forecast.expect((population.encoder.name, broken))
    with pytest.raises(FileNotFoundError):
        run.work.compute(broken, population, "what breaks")
    assert isfinite(run.forecast.seconds_left)
    assert not any(run.forecast.waiting.values())
