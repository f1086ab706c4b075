"""Hugging Face datasets on disk, and what is asked of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.data import load
from holdfast.data.reading.scan import Encoded
from tests.data.conftest import Painter
from tests.facts import refused, warned

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
    with refused(HoldfastError, "?split=test", "splits", "choose"):
        load(f"{tmp_path}/both", RGB)
    with pytest.raises(HoldfastError, match="Did you mean 'test'"):
        load(f"{tmp_path}/both?split=tests", RGB)


def test_the_number_for_no_label_is_no_class(paint: Painter, tmp_path: Path) -> None:
    """Hidden test sets have -1 in a column of classes, and Python would take it for the last of them."""
    features = datasets.ClassLabel(names=["cat", "dog"])
    for name, labels in (("known", [0, 1, 1, 0]), ("hidden", [0, -1, 1, -1])):
        dataset = _dataset(paint).remove_columns("label").add_column("label", labels).cast_column("label", features)
        dataset.save_to_disk(tmp_path / name)
    known = load(f"{tmp_path}/known", RGB)
    assert known.labels is not None
    assert (known.labels.tolist(), tuple(known.classes)) == ([0, 1, 1, 0], ("cat", "dog"))
    with pytest.warns(HoldfastWarning, match="2 of 4"):
        assert load(f"{tmp_path}/hidden", RGB).labels is None
    with pytest.raises(HoldfastError, match="2 of 4"):
        load(f"{tmp_path}/hidden?label=label", RGB)


def test_columns_are_found_or_named(paint: Painter, tmp_path: Path) -> None:
    dataset = _dataset(paint).rename_columns({"image": "picture", "label": "breed"})
    dataset.save_to_disk(tmp_path / "named")
    assert load(f"{tmp_path}/named", RGB).labels is None
    labels = load(f"{tmp_path}/named?image=picture&label=breed", RGB).labels
    assert labels is not None
    assert labels.tolist() == [0, 1, 0, 1]
    for settings, said in {
        "image=pictur": "Did you mean 'picture'",
        "image=caption": "'caption'. Known: picture",
        "label=bred": "Did you mean 'breed'",
        "label=caption": "must be one integer per image",
        "labels=breed": "Did you mean 'label'",
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
    with warned(HoldfastWarning, "3 of 7", "4 (zero bytes)", "6 ("):
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
    with refused(HoldfastError, "'user/pets'", "dataset", "check"):
        load("hf:user/pets", RGB)


def test_a_damaged_dataset_is_one_sentence(paint: Painter, tmp_path: Path) -> None:
    _dataset(paint).save_to_disk(tmp_path / "saved")
    for file in (tmp_path / "saved").glob("*.arrow"):
        file.write_bytes(file.read_bytes()[:100])
    with refused(HoldfastError, "load the dataset"):
        load(str(tmp_path / "saved"), RGB)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(HoldfastError, match="pip install datasets"):
        load("hf:user/pets", RGB)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of Hugging Face datasets of this test's own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "holdfast-streamed"


def _folder(paint: Painter, tmp_path: Path, kind: str) -> Path:
    """Write six images as a dataset in a folder: parquet, or files in folders of their classes."""
    if kind == "files":
        for row in range(6):
            paint(f"{'ab'[row % 2]}/{row}.png")
        return tmp_path / "images"
    (tmp_path / "parquet").mkdir()
    _dataset(paint, 6).to_parquet(tmp_path / "parquet" / "data.parquet")
    return tmp_path / "parquet"


@pytest.mark.parametrize("kind", ["parquet", "files"])
def test_the_first_of_a_stream_are_read_once_and_then_in_any_order(
    paint: Painter, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = _folder(paint, tmp_path, kind)
    with warned(HoldfastWarning, "4 images", "streamed", "first"):
        images = load(f"hf:{folder}?streaming=true", RGB, limit=4)
    assert images.ids == ("0", "1", "2", "3")
    names = [f"{row}.png" for row in range(4)] if kind == "parquet" else ["a/0.png", "a/2.png", "a/4.png", "b/1.png"]
    files = [load(str((tmp_path / "images" / name).parent), RGB) for name in names]
    wanted = [file.pixels([file.ids.index(Path(name).name)])[0] for file, name in zip(files, names, strict=True)]
    assert torch.equal(images.pixels([3, 0, 2]), torch.stack([wanted[3], wanted[0], wanted[2]]))
    assert images.labels is not None
    assert images.labels.tolist() == ([0, 1, 0, 1] if kind == "parquet" else [0, 0, 0, 1])
    assert len(list(cache.iterdir())) == 1, "something half made was left"
    monkeypatch.setattr(datasets, "load_dataset", None)
    with pytest.warns(HoldfastWarning, match="is streamed"):
        again = load(f"hf:{folder}?streaming=true&take=4", Domain((1, 5, 5)), limit=2)
    assert set(again.digests) < set(images.digests)


def test_a_stream_must_be_told_how_much(paint: Painter, tmp_path: Path, cache: Path) -> None:
    folder = _folder(paint, tmp_path, "parquet")
    for settings, said in {
        "streaming=true": r"say how many of its first images to fetch, as in --limit 1000 or \?streaming=true&take=50000",
        "streaming=yes": "streaming is true or false, got 'yes'",
        "take=4": "take belongs to streaming=true",
    }.items():
        with pytest.raises(HoldfastError, match=said):
            load(f"hf:{folder}?{settings}", RGB)


@pytest.mark.filterwarnings("ignore:.* is streamed")
def test_a_stream_that_breaks_off_leaves_nothing_half_made(
    paint: Painter, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = paint("1.png").read_bytes()

    def rows() -> Iterator[dict[str, Any]]:
        for _ in range(3):
            yield {"image": {"bytes": encoded, "path": None}}
        raise ConnectionError("the hub hung up")

    stream = datasets.IterableDataset.from_generator(rows, features=datasets.Features({"image": datasets.Image()}))
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: stream)
    with refused(HoldfastError, "'user/pets'", "dataset", "check"):
        load("hf:user/pets?streaming=true", RGB, limit=5)
    assert list(cache.iterdir()) == []
    assert len(load("hf:user/pets?streaming=true", RGB, limit=2)) == 2


@pytest.mark.filterwarnings("ignore:.* is streamed")
@pytest.mark.parametrize("streaming", ["", "?streaming=true"])
def test_a_gated_dataset_says_where_to_ask(cache: Path, monkeypatch: pytest.MonkeyPatch, streaming: str) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'user/pets' is a gated dataset on the Hub. Visit it.")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with refused(HoldfastError, "dataset", "accept"):
        load(f"hf:user/pets{streaming}", RGB, limit=3)


@pytest.mark.filterwarnings("ignore:.* is streamed")
def test_a_stream_without_images_is_one_sentence(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.csv").write_text("text,label\nhello,1\n")
    with pytest.raises(HoldfastError, match=r"0 image columns \(none\); say which"):
        load(f"hf:{tmp_path}/texts?streaming=true", RGB, limit=2)
