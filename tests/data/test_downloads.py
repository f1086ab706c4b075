"""MNIST and CIFAR as they are downloaded, in all forms; every form is written here from the same pixels."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import holdfast as hf
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.data import load

RGB, GREY = Domain((3, 32, 32)), Domain((1, 28, 28))
DRAWN = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
FINE = np.array([3, 99, 0, 41, 7, 7, 12, 98, 50, 1, 2, 3])
COARSE = FINE // 5
DIGITS = np.random.default_rng(1).integers(0, 256, (5, 28, 28), dtype=np.uint8)
CLASSES = np.array([7, 2, 1, 0, 9])
FILES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]


class OldPickler(pickle._Pickler):
    """Writes as Python 2 did, whose text was bytes: the published batches are of that time."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_old(self: Any, value: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(value)) + value)

    dispatch[bytes] = save_old


def old(value: Any) -> bytes:
    file = io.BytesIO()
    OldPickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def pickled_ten(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        rows = slice(2 * number, 2 * number + 2)
        batch = {b"data": DRAWN[rows].reshape(2, -1), b"labels": (FINE[rows] % 10).tolist(), b"batch_label": b"one"}
        (folder / name).write_bytes(old(batch))
    (folder / "test_batch").write_bytes(old({b"data": DRAWN[10:].reshape(2, -1), b"labels": [2, 3]}))
    return folder


def pickled_hundred(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, rows in (("train", slice(0, 10)), ("test", slice(10, 12))):
        labels = {b"fine_labels": FINE[rows].tolist(), b"coarse_labels": COARSE[rows].tolist()}
        (folder / name).write_bytes(old({b"data": DRAWN[rows].reshape(-1, 3072), **labels}))
    (folder / "meta").write_bytes(old({b"fine_label_names": [b"apple"]}))
    return folder


def binary(folder: Path, hundred: bool) -> Path:
    folder.mkdir(parents=True)
    marks = np.stack([COARSE, FINE], 1) if hundred else FINE[:, None] % 10
    records = np.concatenate([marks.astype(np.uint8), DRAWN.reshape(12, -1)], 1)
    train = ["train.bin"] if hundred else [f"{name}.bin" for name in FILES]
    for name, part in zip(train, np.split(records[:10], len(train)), strict=True):
        part.tofile(folder / name)
    records[10:].tofile(folder / ("test.bin" if hundred else "test_batch.bin"))
    return folder


def idx(folder: Path, packed: bool = False, split: str = "t10k") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        f"{split}-images-idx3-ubyte": struct.pack(">4I", 0x803, 5, 28, 28) + DIGITS.tobytes(),
        f"{split}-labels-idx1-ubyte": struct.pack(">2I", 0x801, 5) + CLASSES.astype(np.uint8).tobytes(),
    }
    for name, content in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("make", [pickled_ten, lambda f: binary(f, False)], ids=["pickled", "binary"])
def test_cifar_10(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "cifar-10-batches-py")
    for split, rows in (("train", slice(0, 10)), ("test", slice(10, 12))):
        for reference in (f"{folder}?split={split}", f"torchvision:CIFAR10?root={tmp_path}&split={split}"):
            images = load(reference, RGB)
            assert np.array_equal(np.asarray(images.pixels(range(len(images)))) * 255, DRAWN[rows])
            assert images.labels is not None
            assert images.labels.tolist() == (FINE[rows] % 10).tolist()


@pytest.mark.parametrize("make", [pickled_hundred, lambda f: binary(f, True)], ids=["pickled", "binary"])
def test_cifar_100(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "cifar-100-python")
    for labels, expected in (("fine", FINE), ("coarse", COARSE)):
        images = load(f"torchvision:CIFAR100?root={tmp_path}&split=train&labels={labels}", RGB)
        assert np.array_equal(np.asarray(images.pixels(range(10))) * 255, DRAWN[:10])
        assert images.labels is not None
        assert images.labels.tolist() == expected[:10].tolist()
    assert len(load(str(folder), RGB)) == 2


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(packed: bool, tmp_path: Path) -> None:
    folder = idx(tmp_path / "MNIST/raw", packed)
    file = folder / ("t10k-images-idx3-ubyte" + packed * ".gz")
    for reference in (str(folder), str(file), f"torchvision:MNIST?root={tmp_path}"):
        images = load(reference, GREY)
        assert np.array_equal(np.asarray(images.pixels(range(5)))[:, 0] * 255, DIGITS)
        assert images.labels is not None
        assert images.labels.tolist() == CLASSES.tolist()
    with pytest.raises(HoldfastError, match="train-images-idx3-ubyte"):
        load(f"{folder}?split=train", GREY)


def test_the_files_of_another_data_set_are_not_taken_for_it(tmp_path: Path) -> None:
    pickled_ten(tmp_path / "cifar-100-python")
    with pytest.raises(HoldfastError, match="CIFAR-10, pickled"):
        load(f"torchvision:CIFAR100?root={tmp_path}", RGB)


def test_a_run_reads_them(tmp_path: Path) -> None:
    run = hf.evaluate("builtin:digits-random", str(idx(tmp_path / "raw")), out=tmp_path / "run", only=["geometry"])
    assert max(estimate.n for result in run.results for estimate in result.estimates) == 5


def test_folders_of_photographs_stay_folders(tmp_path: Path) -> None:
    from PIL import Image

    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        Image.fromarray(DRAWN[0].transpose(1, 2, 0)).save(tmp_path / split / "a.png")
    assert len(load(str(tmp_path), RGB)) == 2


class Call:
    def __reduce__(self) -> Any:
        import os

        return os.system, ("touch harmed",)


def test_a_batch_that_calls_something_is_refused_before_it_does(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = pickled_ten(tmp_path / "cifar-10-batches-py")
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": Call(), b"labels": [1]}, protocol=2))
    with pytest.raises(HoldfastError, match="test_batch"):
        load(str(folder), RGB)
    assert not (tmp_path / "harmed").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0123456")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other(path: Path) -> None:
    path.write_bytes(b"<html>not found</html>" * 40)


def gone(path: Path) -> None:
    path.unlink()


DAMAGES = [cut, empty, other, gone]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_damaged_idx_files_are_named(damage: Any, file: str, tmp_path: Path) -> None:
    folder = idx(tmp_path, file.endswith(".gz"))
    if damage is gone and "images" in file:
        idx(tmp_path, split="train")  # the folder still is one of MNIST
    damage(folder / file)
    if damage is gone and "labels" in file:
        assert load(str(folder), GREY).labels is None
        return
    with pytest.raises(HoldfastError, match=file.removesuffix(".gz")):
        load(str(folder), GREY)


def test_an_idx_file_with_bytes_left_over_is_refused(tmp_path: Path) -> None:
    grown(idx(tmp_path) / "t10k-images-idx3-ubyte")
    with pytest.raises(HoldfastError, match="5 x 28 x 28"):
        load(str(tmp_path), GREY)


def test_an_idx_header_that_states_more_than_memory_is_refused(tmp_path: Path) -> None:
    (idx(tmp_path) / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 2**31, 2**20, 28))
    with pytest.raises(HoldfastError, match="2147483648 x 1048576 x 28"):
        load(str(tmp_path), GREY)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("make", "file"),
    [(pickled_ten, "data_batch_3"), (lambda f: binary(f, False), "data_batch_3.bin"), (pickled_hundred, "train")],
    ids=["pickled ten", "binary ten", "pickled hundred"],
)
def test_damaged_batches_are_named(make: Any, file: str, damage: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "cifar")
    damage(folder / file)
    with pytest.raises(HoldfastError, match=file):
        load(f"{folder}?split=train", RGB)


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("torchvision:CIFAR11?root=.", "CIFAR10"),
        ("torchvision:CIFAR10", "root"),
        ("{}?split=val", "val"),
        ("{}?labels=names", "names"),
        ("{}?labels=coarse", "CIFAR-100"),
        ("{}?splitt=test", "split"),
        ("torchvision:MNIST?root={}", "MNIST/raw"),
    ],
)
def test_mistakes_are_explained(reference: str, named: str, tmp_path: Path) -> None:
    folder = pickled_ten(tmp_path / "cifar-10-batches-py")
    with pytest.raises(HoldfastError, match=named):
        load(reference.format(folder), RGB)
