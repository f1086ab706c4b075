"""Images and codes in columns: bytes, nested lists, lists of a fixed size and tensors, of parquet files and datasets."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.data import load
from holdfast.data.codes.codes import read_codes
from tests.data.conftest import Painter

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
RGB = Domain((3, 8, 8))
PIXELS = np.random.default_rng(0).random((5, 3, 8, 8)).astype(np.float32)


def _fixed(values: np.ndarray) -> Any:
    """Return an Arrow array of nested lists of a fixed size."""
    column = arrow.array(values.reshape(-1))
    for size in values.shape[:0:-1]:
        column = arrow.FixedSizeListArray.from_arrays(column, size)
    return column


def _nested(kind: Any) -> Any:
    for _ in range(3):
        kind = arrow.list_(kind)
    return kind


ARRAYS = {
    "nested": arrow.array(PIXELS.tolist(), _nested(arrow.float32())),
    "fixed": _fixed(PIXELS),
    "tensor": arrow.FixedShapeTensorArray.from_numpy_ndarray(PIXELS),
    # Stored with the channels last, and read with them first: the specification's order of axes.
    "permuted": arrow.ExtensionArray.from_storage(
        arrow.fixed_shape_tensor(arrow.float32(), (8, 8, 3), permutation=[2, 0, 1]),
        _fixed(PIXELS.transpose(0, 2, 3, 1).reshape(5, 192)),
    ),
}


def _write(path: Path, column: Any, **columns: Any) -> str:
    parquet.write_table(arrow.table({"caption": ["text"] * len(column), "image": column, **columns}), path)
    return str(path)


@pytest.mark.parametrize("name", ARRAYS)
def test_columns_of_numbers_are_the_array_they_were_made_of(tmp_path: Path, name: str) -> None:
    images = load(_write(tmp_path / "x.parquet", ARRAYS[name], label=[3, 1, 4, 1, 5]), RGB)
    assert torch.equal(images.pixels([4, 0, 2]), torch.from_numpy(PIXELS[[4, 0, 2]]))
    assert images.labels is not None
    assert images.labels.tolist() == [3, 1, 4, 1, 5]
    np.save(tmp_path / "x.npy", PIXELS)
    assert load(str(tmp_path / "x.npy"), RGB).digests == images.digests


@pytest.mark.parametrize("kind", ["binary", "large_binary", "structure"])
def test_columns_of_bytes_are_the_files_they_were_made_of(paint: Painter, tmp_path: Path, kind: str) -> None:
    content = [paint(f"{row}.png").read_bytes() for row in range(4)]
    files = load(str(tmp_path / "images"), RGB)
    if kind == "structure":
        column = arrow.array([{"bytes": each, "path": None} for each in content])
    else:
        column = arrow.array(content, getattr(arrow, kind)())
    images = load(_write(tmp_path / "x.parquet", column), RGB)
    assert torch.equal(images.pixels([2, 0, 3]), files.pixels([2, 0, 3]))
    assert images.digests == files.digests
    assert torch.equal(pickle.loads(pickle.dumps(images.source)).read([1]), files.source.read([1]))


def test_damaged_and_missing_bytes_are_skipped(paint: Painter, tmp_path: Path) -> None:
    content = [paint(f"{row}.png").read_bytes() for row in range(4)]
    path = _write(tmp_path / "x.parquet", arrow.array([*content, None, b"", content[0][:60]], arrow.binary()))
    with pytest.warns(HoldfastWarning, match=r"3 of 7 .*4 \(no image.*5 \(zero bytes\).*6 \("):
        images = load(path, RGB, max_unreadable=0.5)
    assert images.ids == ("0", "1", "2", "3")


def test_which_column_holds_the_images_is_found_or_named(paint: Painter, tmp_path: Path) -> None:
    content = arrow.array([paint(f"{row}.png").read_bytes() for row in range(5)])
    path = _write(tmp_path / "x.parquet", content, features=PIXELS[:, 0, 0].tolist(), masks=PIXELS[:, 0].tolist())
    encoded = load(path, RGB)  # bytes come before numbers, and flat lists are features
    assert encoded.pixels([0]).dtype != torch.float64
    assert torch.equal(encoded.pixels([1]), load(f"{path}?image=image", RGB).pixels([1]))
    assert load(f"{path}?image=masks", Domain((1, 8, 8))).pixels([0]).shape == (1, 1, 8, 8)
    two = tmp_path / "two.parquet"
    _write(two, content, other=content)
    for reference, names in {
        str(two): ("image, other",),
        f"{path}?image=imag": ("'imag'", "'image'"),
        f"{path}?label=labels": ("'labels'",),
        f"{path}?image=caption": ("'caption'", "features, image, masks"),
        f"{path}?split=train": ("'split'",),
    }.items():
        with pytest.raises(HoldfastError) as refused:
            load(reference, RGB)
        assert all(name in str(refused.value) for name in names), refused.value


def test_numbers_without_one_shape_are_refused(tmp_path: Path) -> None:
    rows = PIXELS.tolist()
    short: list[Any] = [*rows[:2], rows[2][:2], *rows[3:]]
    absent: list[Any] = [*rows[:2], None]
    holes = (PIXELS * 255).astype(np.uint8).tolist()
    holes[3][0][0][0] = None
    for column, said in (
        (arrow.array(short, _nested(arrow.float32())), "2, 3"),
        (arrow.array(absent, _nested(arrow.float32())), "missing"),
        (arrow.array(holes, _nested(arrow.uint8())), "lack 1 "),
        (arrow.array((PIXELS * 255).astype(int).tolist()), "int64"),
    ):
        with pytest.raises(HoldfastError, match=said):
            load(_write(tmp_path / "x.parquet", column), RGB)


def test_what_is_no_parquet_of_images_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no parquet at all")
    parquet.write_table(arrow.table({"image": arrow.array([], arrow.binary())}), tmp_path / "empty.parquet")
    for name in ("text", "empty", "nowhere"):
        with pytest.raises(HoldfastError, match=name) as refused:
            load(f"parquet:{tmp_path}/{name}.parquet", RGB)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["nested", "fixed", "array"])
def test_datasets_of_numbers_are_the_array_they_were_made_of(tmp_path: Path, name: str) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = {
        "nested": datasets.List(datasets.List(datasets.List(datasets.Value("float32")))),
        "fixed": datasets.List(datasets.List(datasets.List(datasets.Value("float32"), length=8), length=8), length=3),
        "array": datasets.Array3D((3, 8, 8), "float32"),
    }
    dataset = datasets.Dataset.from_dict({"x": PIXELS.tolist()}, features=datasets.Features({"x": kinds[name]}))
    dataset.select([4, 3, 2, 1, 0]).save_to_disk(tmp_path / "saved")
    images = load(str(tmp_path / "saved"), RGB, limit=4)
    rows = [4 - int(key) for key in images.ids]
    assert torch.equal(images.pixels([3, 0]), torch.from_numpy(PIXELS[[rows[3], rows[0]]]))
    assert len(images.fingerprint) == 16
    dataset.to_parquet(tmp_path / "x.parquet")
    assert torch.equal(load(str(tmp_path / "x.parquet"), RGB).pixels(range(5)), torch.from_numpy(PIXELS))


def test_datasets_of_bytes_are_the_files_they_were_made_of(paint: Painter, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    content = [paint(f"{row}.png").read_bytes() for row in range(3)]
    kinds = {"photo": datasets.Value("binary"), "label": datasets.Value("int64")}
    columns = {"photo": content, "label": [0, 1, 1]}
    datasets.Dataset.from_dict(columns, features=datasets.Features(kinds)).save_to_disk(tmp_path / "saved")
    images, files = load(str(tmp_path / "saved"), RGB), load(str(tmp_path / "images"), RGB)
    assert images.digests == files.digests
    assert torch.equal(images.pixels([2, 0]), files.pixels([2, 0]))


def test_codes_are_read_from_lists_of_any_kind(tmp_path: Path) -> None:
    codes = PIXELS[:, 0, 0]
    for column in (
        arrow.array(codes.tolist(), arrow.large_list(arrow.float32())),
        _fixed(codes),
        arrow.FixedShapeTensorArray.from_numpy_ndarray(codes),
    ):
        path = _write(tmp_path / "x.parquet", arrow.array([b"an image"] * 5), id=list("abcde"), embedding=column)
        stored = read_codes(path)
        assert np.array_equal(np.asarray(stored.codes[torch.arange(5)]), codes)
        assert stored.ids == tuple("abcde")
    for column, said in ((ARRAYS["tensor"], "image"), (arrow.array([c.tobytes() for c in codes]), "image .binary")):
        with pytest.raises(HoldfastError, match=said):
            read_codes(_write(tmp_path / "y.parquet", column))
