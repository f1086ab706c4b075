"""Every command on encoders of 4 and 13 channels and of videos: it answers, or refuses with one sentence."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli.app import run
from holdfast.measure.store import load
from tests.marks import rest_slow

SHAPES = {"four_bands": (4, 4, 4), "thirteen_bands": (13, 4, 4), "video": (3, 2, 4, 4)}
BANDS = ["four_bands", "thirteen_bands"]
OF_EDITS = "alignment,common-corruptions,common-perturbations,grad-cam"


@pytest.fixture(autouse=True)
def _arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, shape in SHAPES.items():
        values = np.random.default_rng(0).random((64, *shape), dtype=np.float32)
        np.save(f"{name}.npy", values)
        np.save(f"{name}-later.npy", np.clip(values[32:] + 0.4, 0, 1))


def encoder(name: str) -> str:
    return f"python:tests.cli.modules:{name}?shape={'x'.join(map(str, SHAPES[name]))}"


def lines(capsys, *arguments: str, status: int = 0) -> list[str]:
    """Run and return the lines of standard error but for progress."""
    assert run(list(arguments)) == status
    said = capsys.readouterr().err.splitlines()
    assert not any("Traceback" in line or "defect" in line for line in said)
    return [line for line in said if not re.match(r" *\d+%  ", line)]


@pytest.mark.parametrize("name", rest_slow(BANDS))
def test_what_applies_to_bands_is_answered_and_the_rest_is_named_once(capsys, name):
    named = ["evaluate", encoder(name), "--images", f"{name}.npy", "--limit", "8", "--workers", "1"]
    said = lines(capsys, *named, "--only", OF_EDITS, "--out", "run")
    (note,) = [line for line in said if "Left out" in line]
    assert all(left in note for left in ("jpeg", "jpeg-compression-c", "hue-saturation", "common-perturbations"))
    results, failures = load(Path("run"))
    assert not failures
    assert {result.evaluation for result in results} == set(OF_EDITS.split(","))
    page = unescape(Path("run/report.html").read_text())
    assert "without jpeg-compression-c" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BANDS[-1:], "video"])
def test_all_of_a_suite_ends_well(capsys, name):
    few = ["--images", f"{name}.npy", "--limit", "32", "--workers", "1", "--out", "run"]
    said = lines(capsys, "evaluate", encoder(name), *few)
    assert len([line for line in said if "Left out" in line]) == 1
    results, failures = load(Path("run"))
    assert not failures
    answered = {result.evaluation for result in results}
    assert {"overlap", "breakaway", "certified-radius", "geometry", "spade"} <= answered
    assert answered.isdisjoint(OF_EDITS.split(",")) == (name == "video")
    assert Path("run/report.html").exists()


@pytest.mark.parametrize("only", ["grad-cam", "alignment", "common-corruptions", "common-perturbations"])
def test_an_evaluation_of_edits_that_was_asked_for_is_refused_for_videos(capsys, only):
    (sentence,) = lines(capsys, "evaluate", encoder("video"), "--images", "video.npy", "--only", only, status=2)
    assert only in sentence
    assert "3 x 2 x 4 x 4" in sentence


@pytest.mark.parametrize("name", ["thirteen_bands", "video"])
def test_drift_and_threshold_do_without_the_edits_that_do_not_apply(capsys, name):
    images = f"{name}.npy"
    moved = lines(capsys, "drift", images, f"{name}-later.npy", "--encoder", encoder(name), "--out", "drift", status=1)
    cut = lines(
        capsys, "threshold", encoder(name), "--images", images, "--samples", "8", "--eps", "0.01", "--out", "cut"
    )
    for said, folder in ((moved, "drift"), (cut, "cut")):
        assert len([line for line in said if "Left out" in line]) == 1
        (result,), failures = load(Path(folder))
        assert not failures
        edits = [each.conditions["edit"] for each in result.findings.estimates if "edit" in each.conditions]
        assert bool(edits) == (name != "video")
        assert not [edit for edit in edits if edit.startswith(("jpeg", "hue-saturation"))]


@pytest.mark.parametrize("name", rest_slow(["thirteen_bands", "video"]))
def test_commands_that_make_no_edits_take_every_shape(capsys, name):
    given = [encoder(name), "--images", f"{name}.npy", "--limit", "4", "--eps", "0.01"]
    lines(capsys, "attack", *given, "--out", "attacked")
    lines(capsys, "certify", *given, "--negatives", "2", "--out", "certified")
    lines(capsys, "parity", encoder(name), "float64", "--images", f"{name}.npy")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thirteen_bands", "video"])
def test_networks_of_every_shape_are_hardened(capsys, name):
    given = [encoder(name), "--images", f"{name}.npy", "--eps", "0.01", "--epochs", "1"]
    lines(capsys, "harden", *given, "--out", "hardened")


@pytest.mark.parametrize("name", ["thirteen_bands", "video"])
def test_files_of_images_are_made_of_pictures_alone(capsys, name):
    (sentence,) = lines(capsys, "corrupt", f"{name}.npy", "--transform", "fog-c:3", "--out", "fog", status=2)
    assert str((64, *SHAPES[name])) in sentence
    (sentence,) = lines(
        capsys, "corrupt", f"{name}.npy", "--transform", "fog-c:3", "--out", "fog", "--channels", "13", status=2
    )
    assert "13" in sentence
