"""Runs kept with trackers of experiments, gates as tests.

tensorboard is the real one. mlflow, wandb and trackio are stood in for by modules that record what they are called with:
what is tested of them is names, files and what is opened and ended, not that they accept it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import holdfast as hf
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.report.elsewhere import ARTEFACTS, TRACKERS, numbers
from tests import facts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {"geometry": {"samples": 30}}
    out = tmp_path_factory.mktemp("runs") / "mine"
    return hf.evaluate("builtin:digits-random", "builtin:digits", only="geometry", limit=30, settings=settings, out=out)


class Recorder(ModuleType):
    """A module whose functions take anything and note it."""

    run = None

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def noted(*args: Any, **keywords: Any) -> Any:
            self.calls.append((name, args, keywords))
            return None if name == "active_run" else self

        return noted

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args, _ in self.calls if called == name]


@pytest.fixture(params=["mlflow", "wandb", "trackio"])
def recorder(request, monkeypatch):
    module = Recorder(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    return module


def test_names_are_safe_and_numbers_those_of_the_table(run):
    named = numbers(run.results)
    rank = run["geometry"].estimate("rankme")
    assert named["digits-random/geometry/rankme"] == rank.value
    assert named["digits-random/geometry/rankme.low"] == rank.low
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/") for name in named)
    assert {name.count("/") for name in named} == {2}, "a number and a folder of one name, which mlflow's files refuse"
    twice = numbers([result.model_copy(update={"version": 9}) for result in run.results for _ in range(2)])
    assert len(twice) == 2 * len(named)  # nothing is lost where names repeat


def test_tensorboard_holds_every_number_and_the_files(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.log(to=f"tensorboard:{tmp_path}")
    events = EventAccumulator(str(tmp_path / "mine")).Reload()
    kept = {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]}
    assert kept == pytest.approx(numbers(run.results), rel=1e-6)
    assert {path.name for path in (tmp_path / "mine").iterdir()} >= set(ARTEFACTS)


def test_trackers_are_given_the_same_names_and_files(run, recorder):
    run.log(to=f"{recorder.__name__}:project")
    (logged,) = recorder.of("log_metrics") or recorder.of("log")
    assert logged[0] == numbers(run.results)
    files = [args[0] for name in ("log_artifact", "add_file") for args in recorder.of(name) if isinstance(args[0], str)]
    assert {Path(file).name for file in files} == set(ARTEFACTS)
    opened = [
        keywords | dict(enumerate(args))
        for name, args, keywords in recorder.calls
        if name in ("init", "set_experiment")
    ]
    assert "project" in opened[0].values()
    assert recorder.calls[-1][0] in ("end_run", "finish")


def test_a_run_that_is_open_stays_open(run, monkeypatch):
    module = Recorder("wandb")
    run_of_theirs = SimpleNamespace(log=lambda values: None, log_artifact=lambda artefact: None)
    monkeypatch.setattr(module, "run", run_of_theirs)
    monkeypatch.setitem(sys.modules, "wandb", module)
    run.log(to="wandb")
    assert not module.of("init")
    assert not module.of("finish")


def test_what_a_tracker_says_is_one_sentence(run, monkeypatch):
    module = Recorder("trackio")
    refusal = RuntimeError("api_key not configured\nTraceback")
    monkeypatch.setattr(module, "init", lambda **_: (_ for _ in ()).throw(refusal), raising=False)
    monkeypatch.setitem(sys.modules, "trackio", module)
    with facts.refused(HoldfastError, "api_key", "trackio", "configured") as refused:
        run.log(to="trackio")
    assert "\n" not in str(refused.value)


def test_a_missing_tracker_is_said_before_anything_is_measured(monkeypatch):
    for name in ("mlflow", "tensorbord"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(HoldfastError, match=r"cannot be imported|Did you mean 'tensorboard'"):
            hf.evaluate("builtin:nothing", log=name)
    assert set(TRACKERS) == {"mlflow", "wandb", "tensorboard", "trackio"}


def test_gates_as_junit_and_in_a_test(run, tmp_path):
    kept, broken = "rankme>=1", "rankme>=1000"
    hf.check(run, [kept, broken], junit=tmp_path / "gates.xml")
    suite = ElementTree.parse(tmp_path / "gates.xml").getroot()
    assert (suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuite", "2", "1")
    cases = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert cases[kept] is None
    failure = cases[broken]
    assert failure is not None
    assert "rankme is" in failure.attrib["message"]
    with facts.refused(UnknownName, "'rankmee'"):
        hf.check(run, [kept, "rankmee>=1", broken], junit=tmp_path / "wrong.xml")
    suite = ElementTree.parse(tmp_path / "wrong.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    errors = {case.get("name"): error.attrib["message"] for case in suite for error in case.iter("error")}
    assert errors.keys() == {"rankmee>=1"}
    assert "Did you mean 'rankme'" in errors["rankmee>=1"]
    hf.require(run, kept)
    with pytest.raises(AssertionError, match=r"rankme>=1000: .*rankme is"):
        hf.require(run, kept, broken)
