"""Folders of image files: which are found, which are skipped, what is held in memory."""

from __future__ import annotations

import os
import pickle
import shutil
import tracemalloc
import warnings
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from PIL import Image, features
from torch import Tensor

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.geometry import Geometry
from holdfast.data import load
from holdfast.data.reading import scan as encoded
from holdfast.data.reading.decode import decode
from holdfast.data.reading.scan_cache import ScanCache
from tests.data.conftest import Painter
from tests.facts import says

RGB = Domain((3, 8, 8))


def test_finds_common_formats_at_any_depth_in_sorted_order(paint: Painter, tmp_path: Path) -> None:
    names = ["b/c/1.JPG", "a.png", "b/2.webp", "b/3.bmp", "b/4.TIF", "5.gif", "6.ppm", "7.jpeg", "8.tiff"]
    for name in names:
        paint(name)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    paint(".hidden.png")
    paint(".cache/thumbnail.png")
    images = load(str(tmp_path / "images"), RGB)
    assert list(images.ids) == sorted(names)
    assert images.labels is None
    assert images.pixels(range(len(names))).shape == (9, 3, 8, 8)
    assert images.source.read([0]).dtype == torch.uint8


MORE = {".jfif": "JPEG", ".jpe": "JPEG", ".avif": "AVIF", ".jp2": "JPEG2000", ".j2k": "JPEG2000", ".pgm": "PPM"}


@pytest.mark.parametrize("suffix", MORE)
def test_other_endings_of_formats_that_pillow_decodes_are_read(suffix: str, tmp_path: Path) -> None:
    Image.init()
    if MORE[suffix] not in Image.SAVE or not features.check(
        {"AVIF": "avif", "JPEG2000": "jpg_2000"}.get(MORE[suffix], "jpg")
    ):
        pytest.skip(f"the installed Pillow has no {MORE[suffix]}")
    picture = Image.linear_gradient("L").resize((16, 16))
    picture.save(tmp_path / f"x{suffix}", MORE[suffix])
    picture.save(tmp_path / "x.png")
    read = load(str(tmp_path), Domain((1, 16, 16))).pixels([0, 1])
    assert torch.allclose(read[0], read[1], atol=0.08)


def test_images_that_are_not_read_are_counted_by_ending(paint: Painter, tmp_path: Path) -> None:
    paint("a.jpg")
    root = tmp_path / "images"
    for name in ("b.heic", "c/d.HEIC", "e.jxl", "notes.txt", "labels.csv"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"whatever")
    with pytest.warns(HoldfastWarning, match=r"\b3 images .*2 \.heic, 1 \.jxl\)") as said:
        assert load(str(root), RGB).ids == ("a.jpg",)
    assert len([one for one in said if ".heic" in str(one.message)]) == 1
    (root / "a.jpg").unlink()
    with pytest.raises(HoldfastError, match=r"2 \.heic, 1 \.jxl"):
        load(str(root), RGB)


def test_files_beside_the_images_are_no_images(paint: Painter, tmp_path: Path) -> None:
    paint("a.jpg")
    (tmp_path / "images" / "notes.txt").write_text("no image")
    with warnings.catch_warnings():
        warnings.simplefilter("error", HoldfastWarning)
        load(str(tmp_path / "images"), RGB)


def test_rows_are_read_in_the_order_asked_for(paint: Painter, tmp_path: Path) -> None:
    for name in "abcdef":
        paint(f"{name}.png")
    images = load(str(tmp_path / "images"), RGB)
    alone = [images.pixels([row])[0] for row in (4, 1, 3)]
    assert not torch.equal(alone[0], alone[1])
    assert torch.equal(images.pixels([4, 1, 3]), torch.stack(alone))


def test_links_are_followed_once_and_circles_do_no_harm(paint: Painter, tmp_path: Path) -> None:
    paint("real/1.png")
    paint("2.png")
    root = tmp_path / "images"
    (root / "a_alias").symlink_to(root / "real")
    (root / "real" / "circle").symlink_to(root)
    (root / "itself").symlink_to(root / "itself")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(root / "2.png", elsewhere / "3.png")
    (root / "linked").symlink_to(elsewhere)
    assert load(str(root), RGB).ids == ("2.png", "linked/3.png", "real/1.png")


def test_first_folder_is_the_class_when_labels_are_asked_for(paint: Painter, tmp_path: Path) -> None:
    for name in ["dog/x/1.png", "cat/1.png", "eel/1.png", "cat/2.png"]:
        paint(name)
    reference = f"folder:{tmp_path / 'images'}?labels=folders"
    labels = load(reference, RGB).labels
    assert labels is not None
    assert labels.tolist() == [0, 0, 1, 2]
    few = load(reference, RGB, limit=2, seed=1)
    assert few.labels is not None
    assert [["cat", "dog", "eel"][label] for label in few.labels] == [name.split("/")[0] for name in few.ids]
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"")
    with pytest.warns(HoldfastWarning, match="1 of 4"):
        rest = load(reference, RGB, max_unreadable=0.25).labels
    assert rest is not None
    assert rest.tolist() == [0, 1, 2]
    paint("loose.png")
    with pytest.raises(HoldfastError, match=r"'loose\.png' is in none"):
        load(reference, RGB)


def _damage(root: Path, paint: Painter) -> None:
    whole = paint("whole.jpg", size=(200, 200)).read_bytes()
    (root / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    whole = paint("whole.png", size=(200, 200)).read_bytes()
    (root / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "empty.png").write_bytes(b"")
    (root / "text.png").write_text("this is not an image")
    (root / "nowhere.png").symlink_to(root / "missing.png")
    os.mkfifo(root / "pipe.png")


def test_damaged_files_are_listed_and_skipped(paint: Painter, tmp_path: Path) -> None:
    root = tmp_path / "images"
    for row in range(20):
        paint(f"good/{row}.png")
    _damage(root, paint)
    with pytest.warns(HoldfastWarning, match="6 of 28 images of .* cannot be read: .*and 1 more; they are skipped"):
        images = load(str(root), RGB, max_unreadable=0.25)
    source = images.source
    assert isinstance(source, encoded.Encoded)
    assert source.skipped["empty.png"] == "zero bytes"
    assert says(source.skipped["text.png"], "unknown", "format")
    assert "truncated" in source.skipped["cut.jpg"]
    assert set(source.skipped) == {"cut.jpg", "cut.png", "empty.png", "text.png", "nowhere.png", "pipe.png"}
    assert len(images) == 22
    assert not set(source.skipped) & set(images.ids)
    images.pixels(range(len(images)))


def test_too_many_damaged_files_are_one_sentence(paint: Painter, tmp_path: Path) -> None:
    paint("good.png")
    (tmp_path / "images" / "empty.png").write_bytes(b"")
    with pytest.raises(HoldfastError, match=r"1 of 2 images of .* cannot be read: empty.png \(zero bytes\); repair or"):
        load(str(tmp_path / "images"), RGB)
    (tmp_path / "images" / "good.png").unlink()
    with pytest.raises(HoldfastError, match="1 of 1 images"):
        load(str(tmp_path / "images"), RGB, max_unreadable=1.0)


def test_of_many_files_only_headers_are_checked_and_damage_shows_on_reading(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "THOROUGH", 1)
    _damage(tmp_path / "images", paint)
    with pytest.warns(HoldfastWarning, match="4 of 8"):
        images = load(str(tmp_path / "images"), RGB, max_unreadable=0.5)
    assert images.ids == ("cut.jpg", "cut.png", "whole.jpg", "whole.png")
    with pytest.raises(HoldfastError, match=r"image 'cut\.jpg' cannot be decoded \(.*\); remove it"):
        images.pixels([2, 0])


def test_a_file_that_disappears_is_one_sentence(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "THOROUGH", 0)  # so that loading reads no more than headers
    paths = [paint("a.png"), paint("b.png")]
    images = load(str(tmp_path / "images"), RGB, limit=1)
    for path in paths:
        path.unlink()
    with pytest.raises(HoldfastError, match=r"image '.\.png' cannot be decoded"):
        images.pixels([0])
    with pytest.raises(HoldfastError, match=r"image '.\.png' is gone"):
        _ = images.fingerprint


def test_a_single_image_is_enough(paint: Painter, tmp_path: Path) -> None:
    paint("one.png")
    assert len(load(str(tmp_path / "images"), RGB)) == 1


def test_limit_depends_on_seed_and_ids(paint: Painter, tmp_path: Path) -> None:
    for row in range(30):
        paint(f"{row}.png")
    root = tmp_path / "images"
    ten = load(str(root), RGB, limit=10)
    assert len(ten) == 10
    assert list(ten.ids) == sorted(ten.ids)
    assert set(load(str(root), RGB, limit=5).ids) < set(ten.ids)
    assert set(load(str(root), RGB, limit=10, seed=1).ids) != set(ten.ids)
    others = sorted({f"{row}.png" for row in range(30)} - set(ten.ids))
    for name in others[:5]:
        (root / name).unlink()
    assert load(str(root), RGB, limit=10).fingerprint == ten.fingerprint


@pytest.mark.parametrize("thorough", [20_000, 10])
def test_damaged_files_are_judged_over_the_whole_folder_whatever_the_limit(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: int
) -> None:
    monkeypatch.setattr(encoded, "THOROUGH", thorough)
    for row in range(40):
        paint(f"{row}.png")
    root = tmp_path / "images"
    first = load(str(root), RGB, limit=1).ids[0]
    (root / first).write_bytes(b"")
    for limit in (1, 5, None):
        with pytest.warns(HoldfastWarning, match=rf"1 of 40 images of .* cannot be read: {first}"):
            images = load(str(root), RGB, limit=limit)
        assert list(images.skipped) == [first]
        assert len(images) == (limit or 39)
    for row in range(20):
        (root / f"{row}.png").write_bytes(b"")
    for limit in (1, 5, None):
        with pytest.raises(HoldfastError, match=r"2[01] of 40 images of .* cannot be read"):
            load(str(root), RGB, limit=limit)


def test_of_many_files_the_few_chosen_are_decoded(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "THOROUGH", 3)
    for row in range(40):
        paint(f"{row}.png")
    root = tmp_path / "images"
    first = load(str(root), RGB, limit=1).ids[0]
    (root / first).write_bytes((root / first).read_bytes()[:-40])
    with pytest.warns(HoldfastWarning, match=rf"1 of 40 images of .* cannot be read: {first} \(.*truncated"):
        images = load(str(root), RGB, limit=3)
    images.pixels(range(len(images)))


def test_larger_images_than_allowed_are_skipped_undecoded_and_the_limit_is_a_setting(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Image.MAX_IMAGE_PIXELS
    for row in range(20):
        paint(f"{row}.png")
    root = tmp_path / "images"
    # A line more than 64 million pixels, of which nothing but the header is there.
    header = Image.new("1", (8000, 1))
    header.save(root / "large.png")
    content = bytearray((root / "large.png").read_bytes())
    content[20:24] = (8001).to_bytes(4, "big")
    content[29:33] = crc32(bytes(content[12:29])).to_bytes(4, "big")
    (root / "large.png").write_bytes(content)
    with pytest.warns(
        HoldfastWarning, match=r"Image size \(64008000 pixels\) exceeds limit of 64000000 pixels, which \?max_"
    ):
        assert len(load(str(root), RGB)) == 20
    (root / "large.png").unlink()
    monkeypatch.setattr(encoded, "MAX_PIXELS", 119)
    with pytest.raises(HoldfastError, match=r"20 of 20 images .* exceeds limit"):
        load(str(root), RGB)
    assert len(load(f"{root}?max_pixels=120", RGB)) == 20
    with pytest.raises(HoldfastError, match="max_pixels: expected int, got 'many'"):
        load(f"{root}?max_pixels=many", RGB)
    assert before == Image.MAX_IMAGE_PIXELS


def test_fingerprint_follows_the_files_and_not_the_encoder(paint: Painter, tmp_path: Path) -> None:
    path = paint("1.png")
    root = str(tmp_path / "images")
    before = load(root, RGB).fingerprint
    assert load(root, Domain((1, 4, 4)), Geometry(6, (4, 4), "bicubic")).fingerprint == before
    Image.new("RGB", (12, 10), "red").save(path)
    assert load(root, RGB).fingerprint != before


@pytest.mark.slow
def test_five_thousand_files_hold_no_pixels(paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = paint("0000.png", size=(64, 64))
    for row in range(1, 5000):
        os.link(first, first.with_name(f"{row:04}.png"))
    decoded: list[object] = []

    def counted(*args: Any) -> Tensor:
        decoded.append(args)
        return decode(*args)

    monkeypatch.setattr(encoded, "decode", counted)
    monkeypatch.setattr(encoded, "THOROUGH", 100)
    load(str(paint("../other/1.png").parent), Domain((3, 64, 64)))  # modules and checks of shapes take memory once
    tracemalloc.start()
    images = load(str(first.parent), Domain((3, 64, 64)))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(images) == 5000
    assert held < 4e6  # the pixels are 61 MB
    assert peak < 15e6
    assert not decoded
    images.pixels([17, 4])
    assert len(decoded) == 2


def test_sources_can_be_sent_to_other_processes(paint: Painter, tmp_path: Path) -> None:
    paint("1.png")
    images = load(str(tmp_path / "images"), RGB)
    assert torch.equal(pickle.loads(pickle.dumps(images.source)).read([0]), images.source.read([0]))


def test_unchanged_files_are_not_read_again(paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [paint(f"{row}.png") for row in range(3)]
    for path in paths:
        os.utime(path, (1e9, 1e9))
    root, index = str(tmp_path / "images"), tmp_path / "run" / "files.index"
    first = load(root, RGB, scan_cache=ScanCache.at(index)).fingerprint
    read: list[str] = []

    def recorded(path: Path) -> bytes:
        read.append(path.name)
        return path.read_bytes() + b" "

    monkeypatch.setattr(encoded, "all_bytes", recorded)
    assert load(root, RGB, scan_cache=ScanCache.at(index)).fingerprint == first
    assert read == []
    os.utime(paths[1], (1e9 + 5, 1e9 + 5))
    assert load(root, RGB, scan_cache=ScanCache.at(index)).fingerprint != first
    assert read == ["1.png"]  # judged and hashed in one
    read.clear()
    assert load(root, RGB, scan_cache=ScanCache.at(index, rehash=True)).fingerprint != first
    assert sorted(read) == ["0.png", "1.png", "2.png"]


def test_encoders_of_other_sizes_share_what_was_read(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in range(3):
        os.utime(paint(f"{row}.png"), (1e9, 1e9))
    scan_cache, root = ScanCache(tmp_path / "files.index"), str(tmp_path / "images")
    first = load(root, RGB, scan_cache=scan_cache).fingerprint
    monkeypatch.setattr(encoded, "all_bytes", None)
    assert load(root, Domain((1, 4, 4)), scan_cache=scan_cache).fingerprint == first


def test_what_was_read_before_an_interruption_is_remembered(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in range(3):
        os.utime(paint(f"{row}.png"), (1e9, 1e9))
    index = tmp_path / "files.index"

    def interrupted(content: bytes, thorough: bool) -> None:
        if content == paths[2].read_bytes():
            raise KeyboardInterrupt

    paths = sorted((tmp_path / "images").iterdir())
    monkeypatch.setattr(encoded, "complain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(str(tmp_path / "images"), RGB, scan_cache=ScanCache.at(index))
    assert len(ScanCache.at(index).known) == 2


def test_files_changed_just_now_and_damaged_memories_are_not_trusted(paint: Painter, tmp_path: Path) -> None:
    path, index = paint("1.png"), tmp_path / "files.index"
    root = str(tmp_path / "images")
    _ = load(root, RGB, scan_cache=ScanCache.at(index)).fingerprint
    assert not index.exists()
    os.utime(path, (1e9, 1e9))
    _ = load(root, RGB, scan_cache=ScanCache.at(index)).fingerprint
    assert len(ScanCache.at(index).known) == 1
    content = bytearray(index.read_bytes())
    content[-1] ^= 1
    index.write_bytes(content)
    assert not ScanCache.at(index).known
    assert not ScanCache.at(tmp_path / "none").known


def test_names_that_are_not_utf8_can_be_stored(paint: Painter, tmp_path: Path) -> None:
    path = paint("1.png")
    os.rename(path, os.fsencode(path.parent) + b"/caf\xe9.png")
    images = load(str(tmp_path / "images"), RGB)
    assert images.ids == ("caf\\xe9.png",)
    assert len(images.fingerprint) == 16
    images.pixels([0])


@pytest.mark.parametrize(
    ("reference", "domain", "said"),
    [
        ("folder:{root}/none", RGB, "no folder '.*none'; check the path"),
        ("folder:{root}/empty", RGB, "holds no images; expected files ending in .jpg"),
        ("{root}/images?labels=names", RGB, "labels of a folder must be 'folders' or a file of labels, got 'names'"),
        ("{root}/images?label=folders", RGB, "Did you mean 'labels'"),
        ("{root}/images?labels", RGB, "settings take the form"),
        ("{root}/images", Domain((4, 8, 8)), "suit encoders of 1 or 3 channels .* pass an array file"),
        ("{root}/images", Domain((64,)), "suit encoders of 1 or 3 channels"),
        ("{root}/images", Domain((3, 8, 8), -1.0, 1.0), r"but this one takes shape \(3, 8, 8\) in \[-1, 1\]"),
    ],
)
def test_bad_requests_say_what_to_do(paint: Painter, tmp_path: Path, reference: str, domain: Domain, said: str) -> None:
    paint("1.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(HoldfastError, match=said):
        load(reference.format(root=tmp_path), domain)
