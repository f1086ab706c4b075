"""MNIST and CIFAR as their authors publish them: idx files, pickled or binary batches, in torchvision's folders or alone."""

from __future__ import annotations

import gzip
import math
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import Described, HoldfastError, OutOfRange, UnknownName, explained
from holdfast.core.images import Images
from holdfast.data.arrays import UNPACKED
from holdfast.data.by_name import Selection, as_labels, check_settings
from holdfast.data.reading.array_source import load_array

SOURCE = "torchvision"

FOLDERS = {
    **{name: f"{name}/raw" for name in ("MNIST", "FashionMNIST", "KMNIST")},
    "CIFAR10": "cifar-10-batches-py",
    "CIFAR100": "cifar-100-python",
}
"""Where torchvision keeps each data set below its ``root``."""
KINDS = {"CIFAR10": "CIFAR-10,", "CIFAR100": "CIFAR-100,"}
"""How the names of their forms begin; the others are idx files."""

IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Files of images and of labels, as such or with ``.gz``."""

TEN = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
BATCHES: dict[str, tuple[dict[str, tuple[str, ...]], tuple[str, ...]]] = {
    "CIFAR-10, pickled": (TEN, ("labels",)),
    "CIFAR-100, pickled": ({"train": ("train",), "test": ("test",)}, ("coarse_labels", "fine_labels")),
    "CIFAR-10, binary": ({split: tuple(f"{name}.bin" for name in names) for split, names in TEN.items()}, ("labels",)),
    "CIFAR-100, binary": ({"train": ("train.bin",), "test": ("test.bin",)}, ("coarse_labels", "fine_labels")),
}
"""The files of each split and the labels of each image, in their order, by the form of the data set."""

SIDE = 32
PIXELS = 3 * SIDE * SIDE
AGAIN = "download it again"
MAGIC = {"images": 0x803, "labels": 0x801}

MAKE = np.empty(0).__reduce__()[0]
"""numpy's function that pickles of arrays name; its module differs between versions."""

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): MAKE,
    ("numpy._core.multiarray", "_reconstruct"): MAKE,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""What a pickled batch may name; everything else is refused before it is called."""


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Return the images and labels of a data set as it was downloaded.

    Args:
        name: ``CIFAR10``, ``CIFAR100``, ``MNIST``, ``FashionMNIST`` or ``KMNIST``, with the setting ``root``; or the path
            of a folder that holds such files, or of one file of images in idx format.
        settings: ``split`` is ``test`` (the default) or ``train``; ``labels=coarse`` takes the 20 classes of CIFAR-100;
            ``root`` is torchvision's folder.
        selection: which of the images. Their ids are positions in the split.

    Raises:
        HoldfastError: the files are missing, truncated or hold something else.
    """
    check_settings(settings, ["split", "labels", "root"], SOURCE)
    split, labels = settings.get("split", "test"), settings.get("labels", "fine")
    if split not in ("train", "test"):
        raise HoldfastError(f"split is train or test, got {split!r}")
    if labels not in ("fine", "coarse"):
        raise HoldfastError(f"labels is fine or coarse, got {labels!r}")
    path = _folder(name, settings)
    if path.is_file():
        if "split" in settings:
            raise HoldfastError(f"{name!r} is one file and has no split; name its folder, or leave split out")
        return _idx(path, path.with_name(path.name.replace("images-idx3", "labels-idx1")), selection, labels)
    found = form(path)
    if found is None:
        raise HoldfastError(f"{path} has no MNIST or CIFAR files ({IDX['test'][0]}, test_batch, test.bin); check root")
    if name in FOLDERS and not found.startswith(KINDS.get(name, "idx")):
        raise HoldfastError(f"{path} holds {found}, not {name}; check root")
    if found == "idx":
        images, classes = (path / file for file in IDX[split])
        return _idx(_there(images), _there(classes), selection, labels)
    if labels == "coarse" and "100" not in found:
        raise HoldfastError(f"only CIFAR-100 has coarse labels, and {path} holds {found}")
    splits, kinds = BATCHES[found]
    read = _pickled if "pickled" in found else _binary
    parts = [read(path / file, kinds) for file in splits[split]]
    pixels, marks = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    chosen = as_labels(marks[:, 0 if labels == "coarse" else -1], len(marks), True, f"labels of {path}")
    stored = torch.from_numpy(pixels.reshape(-1, 3, SIDE, SIDE))
    return load_array(f"{path}?split={split}", stored, chosen, selection)


def form(path: Path) -> str | None:
    """File format of MNIST or CIFAR at ``path``: ``idx`` or one of ``BATCHES``; None if neither.

    Example:
        >>> form(Path("photographs")) is None
        True
    """
    if path.is_file():
        return "idx" if "images-idx3" in path.name else None
    if any(_there(path / images).is_file() for images, _ in IDX.values()):
        return "idx"
    for name, (splits, _) in BATCHES.items():
        # A folder of photographs may have folders called train and test.
        marker = "meta" if name == "CIFAR-100, pickled" else ""
        if all((path / file).is_file() for file in (splits["test"][0], marker) if file):
            return name
    return None


def _folder(name: str, settings: Mapping[str, str]) -> Path:
    if name not in FOLDERS:
        path = Path(name).expanduser()
        if "root" in settings or not path.exists():
            raise UnknownName("data set or path", name, FOLDERS)
        return path
    if "root" not in settings:
        raise HoldfastError(f"{SOURCE}:{name} needs the folder of its files: {SOURCE}:{name}?root=FOLDER")
    folder = Path(settings["root"]).expanduser() / FOLDERS[name]
    if not folder.is_dir():
        raise HoldfastError(
            f"{SOURCE}:{name} is expected in {folder}, which is no folder; check root, or name the folder itself"
        )
    return folder


def _there(path: Path) -> Path:
    """Return ``path`` or, where only its compressed form exists, that."""
    packed = path.with_name(path.name + ".gz")
    return packed if packed.is_file() and not path.is_file() else path


def _idx(images: Path, labels: Path, selection: Selection, which: str) -> Images:
    if which == "coarse":
        raise HoldfastError(f"only CIFAR-100 has coarse labels, and {images} holds one label for each image")
    pixels = _unpacked(images, "images")
    classes = None
    if _there(labels).is_file():
        classes = as_labels(_unpacked(_there(labels), "labels"), len(pixels), True, f"labels of {images}")
    return load_array(str(images), torch.from_numpy(pixels), classes, selection, images)


def _unpacked(path: Path, part: str) -> np.ndarray:
    """Return the array of an idx file: big-endian magic number and sizes, then bytes."""
    axes = 3 if part == "images" else 1
    head = 4 * (1 + axes)
    opened = gzip.open if path.suffix == ".gz" else open
    kinds = (OSError, EOFError, ValueError, zlib.error)
    with explained(f"{path} is missing or damaged", AGAIN, *kinds), opened(path, "rb") as file:
        magic, *shape = np.frombuffer(file.read(head), ">u4").tolist()
        if magic != MAGIC[part] or len(shape) != axes:
            raise HoldfastError(f"{path} does not begin as an idx file of {part}; {AGAIN}")
        size = math.prod(shape)
        if size > UNPACKED:
            raise HoldfastError(f"{path} states {' x '.join(map(str, shape))} bytes, too many to hold in memory")
        values = file.read(size + 1)  # never all that a small archive may unpack to
    if len(values) != size:
        raise HoldfastError(f"{path} should hold {' x '.join(map(str, shape))} bytes and does not; download it again")
    return np.frombuffer(bytearray(values), np.uint8).reshape(shape)


class _Batch(pickle.Unpickler):
    """Reads dictionaries of arrays, lists, numbers and text; names no function but those that make arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ALLOWED[module, name]


def _pickled(path: Path, labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    with explained(f"{path} is missing, damaged or no batch of CIFAR", AGAIN):
        with path.open("rb") as file:
            batch = _Batch(file, encoding="bytes").load()
        pixels = batch[b"data"]
        marks = np.stack([np.asarray(batch[key.encode()]) for key in labels], axis=1)
        sound = pixels.dtype == np.uint8 and pixels.shape == (len(marks), PIXELS) and marks.dtype.kind in "iu"
    if not sound:
        raise HoldfastError(f"{path} must hold bytes (n, {PIXELS}) and n whole labels; download it again")
    return pixels, marks


def _binary(path: Path, labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    with explained(f"{path} is missing or cannot be read", AGAIN, OSError):
        values = np.fromfile(path, np.uint8)
    row = PIXELS + len(labels)
    if not len(values) or len(values) % row:
        raise OutOfRange(str(path), Described(f"{len(values)} bytes"), f"records of {row} bytes", fix=AGAIN)
    records = values.reshape(-1, row)
    return records[:, len(labels) :], records[:, : len(labels)]
