"""Labels of images in files beside them: a CSV, Kaggle's ``LOC_val_solution.csv``, or the ground truth of ImageNet's devkit.

The devkit numbers classes in an order of its own, from 1. ``meta.mat`` or ``map_clsloc.txt`` beside the ground truth says
which synset a number is; without either, the numbers are no labels, because they differ from those of ``labels=folders``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.errors import Described, HoldfastError, OutOfRange, Unreadable, readable

SYNSET = re.compile(r"n\d{8}")
VALIDATION = re.compile(r"ILSVRC\d{4}_val_(\d{8})")
"""Names of ImageNet's validation images, which end in the line of the ground truth."""
META, MAP = "meta.mat", "map_clsloc.txt"
"""Files of devkits that map numbers of classes to synsets."""
LARGEST = 8 << 20
"""Bytes of a ``meta.mat``; the published one has some 100,000."""
FORMS = "a CSV with a line image,label for each image, or the devkit's ground truth"


def labels_in(path: Path, images: Sequence[str]) -> tuple[Int[Tensor, "n"], tuple[str, ...]]:
    """Labels of images as a file states them, and the names of the classes.

    Classes are numbered in sorted order of all names in the file, also of those that no image has. Labels that are all
    whole numbers are kept, without names. A first line of no image is a header. An image may be called by its path or its
    name, with or without the ending. Of text that begins with a synset, as in Kaggle's file, the synset alone is the label.

    Raises:
        HoldfastError: The file cannot be read, states two labels of an image, or lacks an image.
    """
    with readable(f"labels {path}", f"name {FORMS}, or use labels=folders", OSError, ValueError):
        lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    if lines and all(line.strip().isdecimal() for line in lines):
        found, stated = _of_ground_truth(path, lines, images)
    else:
        found, stated = _of_table(path, lines, images)
    if all(label.isdecimal() for label in found):
        return torch.tensor([int(label) for label in found]), ()
    return numbered(found, stated)


def numbered(names: Sequence[str], known: Iterable[str] = ()) -> tuple[Int[Tensor, "n"], tuple[str, ...]]:
    """Return the number of each name and the names in sorted order, with those that are ``known`` beside them."""
    classes = sorted({*names, *known})
    numbers = {name: number for number, name in enumerate(classes)}
    return torch.tensor([numbers[name] for name in names]), tuple(classes)


def _of_table(path: Path, lines: Sequence[str], images: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the label of each image, and all labels, by a CSV of images and labels."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    if wrong := next((row for row in rows if len(row) != 2 or not all(row)), None):
        raise OutOfRange(f"columns of {path}", Described(f"{len(wrong)}: {wrong}"), f"two, in {FORMS}")
    stated = dict[str, str]()
    for image, text in rows:
        first = text.split()[0]
        label = first if SYNSET.fullmatch(first) else text
        if stated.setdefault(image, label) != label:
            raise HoldfastError(f"{path} has two labels of {image!r}: {stated[image]!r} and {label!r}; keep one")
    found = [next((stated[name] for name in _names(image) if name in stated), None) for image in images]
    if missing := [image for image, label in zip(images, found, strict=True) if label is None]:
        raise HoldfastError(
            f"{path} has no label of {len(missing)} of {len(images)} images, {missing[0]!r} first; add them"
        )
    known = {name for image in images for name in _names(image)}
    header = rows[0][0] if rows and rows[0][0] not in known else None
    return [label for label in found if label], {label for image, label in stated.items() if image != header}


def _names(image: str) -> tuple[str, ...]:
    """Return what a file may call an image.

    Example:
        >>> _names("val/a.JPEG")
        ('val/a.JPEG', 'val/a', 'a.JPEG', 'a')
    """
    name = image.rpartition("/")[2]
    return (*(image, image.rpartition(".")[0]), *(name, name.rpartition(".")[0]))


def _of_ground_truth(path: Path, lines: Sequence[str], images: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the synset of each validation image, and all synsets, by the devkit's numbers."""
    synsets = _synsets_of_devkit(path)
    places = [VALIDATION.fullmatch(_names(image)[3]) for image in images]
    if None in places:
        wrong = images[places.index(None)]
        raise HoldfastError(f"{path} has a line per validation image of ImageNet, and {wrong!r} is none; use a CSV")
    found = list[str]()
    for image, place in zip(images, places, strict=True):
        line = int(place[1]) if place else 0
        if not 1 <= line <= len(lines):
            raise OutOfRange(f"number of {image!r}", line, f"1 to {len(lines)}, the lines of {path.name}")
        number = int(lines[line - 1])
        if number not in synsets:
            raise OutOfRange(f"class in line {line} of {path.name}", number, f"one of {len(synsets)} of the devkit")
        found.append(synsets[number])
    return found, set(synsets.values())


def _synsets_of_devkit(path: Path) -> Mapping[int, str]:
    """Return the synset of each number of a class, by a file beside the ground truth ``path``."""
    meta, table = path.with_name(META), path.with_name(MAP)
    try:
        if table.is_file():
            rows = [line.split() for line in table.read_text("utf-8").splitlines() if line.strip()]
            synsets = {int(row[1]): row[0] for row in rows}
        elif meta.is_file():
            synsets = _synsets_of_meta(meta)
        else:
            raise HoldfastError(
                f"{path} numbers classes in the devkit's order, not in that of synsets. Put the devkit's {META} or {MAP} "
                "beside it, or name LOC_val_solution.csv"
            )
    except HoldfastError:
        raise
    except Exception as error:  # scipy raises anything on a damaged file
        raise Unreadable(str(table if table.is_file() else meta), error, fix="copy it again from the devkit") from error
    if not synsets or not all(SYNSET.fullmatch(name) for name in synsets.values()):
        raise Unreadable(str(table if table.is_file() else meta), "it maps no numbers to synsets", fix="copy it again")
    return synsets


def _synsets_of_meta(meta: Path) -> dict[int, str]:
    """Return the synset of each class without subclasses, which alone have images."""
    from scipy.io import loadmat

    if meta.stat().st_size > LARGEST:
        raise OutOfRange(f"size of {meta}", meta.stat().st_size, f"at most {LARGEST:,} bytes")
    rows = loadmat(str(meta), squeeze_me=True)["synsets"]
    return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows if int(row["num_children"]) == 0}
