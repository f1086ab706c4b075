"""WebDataset shards: the same images as from files, by an index that is made once, and every way to be damaged."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import warnings
from pathlib import Path

import pytest
import torch

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.data import load, tars
from holdfast.data.reading import scan as encoded
from holdfast.data.reading import stores
from holdfast.data.reading.decode import all_bytes
from holdfast.data.reading.scan_cache import ScanCache
from tests.data.conftest import Painter
from tests.facts import refused

RGB = Domain((3, 8, 8))


def _shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def shards(paint: Painter, tmp_path: Path) -> Path:
    """Two shards of three images each, with the files they are made of."""
    for shard in range(2):
        members = {"README.txt": b"a note"}
        for row in range(3):
            members[f"{row}.png"] = paint(f"shard-00{shard}/{row}.png").read_bytes()
            members[f"{row}.cls"] = str(row % 2).encode()
        _shard(tmp_path / "tars" / f"shard-00{shard}.tar", members)
    return tmp_path / "tars"


def test_members_that_are_not_read_are_counted_by_ending(shards: Path, paint: Painter, tmp_path: Path) -> None:
    members = {"a.png": paint("a.png").read_bytes(), "b.heic": b"x", "c.left.HEIC": b"x", "notes.txt": b"x"}
    _shard(tmp_path / "mixed.tar", members)
    with pytest.warns(HoldfastWarning, match=r"\b2 images .*2 \.heic\)"):
        assert load(str(tmp_path / "mixed.tar"), RGB).ids == ("mixed/a",)


def test_members_are_the_files_they_were_made_of(shards: Path, tmp_path: Path) -> None:
    files = load(str(tmp_path / "images"), RGB)
    for reference in (f"{shards}/shard-{{000..001}}.tar", f"wds:{shards}", f"{shards}/shard-*.tar"):
        images = load(reference, RGB)
        assert images.ids == tuple(f"shard-00{shard}/{row}" for shard in range(2) for row in range(3))
        assert torch.equal(images.pixels([4, 0, 5]), files.pixels([4, 0, 5]))
        assert images.digests == files.digests
        assert torch.equal(pickle.loads(pickle.dumps(images.source)).read([4]), images.source.read([4]))
        assert images.labels is not None
        assert images.labels.tolist() == [0, 1, 0, 0, 1, 0]
    alone = load(f"{shards}/shard-001.tar", RGB)
    assert alone.ids == images.ids[3:], "a shard's ids depend on the others"


def test_samples_are_those_of_the_webdataset_package(shards: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    path = str(shards / "shard-000.tar")
    theirs = [sample for sample in webdataset.WebDataset(path, shardshuffle=False) if "png" in sample]
    images = load(path, RGB)
    assert [f"shard-000/{sample['__key__']}" for sample in theirs] == list(images.ids)
    assert isinstance(images.source, encoded.Encoded)
    fetched = [all_bytes(images.source.scan.fetch(row)) for row in range(3)]
    assert fetched == [sample["png"] for sample in theirs]


def test_an_index_is_made_once(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "files.index"
    first = load(f"wds:{shards}", RGB, scan_cache=ScanCache.at(run)).fingerprint
    made: list[str] = []
    index = tars.index

    def counted(tar: stores.StoredFile, *settings: str) -> tars.Samples:
        made.append(tar.path)
        return index(tar, *settings)

    monkeypatch.setattr(tars, "index", counted)
    monkeypatch.setattr(encoded, "all_bytes", None)
    again = load(f"wds:{shards}", RGB, scan_cache=ScanCache.at(run))
    assert again.fingerprint == first
    assert made == []
    monkeypatch.undo()
    monkeypatch.setattr(tars, "index", counted)
    os.utime(shards / "shard-001.tar", (1e9 + 5, 1e9 + 5))
    assert load(f"wds:{shards}", RGB, scan_cache=ScanCache.at(run)).fingerprint == first
    assert made == [str(shards / "shard-001.tar")]


def test_of_many_members_only_the_chosen_are_read(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "THOROUGH", 3)
    read: list[int] = []
    whole = stores.StoredFile.read

    def recorded(tar: stores.StoredFile, start: int, end: int) -> bytes:
        read.append(start)
        return whole(tar, start, end)

    monkeypatch.setattr(stores.StoredFile, "read", recorded)
    images = load(f"wds:{shards}", RGB, limit=2)
    assert len(images.fingerprint) == 16
    assert len(read) == 2
    more = load(f"wds:{shards}", RGB, limit=4)  # too many to be decoded first
    assert len(read) == 2 + 4
    assert more.pixels(range(4)).shape == (4, 3, 8, 8)


def test_labels_are_numbers_names_or_fields_of_json(paint: Painter, tmp_path: Path) -> None:
    image = paint("1.png").read_bytes()
    notes = [json.dumps({"label": name, "size": size}).encode() for name, size in (("dog", 1), ("cat", 7))]
    path = _shard(tmp_path / "a.tar", {"1.png": image, "1.json": notes[0], "2.png": image, "2.json": notes[1]})
    named, sizes = load(str(path), RGB), load(f"{path}?label=size", RGB)
    assert named.labels is not None
    assert sizes.labels is not None
    assert (named.labels.tolist(), named.classes) == ([1, 0], ("cat", "dog"))
    assert sizes.labels.tolist() == [1, 7]
    with refused(HoldfastError, "labels", "integer"):
        load(f"{path}?label=none", RGB)


@pytest.mark.parametrize("empty", [b"", b" \n"])
def test_an_empty_label_is_no_class(paint: Painter, tmp_path: Path, empty: bytes) -> None:
    image = paint("1.png").read_bytes()
    path = _shard(tmp_path / "a.tar", {"1.png": image, "1.cls": b"cat", "2.png": image, "2.cls": empty})
    with pytest.warns(HoldfastWarning, match=r"missing for 1 of 2"):
        assert load(str(path), RGB).labels is None
    null = {"1.png": image, "1.json": b'{"label": 3}', "2.png": image, "2.json": b'{"label": NaN}'}
    path = _shard(tmp_path / "b.tar", null)
    with refused(HoldfastError, "integer"):
        load(f"{path}?label=label", RGB)


def test_a_note_of_brackets_without_end_is_no_label(paint: Painter, tmp_path: Path) -> None:
    members = {"1.png": paint("1.png").read_bytes(), "1.json": b"[" * 200_000 + b"]" * 200_000}
    path = _shard(tmp_path / "a.tar", members)
    assert load(str(path), RGB).labels is None
    with refused(HoldfastError, "labels", "integer"):
        load(f"{path}?label=size", RGB)


def test_damaged_and_missing_images_are_skipped_where_they_lie(paint: Painter, tmp_path: Path) -> None:
    members = {f"{row}.png": paint(f"{row}.png").read_bytes() for row in range(18)}
    members = {**members, "5.png": members["5.png"][:60], "7.png": b"", "lone.cls": b"1"}
    path = _shard(tmp_path / "a.tar", members)
    assert len(members) == 19
    said = r"3 of 19 images .* cannot be read: a/5 \(.*\), a/7 \(zero bytes\), a/lone \(no image among"
    with pytest.warns(HoldfastWarning, match="labels of"), pytest.warns(HoldfastWarning, match=said):
        images = load(str(path), RGB, max_unreadable=0.2)
    assert len(images) == 16
    assert images.pixels(range(16)).shape == (16, 3, 8, 8)


@pytest.mark.parametrize("limit", [2, 5])
def test_damaged_members_among_very_many_are_judged_where_chosen(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(encoded, "THOROUGH", 2)
    members = {f"{row}.png": paint(f"{row}.png").read_bytes() for row in range(5)}
    path = _shard(tmp_path / "a.tar", {**members, "lone.cls": b"1"})
    for seed in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            images = load(str(path), RGB, limit=limit, seed=seed, max_unreadable=0.9)
        assert len(images.fingerprint) == 16
        assert images.pixels(range(len(images))).shape == (len(images), 3, 8, 8)
        assert "a/lone" not in images.ids


def test_names_with_dots_are_split_as_webdataset_splits_them(paint: Painter, tmp_path: Path) -> None:
    """The key ends at the first dot after the last slash, so that dots of folders belong to it."""
    image = [paint(f"{row}.png").read_bytes() for row in range(3)]
    path = _shard(
        tmp_path / "a.1.tar",
        {"a.b/c.1.png": image[0], "a.b/c.1.txt": b"", "a.b/d.2.png": image[1], "photo.v2.PNG": image[2]},
    )
    images = load(str(path), RGB)
    assert images.ids == ("a.1/a.b/c", "a.1/a.b/d", "a.1/photo")
    assert torch.equal(images.pixels([0, 1, 2]), load(str(tmp_path / "images"), RGB).pixels([0, 1, 2]))


NAMES = ("a.b/c.1.png", "a.b/c.2.png", "photo.v1.png", "photo.v2.png", "2024.05.01_12.30.png", ".hidden/x.png")


def test_images_that_share_a_key_are_refused_or_split_at_the_last_dot(paint: Painter, tmp_path: Path) -> None:
    members = {name: paint(f"{row}.png").read_bytes() for row, name in enumerate(NAMES)}
    path = _shard(tmp_path / "a.tar", {**members, "photo.v2.cls": b"1", "notes.v1.txt": b"x"})
    with pytest.raises(HoldfastError, match=r"'a\.b/c'.*a\.b/c\.1\.png, a\.b/c\.2\.png.*\?dot=last"):
        load(str(path), RGB)
    with pytest.warns(HoldfastWarning, match="labels"):
        images = load(f"{path}?dot=last", RGB)
    assert images.ids == tuple(f"a/{name.removesuffix('.png')}" for name in NAMES)
    assert torch.equal(images.pixels(range(6)), load(str(tmp_path / "images"), RGB).pixels(range(6)))
    with pytest.raises(HoldfastError, match="'all'"):
        load(f"{path}?dot=all", RGB)


def test_the_two_ways_to_split_names_are_remembered_apart(paint: Painter, tmp_path: Path) -> None:
    path = _shard(tmp_path / "a.tar", {"photo.v1.png": paint("1.png").read_bytes()})
    run = tmp_path / "files.index"
    first = load(str(path), RGB, scan_cache=ScanCache.at(run)).ids
    last = load(f"{path}?dot=last", RGB, scan_cache=ScanCache.at(run)).ids
    assert (first, last) == (("a/photo",), ("a/photo.v1",))


def test_images_without_the_ending_that_is_asked_are_counted(paint: Painter, tmp_path: Path) -> None:
    image = paint("1.png").read_bytes()
    path = _shard(tmp_path / "a.tar", {"a.v1.png": image, "a.v2.png": image, "b.v2.png": image})
    with pytest.raises(HoldfastError, match=r"1 of 2 .*a/b"):
        load(f"{path}?image=v1.png", RGB)


def test_what_is_no_set_of_samples_is_one_sentence(shards: Path, paint: Painter, tmp_path: Path) -> None:
    image = paint("1.png", size=(40, 40)).read_bytes()
    whole = (shards / "shard-000.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:2048])
    (tmp_path / "middle.tar").write_bytes(whole[:1024] + b"\7" * 512 + whole[1536:])
    (tmp_path / "text.tar").write_text("no tar at all " * 100)
    _shard(tmp_path / "both.tar", {"1.left.png": image, "1.right.png": image})
    _shard(tmp_path / "none.tar", {"1.txt": b"nothing"})
    with tarfile.open(tmp_path / "twice.tar", "w") as file:
        for _ in range(2):
            file.add(tmp_path / "images" / "1.png", "1.png")
    for name, said in {
        "cut": r"cut.tar .*truncated",
        "middle": r"middle.tar .*truncated.* \(neither a member nor the end at byte 1024\)",
        "text": "text.tar .*no tar",
        "both": r"'1' of .* 2 images \(1.left.png, 1.right.png\).*\?dot=last.*\?image=left.png",
        "none": "none.tar holds no images; expected members ending in .jpg",
        "twice": "twice.tar holds '1.png' twice",
        "shard-{1..2}": "no file .*shard-1.tar'; check the path",
        "shard-{12}": r"braces hold \{000..099\} or \{a,b\}, got \{12\}",
        "nowhere*": "no file fits .*nowhere",
    }.items():
        with pytest.raises(HoldfastError, match=said):
            load(f"wds:{tmp_path}/{name}.tar", RGB)
    assert load(f"{tmp_path}/both.tar?image=right.png", RGB).ids == ("both/1",)
    with refused(HoldfastError, "shards", "expected"):
        load(f"wds:{tmp_path}/images", RGB)
