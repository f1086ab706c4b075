"""Folders named by ImageNet's synsets: sorted labels, and names from the files that come with the data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.data import load
from tests.data.conftest import Painter

RGB = Domain((3, 8, 8))
WORDS = {
    "n02012849": "crane",
    "n01440764": "tench, Tinca tinca",
    "n03710637": "maillot",
    "n03710721": "maillot, tank suit",
    "n03126707": "crane",
}
NAMES = ("tench", "crane (n02012849)", "crane (n03126707)", "maillot", "maillot, tank suit")
FILES = {
    "LOC_synset_mapping.txt": "".join(f"{synset} {words}\n" for synset, words in WORDS.items()),
    "words.txt": "".join(f"{synset}\t{words}\r\n" for synset, words in WORDS.items()),
    "imagenet_class_index.json": json.dumps(
        {str(k): [s, w.replace(" ", "_")] for k, (s, w) in enumerate(WORDS.items())}
    ),
}


@pytest.fixture
def train(paint: Painter, tmp_path: Path) -> Path:
    for synset in WORDS:
        paint(f"Data/CLS-LOC/train/{synset}/{synset}_1.JPEG")
    return tmp_path / "images/Data/CLS-LOC/train"


@pytest.mark.parametrize("file", FILES)
def test_synsets_are_numbered_in_order_and_named_by_the_file(file: str, train: Path) -> None:
    bare = load(f"{train}?labels=folders", RGB)
    assert bare.classes == tuple(sorted(WORDS))
    for place in (train.parents[2], train):
        (place / file).write_text(FILES[file])
        images = load(f"{train}?labels=folders", RGB)
        assert images.classes == NAMES
        assert images.labels is not None
        assert [sorted(WORDS)[label] for label in images.labels] == [name.partition("/")[0] for name in images.ids]
        assert images.ids == bare.ids
        (place / file).unlink()


def test_other_folders_and_other_files_keep_their_names(paint: Painter, train: Path) -> None:
    (train / "words.txt").write_text("a list\nof words\n")
    assert load(f"{train}?labels=folders", RGB).classes == tuple(sorted(WORDS))
    (train / "words.txt").write_text("n01440764\ttench\n")
    assert load(f"{train}?labels=folders", RGB).classes == ("tench", *sorted(WORDS)[1:])
    paint("Data/CLS-LOC/train/background/1.png")
    assert "n01440764" in load(f"{train}?labels=folders", RGB).classes


@pytest.mark.parametrize("content", ["{", "[1]", '{"0": "n01440764"}'])
def test_a_damaged_file_of_names_is_named(content: str, train: Path) -> None:
    (train.parent / "imagenet_class_index.json").write_text(content)
    with pytest.raises(HoldfastError, match="imagenet_class_index"):
        load(f"{train}?labels=folders", RGB)
