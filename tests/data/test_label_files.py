"""A flat folder of validation images gets the labels that its folders of classes would give, from each published file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, OutOfRange, Unreadable
from holdfast.data import load
from tests.data.conftest import Painter

RGB = Domain((3, 8, 8))
SYNSETS = ("n02119789", "n01440764", "n02100735", "n02012849")
"""In the devkit's order, from 1; sorted order is another one."""
NUMBERS = (3, 1, 2, 2, 4, 1)
"""Class of each of six validation images, in the devkit's numbers."""


def name(line: int) -> str:
    return f"ILSVRC2012_val_{line:08d}"


@pytest.fixture
def flat(paint: Painter, tmp_path: Path) -> Path:
    for line in range(1, len(NUMBERS) + 1):
        paint(f"val/{name(line)}.JPEG")
    return tmp_path / "images" / "val"


def kaggle(folder: Path) -> Path:
    boxes = (
        f"{name(line)},{SYNSETS[k - 1]} 85 1 499 272 {SYNSETS[k - 1]} 1 2 3 4 \n" for line, k in enumerate(NUMBERS, 1)
    )
    path = folder / "LOC_val_solution.csv"
    path.write_text("ImageId,PredictionString\n" + "".join(sorted(boxes, reverse=True)))
    return path


def ground_truth(folder: Path) -> Path:
    path = folder / "ILSVRC2012_validation_ground_truth.txt"
    path.write_text("".join(f"{k}\n" for k in NUMBERS))
    return path


def meta(folder: Path) -> None:
    """Write the devkit's table, with one class that has subclasses, as the published one has many."""
    fields = ("ILSVRC2012_ID", "WNID", "words", "num_children")
    rows = [*((k, synset, "words", 0) for k, synset in enumerate(SYNSETS, 1)), (1001, "n00001740", "entity", 4)]
    table = np.zeros((len(rows), 1), dtype=[(field, "O") for field in fields])
    for place, row in enumerate(rows):
        table[place, 0] = tuple(float(value) if isinstance(value, int) else value for value in row)
    savemat(folder / "meta.mat", {"synsets": table})


def clsloc(folder: Path) -> None:
    (folder / "map_clsloc.txt").write_text("".join(f"{s} {k} kit_fox\n" for k, s in enumerate(SYNSETS, 1)))


@pytest.mark.parametrize("source", ["kaggle", "meta", "clsloc"])
def test_labels_are_those_of_folders_of_classes(source: str, flat: Path, paint: Painter, tmp_path: Path) -> None:
    for line, number in enumerate(NUMBERS, 1):
        paint(f"by_class/{SYNSETS[number - 1]}/{name(line)}.JPEG")
    expected = load(f"{tmp_path / 'images' / 'by_class'}?labels=folders", RGB)
    assert expected.labels is not None
    of = {image.partition("/")[2]: int(label) for image, label in zip(expected.ids, expected.labels, strict=True)}
    if source == "kaggle":
        path = kaggle(tmp_path)
    else:
        path = ground_truth(tmp_path)
        (meta if source == "meta" else clsloc)(tmp_path)
    images = load(f"{flat}?labels={path}", RGB)
    assert images.classes == expected.classes == tuple(sorted(SYNSETS))
    assert images.labels is not None
    assert [int(label) for label in images.labels] == [of[image] for image in images.ids]
    assert len(set(of.values())) == len(SYNSETS)
    (flat / "LOC_synset_mapping.txt").write_text("n01440764 tench, Tinca tinca\nn02012849 crane\n")
    assert load(f"{flat}?labels={path}", RGB).classes[:2] == ("tench", "crane")
    few = load(f"{flat}?labels={path}", RGB, limit=2)
    assert few.labels is not None
    assert [int(label) for label in few.labels] == [of[image] for image in few.ids]
    (flat / f"{name(3)}.JPEG").unlink()
    fewer = load(f"{flat}?labels={path}", RGB)
    assert fewer.classes[2:] == images.classes[2:], "numbers follow from the file, not from the images that are there"


def test_any_table_of_images_and_labels(paint: Painter, tmp_path: Path) -> None:
    for image in ("a/1.png", "b/2.png", "3.png"):
        paint(image)
    folder, table = tmp_path / "images", tmp_path / "labels.csv"
    table.write_text('a/1.png,tabby cat\n2,"dog, big"\n3.png,tabby cat\nother,bird\n')
    images = load(f"{folder}?labels={table}", RGB)
    assert images.classes == ("bird", "dog, big", "tabby cat")
    assert dict(zip(images.ids, np.asarray(images.labels).tolist(), strict=True)) == {
        "a/1.png": 2,
        "b/2.png": 1,
        "3.png": 2,
    }
    table.write_text("image,label\na/1.png,7\nb/2.png,0\n3,7\n")
    numbered = load(f"{folder}?labels={table}", RGB)
    assert (numbered.classes, np.asarray(numbered.labels).tolist()) == ((), [7, 7, 0])


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("3,2\n1\n", OutOfRange, ["columns"]),
        (f"{name(1)},n02119789\n", HoldfastError, ["5 of 6", name(2)]),
        ("".join(f"{name(k)},x\n" for k in range(1, 7)) + f"{name(1)},y\n", HoldfastError, ["two labels", name(1)]),
        ("1\n2\n", OutOfRange, ["1 to 2"]),
        ("1\n2\n3\n4\n9\n1\n", OutOfRange, ["line 5", "9"]),
        (b"\xff\xfe\x00", Unreadable, ["labels"]),
    ],
)
def test_files_that_do_not_fit(
    content: str | bytes, kind: type[HoldfastError], said: list[str], flat: Path, tmp_path: Path
) -> None:
    clsloc(tmp_path)
    path = tmp_path / "labels.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(kind) as caught:
        load(f"{flat}?labels={path}", RGB)
    assert all(word in str(caught.value) for word in said), str(caught.value)


def test_numbers_without_their_synsets_and_other_images_are_refused(flat: Path, paint: Painter, tmp_path: Path) -> None:
    path = ground_truth(tmp_path)
    with pytest.raises(HoldfastError, match=r"meta\.mat"):
        load(f"{flat}?labels={path}", RGB)
    (tmp_path / "meta.mat").write_bytes(b"no table")
    with pytest.raises(Unreadable, match=r"meta\.mat"):
        load(f"{flat}?labels={path}", RGB)
    meta(tmp_path)
    paint("val/photo.JPEG")
    with pytest.raises(HoldfastError, match=r"photo\.JPEG"):
        load(f"{flat}?labels={path}", RGB)
