"""Changed images as files: whole, resumable, and what the library itself reads again."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from PIL import Image

import holdfast
from holdfast import data
from holdfast.cli.app import run
from holdfast.commands.corrupt import corrupt
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.corruptions.transformed_files import Manifest
from holdfast.run.engines.base import Engine
from holdfast.run.engines.processes import Processes
from holdfast.transforms.base import Transform, transformed
from tests.facts import refused


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three images in two classes: colour, palette and 16-bit grey."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "photos"
    (folder / "cat").mkdir(parents=True)
    (folder / "dog").mkdir()
    colours = generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(colours).save(folder / "cat" / "1.jpg")
    Image.fromarray(colours).convert("P").save(folder / "cat" / "2.png")
    Image.fromarray(generator.integers(0, 1 << 16, (40, 40)).astype(np.uint16)).save(folder / "dog" / "1.png")
    return folder


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted(folder.rglob("*.png"))}


def test_what_is_written_is_what_the_transform_makes(photos: Path, tmp_path: Path):
    out = tmp_path / "out"
    fog, chain = corrupt(photos, ["fog-c:3", "jpeg:quality=30 + gamma:0.5"], out, size=32)
    names = ["cat/1.png", "cat/2.png", "dog/1.png"]
    assert [*times(out)] == [*(f"fog-c_3/{name}" for name in names), *(f"jpeg_30_gamma_0.5/{name}" for name in names)]
    domain = Domain((3, 32, 32))
    clean = data.load(str(photos), domain)
    expected = transformed(clean, Transform.read("fog-c:3")).pixels(range(3))
    again = data.load(f"{out / 'fog-c_3'}?labels=folders", domain)
    assert torch.equal((expected * 255).round(), again.pixels(range(3)) * 255)
    assert again.labels is not None
    assert again.labels.tolist() == [0, 0, 1]
    assert [file.id for file in fog.files] == list(clean.ids)
    assert fog.original_images == clean.fingerprint
    assert fog.change == pytest.approx(
        float((again.pixels(range(3)) - clean.pixels(range(3))).abs().mean()) * 255, rel=1e-5
    )
    assert Manifest.model_validate_json((out / "jpeg_30_gamma_0.5.json").read_bytes()) == chain
    assert chain.versions == "jpeg:30 v1 + gamma:0.5 v1"


def test_whole_files_are_left_alone_and_damaged_ones_are_written_again(photos: Path, tmp_path: Path):
    corrupt(photos, "noise:0.2", tmp_path / "out", size=32, batch_size=2)
    folder = tmp_path / "out" / "noise_0.2"
    contents = {name: (folder / name).read_bytes() for name in times(folder)}
    (folder / "cat" / "1.png").write_bytes(contents["cat/1.png"][:-30])
    (folder / "dog" / "1.png").unlink()
    Image.new("RGB", (32, 32)).save(folder / "cat" / "2.png")  # sound, but not of this request
    (tmp_path / "out" / "noise_0.2.json").unlink()
    corrupt(photos, "noise:0.2", tmp_path / "out", size=32)
    assert {name: (folder / name).read_bytes() for name in contents} == contents
    before = times(folder)
    corrupt(photos, "noise:0.2", tmp_path / "out", size=32)
    assert times(folder) == before


class Elsewhere:
    """An engine whose workers share nothing with this process, and finish in another order."""

    def map(self, task: Any, given: Any, shards: Iterable[Any]) -> Generator[tuple[Any, Any], None, None]:
        sent = cloudpickle.dumps((task, given))
        for shard in reversed(list(shards)):
            task, given = pickle.loads(sent)
            yield shard, pickle.loads(pickle.dumps(task(given, shard)))


@pytest.mark.parametrize("engine", [Elsewhere(), pytest.param(Processes(2), marks=pytest.mark.slow)])
def test_files_do_not_depend_on_where_images_are_changed(
    photos: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    (alone,) = corrupt(photos, "noise:0.2", tmp_path / "alone", size=32)
    shutil.copytree(tmp_path / "alone" / "noise_0.2" / "cat", tmp_path / "out" / "noise_0.2" / "cat")
    before = times(tmp_path / "out")
    assert len(before) == 2
    monkeypatch.setattr("holdfast.run.run.engine_of", lambda *_: engine)
    (manifest,) = corrupt(photos, "noise:0.2", tmp_path / "out", size=32, batch_size=1)
    assert manifest.files == alone.files
    after = times(tmp_path / "out")
    assert [name for name, time in after.items() if before.get(name) != time] == ["noise_0.2/dog/1.png"]
    for name in after:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_another_request_is_refused(photos: Path, tmp_path: Path):
    corrupt(photos, "noise:0.2", tmp_path / "out", size=32)
    for size, seed, limit in ((16, 0, None), (32, 1, None), (32, 0, 2)):
        with refused(HoldfastError, "noise_0.2", "holds", "already"):
            corrupt(photos, "noise:0.2", tmp_path / "out", size=size, seed=seed, limit=limit)
    corrupt(photos, "gamma:2", tmp_path / "out", size=32)
    assert (tmp_path / "out" / "gamma_2.0" / "dog" / "1.png").exists()


def test_a_size_that_was_interrupted_is_not_taken_for_another(photos: Path, tmp_path: Path):
    corrupt(photos, "gamma:2", tmp_path / "out", size=16)
    (tmp_path / "out" / "gamma_2.0.json").unlink()
    corrupt(photos, "gamma:2", tmp_path / "out", size=32)
    assert {
        Image.open(tmp_path / "out" / "gamma_2.0" / name).size for name in times(tmp_path / "out" / "gamma_2.0")
    } == {(32, 32)}


def test_images_of_an_interrupted_request_do_not_stay_among_others(photos: Path, tmp_path: Path):
    corrupt(photos, "gamma:2", tmp_path / "out", size=32)
    (tmp_path / "out" / "gamma_2.0.json").unlink()
    with refused(HoldfastError, "1 in", "holds", "already"):
        corrupt(photos, "gamma:2", tmp_path / "out", size=32, limit=2)


def test_names_of_files(tmp_path: Path):
    pixels = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    ids = ["a.jpg", "a.png", "../b b", "c"]
    (manifest,) = holdfast.corrupt(Images(pixels, ids, torch.tensor([3, 3, 5, 5])), "gamma:2", tmp_path / "out")
    written = ["a.jpg.png", "a.png.png", "_/b_b.png", "c.png"]  # two differ in their endings alone, one leads outside
    assert [file.file for file in manifest.files] == [f"gamma_2.0/{name}" for name in written]
    assert manifest.shape == (1, 8, 8)
    assert all((tmp_path / "out" / file.file).resolve().is_relative_to(tmp_path / "out") for file in manifest.files)


def test_labels_are_folders_where_ids_name_none(tmp_path: Path):
    images = Images(torch.rand(2, 3, 8, 8), labels=torch.tensor([7, 2]))
    (manifest,) = corrupt(images, "brightness:0.1", tmp_path)
    assert [file.file for file in manifest.files] == ["brightness_0.1/7/0.png", "brightness_0.1/2/1.png"]
    called = Images(torch.rand(2, 3, 8, 8), labels=torch.tensor([1, 0]), classes=["cat", "big dog"])
    (manifest,) = corrupt(called, "brightness:0.2", tmp_path)
    assert [file.file for file in manifest.files] == ["brightness_0.2/big_dog/0.png", "brightness_0.2/cat/1.png"]


def test_the_command(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["corrupt", str(photos), "--transform", "snow-c:2", "--transform", "blur:0.01", "--size", "32"]
    assert run([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert f"3 images in {tmp_path / 'out' / 'snow-c_2'}, changed by" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "blur_0.01.json").read_text())["name"] == str(photos)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--transform", "fog-c:6"], "severity must be in [1, 5]"),
        (["--transform", "fogc:3"], "Did you mean 'fog-c'"),
        (["--transform", "global-shuffle:grid=5"], "must be one of 1, 2, 4, 8, 16, 32"),
        (["--transform", "gamma:2", "--transform", "gamma:2.0"], "each transform is written once"),
        (["--transform", "gamma:2", "--channels", "2"], "1 or 3 channels"),
    ],
)
def test_mistakes_are_one_sentence(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
):
    assert run(["corrupt", str(photos), "--size", "32", "--out", str(tmp_path / "out"), *more]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_a_manifest_of_something_else(photos: Path, tmp_path: Path):
    (tmp_path / "gamma_2.0.json").write_text("{}")
    with pytest.raises(HoldfastError, match="is no manifest"):
        corrupt(photos, "gamma:2", tmp_path, size=32)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write anywhere")
def test_folders_that_cannot_be_written(photos: Path, tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(HoldfastError, match="cannot write"):
        corrupt(photos, "gamma:2", tmp_path / "out", size=32)


def test_a_subset_is_written(photos: Path, tmp_path: Path):
    asked = ["--transform", "gamma:5", "--subset", "uniform:total=3", "--size", "32", "--out"]
    assert run(["corrupt", f"{photos}?labels=folders", *asked, str(tmp_path / "one")]) == 0
    assert sorted(name.split("/")[1] for name in times(tmp_path / "one")) == ["cat", "dog"]
    assert run(["corrupt", str(photos), *asked, str(tmp_path / "two")]) != 0
