"""Images that belong together: named by the reference, carried by the images, part of conclusions' keys alone."""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.core.errors import HoldfastError
from holdfast.data.by_name import groups_of
from holdfast.encoders import load
from holdfast.measure.store import key_of
from tests.facts import says

DIGITS = hf.Domain((1, 8, 8))


def test_files_say_the_groups(tmp_path):
    images = hf.load_images("builtin:digits", load("builtin:digits-robust"), limit=12)
    file = tmp_path / "groups.csv"
    file.write_text("\n".join(f"{name},{place // 3}" for place, name in enumerate(images.ids)))
    grouped = hf.load_images(f"builtin:digits?groups={file}", load("builtin:digits-robust"), limit=12)
    assert grouped.groups == tuple("000111222333")
    assert grouped.ids == images.ids
    assert grouped.fingerprint == images.fingerprint
    assert images.groups is None
    assert images.groups_fingerprint == ""
    assert grouped[[3, 0]].groups == ("1", "0")
    assert hf.transformed(grouped, "gamma:0.5").groups == grouped.groups


@pytest.mark.parametrize(
    ("grouping", "said"),
    [
        ("prefix", "needs '_' in every name, and 'a/1.png' has none"),
        ("folders", "needs '/' in every name, and 'b.png' has none"),
        ("nowhere.csv", "'nowhere.csv'"),
        ("three.csv", "two, id and group, got 3"),
        ("few.csv", "no group for 1 of 2 images, 'b.png'"),
    ],
)
def test_groups_that_leave_an_image_out_are_refused(grouping, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("three.csv").write_text("a/1.png,x,y")
    Path("few.csv").write_text("a/1.png,x")
    with pytest.raises(HoldfastError, match=said):
        groups_of(["a/1.png", "b.png"], grouping)


def test_images_need_a_group_each():
    with pytest.raises(HoldfastError, match="3 images but 2 groups"):
        hf.Images(torch.rand(3, 1, 8, 8), groups=["a", "b"])


def test_groups_change_intervals_and_nothing_else():
    encoder, pixels = load("builtin:digits-robust"), torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    alone, grouped = hf.Images(pixels), hf.Images(pixels, groups=[f"slide {row // 5}" for row in range(30)])
    evaluation, run = hf.SpaceGeometry(k=3), hf.RunSettings()
    assert key_of(evaluation, encoder, alone, run) != key_of(evaluation, encoder, grouped, run)
    observation = evaluation.observation()
    assert key_of(observation, encoder, alone, run) == key_of(observation, encoder, grouped, run), "seen once for both"
    before, after = evaluation(encoder, alone, run), evaluation(encoder, grouped, run)
    assert repr(after.findings.series) == repr(before.findings.series)
    assert [estimate.value for estimate in after.estimates] == [estimate.value for estimate in before.estimates]
    assert after.findings.groups == grouped.groups
    assert before.findings.groups == ()
    assert after.settings["groups"] == grouped.groups_fingerprint
    for one, other in zip(before.estimates, after.estimates, strict=True):
        if isfinite(one.low):
            grouped_interval = "6 groups of images" in other.method
            assert grouped_interval or says(other.method, "independent")
            assert grouped_interval == ((one.low, one.high) != (other.low, other.high))
    assert any("6 groups" in estimate.method for estimate in after.estimates), "vacuous"


@pytest.mark.skipif("HOLDFAST_REFERENCE" not in os.environ, reason="the reference data are not here")
def test_crops_of_one_photograph_are_a_group():
    folder = Path(os.environ["HOLDFAST_REFERENCE"]) / "real" / "photos"
    images = hf.load_images(f"{folder}?groups=prefix", load("baseline:pixels?shape=3x32x32"))
    assert images.groups is not None
    assert (len(images), len(set(images.groups))) == (144, 19)
