"""Image files in a folder of any nesting."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import Int
from torch import Tensor

from holdfast.core.errors import HoldfastError, OutOfRange, explained, readable
from holdfast.core.images import Images
from holdfast.data.by_name import Selection, check_settings
from holdfast.data.reading.label_files import SYNSET, labels_in, numbered
from holdfast.data.reading.scan import load_encoded
from holdfast.data.reading.stores import SUFFIXES, ending, report

SOURCE = "folder"
SETTINGS = ("labels", "max_pixels")
SYNSET_FILES = ("LOC_synset_mapping.txt", "imagenet_class_index.json", "words.txt")
"""Files that name synsets: of Kaggle's ImageNet, of Keras and of WordNet, as Tiny ImageNet has it."""
ABOVE = 4
"""Folders above the images in which such a file is looked for: Kaggle's images lie in ``ILSVRC/Data/CLS-LOC/train``."""


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Image files below a folder, with sorted relative paths as ids.

    With ``labels=folders``, the first folder of each path is its class, numbered in sorted order; synsets (``n01440764``)
    are called by the words of a file of ``SYNSET_FILES`` beside or above the folder. ``labels=FILE`` names a file of
    labels instead. Images larger than ``max_pixels`` count as damaged.
    """
    check_settings(settings, SETTINGS, SOURCE)
    root = Path(name).expanduser()
    if not root.is_dir():
        raise HoldfastError(f"no folder {name!r}; check the path")
    others = Counter[str]()
    paths = find(root, others)
    report(f"folder {name!r}", others, len(paths))
    labels, names = labelled(paths, settings)
    names = named_synsets(root, names)
    ids = [_text(path) for path in paths]
    return load_encoded(name, Files(str(root), paths), ids, labels, selection, settings, names)


def labelled(paths: Sequence[str], settings: Mapping[str, str]) -> tuple[Int[Tensor, "n"] | None, tuple[str, ...]]:
    """Labels and names of classes, if the settings ask for labels."""
    if "labels" not in settings:
        return None, ()
    if settings["labels"] == "folders":
        return classes(paths)
    file = Path(settings["labels"]).expanduser()
    if not file.is_file():
        raise OutOfRange("labels of a folder", settings["labels"], "'folders' or a file of labels")
    return labels_in(file, paths)


class Files:
    """Source of image files: only relative paths are held in memory."""

    def __init__(self, root: str, paths: Sequence[str]) -> None:
        self.root, self.paths = root, paths

    def __call__(self, row: int) -> Path:
        return Path(self.root, self.paths[row])


def find(root: Path, others: Counter[str] | None = None) -> list[str]:
    """Sorted relative paths of the image files below a folder, without hidden names.

    Links are followed, and each folder is entered once, so that circles of links do no harm.

    Args:
        others: Counter of the endings of all other files; None counts nothing.
    """
    paths: list[str] = []
    folders, links, entered = [""], list[str](), set[tuple[int, int]]()
    while folders or links:
        # Real folders before links, so that no path runs through a link that it can do without.
        folder = folders.pop() if folders else links.pop()
        status = os.stat(root / folder)
        if (status.st_dev, status.st_ino) in entered:
            continue
        entered.add((status.st_dev, status.st_ino))
        for entry in sorted(_entries(root / folder), key=lambda entry: entry.name):
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith("."):
                continue
            # entry.is_dir() raises on a link to itself; the file system is asked once for each link alone.
            if os.path.isdir(entry) if entry.is_symlink() else entry.is_dir():
                (links if entry.is_symlink() else folders).append(path)
            elif entry.name.lower().endswith(SUFFIXES):
                paths.append(path)
            elif others is not None:
                others[ending(entry.name)] += 1
    return sorted(paths)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with (
        explained(f"cannot list folder {str(folder)!r}", "check its permissions", OSError),
        os.scandir(folder) as entries,
    ):
        return list(entries)


def classes(paths: Sequence[str]) -> tuple[Int[Tensor, "n"], tuple[str, ...]]:
    """Class of each path by its first folder, and the names of the classes.

    Example:
        >>> classes(["cat/1.png", "dog/a/1.png", "cat/2.png"])
        (tensor([0, 1, 0]), ('cat', 'dog'))
    """
    names = [path.partition("/")[0] if "/" in path else None for path in paths]
    if None in names:
        loose = paths[names.index(None)]
        raise HoldfastError(f"labels=folders needs every image in the folder of its class, but {loose!r} is in none")
    labels, distinct = numbered([name for name in names if name])
    return labels, tuple(map(_text, distinct))


def named_synsets(root: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of classes with synsets in words, if all are synsets and a file in or above ``root`` has the words.

    A class has the first of its words; all of them, or the synset behind them, where classes of the file share it.

    Raises:
        HoldfastError: The file cannot be read.
    """
    if not names or not all(map(SYNSET.fullmatch, names)):
        return names
    folders = (root.resolve(), *root.resolve().parents[:ABOVE])
    for path in (folder / file for folder in folders for file in SYNSET_FILES):
        if path.is_file() and (words := _synset_words(path)).keys() & set(names):
            return tuple(words.get(name, name) for name in names)
    return names


def _synset_words(path: Path) -> dict[str, str]:
    """Return a distinct name for each synset of a file."""
    with readable(f"names of classes {path}", "repair or remove it", OSError, ValueError, AttributeError, TypeError):
        content = path.read_text("utf-8")
        rows = (
            [(synset, words.replace("_", " ")) for synset, words in json.loads(content).values()]
            if path.suffix == ".json"
            else [(line[:9], line[9:].strip()) for line in content.splitlines() if line[9:].strip()]
        )
    first, whole = (Counter(words) for words in ([w.partition(",")[0] for _, w in rows], [w for _, w in rows]))
    named = dict[str, str]()
    for synset, words in rows:
        short = words.partition(",")[0]
        named[synset] = short if first[short] == 1 else words if whole[words] == 1 else f"{words} ({synset})"
    return named


def _text(path: str) -> str:
    """Return ``path`` as text that can be stored: bytes that are not UTF-8 are spelled out."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")
