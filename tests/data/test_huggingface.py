"""Hugging Face datasets on disk, and what is asked of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.data import load
from holdfast.data.encoded import Encoded
from tests.data.conftest import Painter

datasets = pytest.importorskip("datasets")
RGB = Domain((3, 8, 8))


def _dataset(paint: Painter, count: int = 4, start: int = 0) -> Any:
    files = [str(paint(f"{row}.png")) for row in range(start, start + count)]
    columns = {"image": files, "label": [row % 2 for row in range(count)], "caption": ["text"] * count}
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


def test_a_saved_dataset_gives_the_pixels_of_its_files(paint: Painter, tmp_path: Path) -> None:
    _dataset(paint).save_to_disk(tmp_path / "saved")
    images = load(str(tmp_path / "saved"), RGB)
    files = load(str(tmp_path / "images"), RGB)
    assert torch.equal(images.pixels([2, 0, 3]), files.pixels([2, 0, 3]))
    assert isinstance(images.source, Encoded)
    assert images.source.digest(1) == files.source.digest(1)
    assert images.ids == ("0", "1", "2", "3")
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 0, 1]


def test_splits_are_chosen_by_name(paint: Painter, tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": _dataset(paint, 4), "test": _dataset(paint, 3, start=4)})
    both.save_to_disk(tmp_path / "both")
    datasets.DatasetDict({"only": both["test"]}).save_to_disk(tmp_path / "one")
    assert len(load(f"{tmp_path}/both?split=test", RGB)) == 3
    assert len(load(f"hf:{tmp_path}/one", RGB)) == 3
    with pytest.raises(HoldfastError, match=r"has the splits train, test; choose one, as in .*\?split=test"):
        load(f"{tmp_path}/both", RGB)
    with pytest.raises(HoldfastError, match="has no split 'tests'; did you mean 'test'"):
        load(f"{tmp_path}/both?split=tests", RGB)


def test_columns_are_found_or_named(paint: Painter, tmp_path: Path) -> None:
    dataset = _dataset(paint).rename_columns({"image": "picture", "label": "breed"})
    dataset.save_to_disk(tmp_path / "named")
    assert load(f"{tmp_path}/named", RGB).labels is None
    labels = load(f"{tmp_path}/named?image=picture&label=breed", RGB).labels
    assert labels is not None
    assert labels.tolist() == [0, 1, 0, 1]
    for settings, said in {
        "image=pictur": "no image column 'pictur'; did you mean 'picture'",
        "image=caption": "no image column 'caption'; known: picture",
        "label=bred": "no column 'bred'; did you mean 'breed'",
        "label=caption": "must be one integer per image",
        "labels=breed": "no setting 'labels'; did you mean 'label'",
    }.items():
        with pytest.raises(HoldfastError, match=said):
            load(f"{tmp_path}/named?{settings}", RGB)
    dataset.remove_columns("picture").save_to_disk(tmp_path / "none")
    with pytest.raises(HoldfastError, match=r"0 image columns \(none\); say which"):
        load(f"{tmp_path}/none", RGB)


def test_damaged_and_missing_images_are_skipped(paint: Painter, tmp_path: Path) -> None:
    rows = [paint(f"{row}.png").read_bytes() for row in range(4)]
    cells = [{"bytes": data, "path": None} for data in [*rows, b"", rows[0][:100]]]
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict({"image": [*cells, None]}, features).save_to_disk(tmp_path / "saved")
    with pytest.warns(HoldfastWarning, match=r"3 of 7 .* 4 \(zero bytes\), 5 \(.*\), 6 \(no image in this row\)"):
        images = load(str(tmp_path / "saved"), RGB, max_unreadable=0.5)
    assert images.ids == ("0", "1", "2", "3")


def test_limit_follows_the_same_choice_as_everywhere(paint: Painter, tmp_path: Path) -> None:
    _dataset(paint, 12).save_to_disk(tmp_path / "saved")
    np.save(tmp_path / "x.npy", np.zeros((12, 3, 8, 8)))
    some = load(str(tmp_path / "saved"), RGB, limit=5)
    assert len(some) == 5
    assert some.ids == load(f"{tmp_path}/x.npy", RGB, limit=5).ids


def test_the_hub_is_asked_for_the_revision_and_split(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> Any:
        asked.append((args, options))
        return _dataset(paint)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    images = load("hf:user/pets@v2?split=test&config=small", RGB)
    assert asked == [(("user/pets", "small"), {"revision": "v2", "split": "test"})]
    assert images.name == "user/pets@v2"


@pytest.mark.parametrize("kind", [ConnectionError, IndexError])  # the latter is what an empty name raises
def test_a_hub_that_does_not_answer_is_one_sentence(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise kind("Couldn't reach 'user/pets' on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(HoldfastError, match=r"cannot load the dataset 'user/pets' \(Couldn't .* Hub\); check name"):
        load("hf:user/pets", RGB)


def test_a_damaged_dataset_is_one_sentence(paint: Painter, tmp_path: Path) -> None:
    _dataset(paint).save_to_disk(tmp_path / "saved")
    for file in (tmp_path / "saved").glob("*.arrow"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(HoldfastError, match="cannot load the dataset"):
        load(str(tmp_path / "saved"), RGB)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(HoldfastError, match="pip install datasets"):
        load("hf:user/pets", RGB)
