"""Array files: layouts, sizes, ranges, and every way in which they can be wrong."""

from __future__ import annotations

import os
import pickle
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.geometry import Geometry, Interpolation, Preprocessing
from holdfast.core.images import TensorSource
from holdfast.data import arrays, load
from holdfast.data.reading import array_source
from holdfast.data.reading.array_source import digests_of
from holdfast.data.reading.scan_cache import ScanCache
from holdfast.spectral import arrays as features
from tests.facts import refused, warned

GREY, RGB = Domain((1, 4, 5)), Domain((3, 4, 5))
DRAWN = np.random.default_rng(0).random((6, 3, 4, 5)).astype(np.float32)


def _npy(folder: Path, array: np.ndarray[Any, Any]) -> str:
    np.save(folder / "x.npy", array)
    return str(folder / "x.npy")


def test_the_same_pixels_come_from_every_kind_of_file(tmp_path: Path) -> None:
    labels = np.arange(6)
    np.savez(tmp_path / "a.npz", images=DRAWN, labels=labels)
    np.savez_compressed(tmp_path / "b.NPZ", DRAWN)
    (tmp_path / "b.NPZ.npz").rename(tmp_path / "b.NPZ")
    np.savez(tmp_path / "c.npz", images=DRAWN * 0, train=DRAWN, classes=labels)
    save_file({"x": torch.from_numpy(DRAWN), "y": torch.arange(6)}, tmp_path / "d.safetensors")
    files = ["a.npz", "b.NPZ", "c.npz?images=train&labels=classes", "d.safetensors"]
    found = [load(f"{tmp_path}/{file}", RGB) for file in files] + [load(_npy(tmp_path, DRAWN), RGB)]
    for images in found:
        assert np.array_equal(images.pixels(range(6)), DRAWN)
        assert images.fingerprint == found[0].fingerprint
        assert images.ids == ("0", "1", "2", "3", "4", "5")
    assert [None if images.labels is None else images.labels.tolist() for images in found] == [
        list(labels),
        None,
        list(labels),
        list(labels),
        None,
    ]


def test_bytes_stand_for_pixels_between_0_and_1(tmp_path: Path) -> None:
    stored = np.array([0, 51, 255], dtype=np.uint8)[:, None, None, None]
    assert load(_npy(tmp_path, stored), Domain((1, 1, 1))).pixels(range(3)).flatten().tolist() == [
        0,
        pytest.approx(0.2),
        1,
    ]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_are_read_as_they_are(tmp_path: Path, dtype: str) -> None:
    stored = DRAWN.astype(dtype)
    images = load(_npy(tmp_path, stored), RGB)
    assert np.array_equal(images.pixels([2, 0], dtype=torch.float64), stored[[2, 0]].astype(np.float64))


@pytest.mark.parametrize(
    ("arrange", "domain"),
    [
        (lambda a: a.transpose(0, 2, 3, 1), RGB),
        (lambda a: np.asfortranarray(a), RGB),
        (lambda a: a[:, 0], GREY),
        (lambda a: a[:, 0, :, :, None], GREY),
    ],
)
def test_layouts_that_can_be_told_apart_are_read(
    tmp_path: Path, arrange: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], domain: Domain
) -> None:
    images = load(_npy(tmp_path, arrange(DRAWN)), domain)
    assert np.array_equal(images.pixels([3, 1]), DRAWN[[3, 1], : domain.shape[0]])


def test_grey_arrays_serve_encoders_of_three_channels(tmp_path: Path) -> None:
    images = load(_npy(tmp_path, DRAWN[:, 0]), RGB)
    assert images.pixels([1]).shape == (1, 3, 4, 5)
    assert np.array_equal(images.pixels([1])[0], DRAWN[[1, 1, 1], 0])


SHAPES = ((20, 31), (31, 20), (33, 33), (97, 131), (64, 500), (8, 9), (5, 5), (225, 301), (27, 35), (100, 6))


@pytest.mark.parametrize(
    "geometry", [Geometry(9, (6, 7)), Geometry((11, 8), (6, 7), "bicubic"), Geometry(8, (6, 7), "lanczos")]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_and_files_of_the_same_pictures_give_the_same_pixels(
    tmp_path: Path, shape: tuple[int, int], geometry: Geometry
) -> None:
    stored = np.random.default_rng(1).integers(0, 256, (2, 3, *shape), dtype=np.uint8)
    domain, folder = Domain((3, *geometry.crop)), tmp_path / "files"
    folder.mkdir()
    for row, picture in enumerate(stored):
        Image.fromarray(picture.transpose(1, 2, 0)).save(folder / f"{row}.png")
    files = load(str(folder), domain, geometry).pixels([0, 1])
    of_bytes = load(_npy(tmp_path, stored), domain, geometry)
    assert torch.equal(of_bytes.pixels([0, 1]), files)
    assert of_bytes.fingerprint == load(_npy(tmp_path, stored), Domain((3, 5, 5))).fingerprint
    assert torch.equal(load(_npy(tmp_path, stored / 255), domain, geometry).pixels([0, 1]), files)


class Library(Preprocessing):
    """A transform that is no Geometry, as those of other libraries."""

    crop = (6, 7)
    words = "squashed by a library"

    def __call__(self, image: Image.Image) -> np.ndarray[Any, Any]:
        return np.asarray(image.resize(self.crop[::-1], Image.Resampling.BOX)).reshape(*self.crop, -1)


def test_transforms_of_libraries_see_8_bits_of_floats(tmp_path: Path) -> None:
    stored = np.random.default_rng(1).integers(0, 256, (2, 3, 20, 31), dtype=np.uint8)
    bytes_, floats = (
        load(_npy(tmp_path, array), Domain((3, 6, 7)), Library()).pixels([0, 1]) for array in (stored, stored / 255)
    )
    assert torch.equal(bytes_, floats)
    assert np.array_equal(
        bytes_[1].numpy() * 255, Library()(Image.fromarray(stored[1].transpose(1, 2, 0))).transpose(2, 0, 1)
    )


def test_transforms_of_libraries_refuse_what_is_no_picture(tmp_path: Path) -> None:
    for channels, low in ((13, 0.0), (3, -1.0)):
        with pytest.raises(HoldfastError, match=r"20 x 31 pixels .* store them at \(6, 7\)"):
            load(_npy(tmp_path, np.zeros((2, channels, 20, 31))), Domain((channels, 6, 7), low), Library()).pixels([0])


def test_pictures_of_any_number_of_channels_are_resized(tmp_path: Path) -> None:
    stored = np.random.default_rng(1).integers(0, 256, (1, 13, 20, 31), dtype=np.uint8)
    geometry = Geometry(9, (6, 7), "bicubic")
    pixels = load(_npy(tmp_path, stored), Domain((13, 6, 7)), geometry).pixels([0])
    alone = load(_npy(tmp_path, stored[:, 4:5]), Domain((1, 6, 7)), geometry).pixels([0])
    assert (pixels[:, 4:5] - alone).abs().max() * 255 <= 4  # Pillow rounds bytes after each of its two passes


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resizing_stays_in_range_and_fills_the_crop(tmp_path: Path, interpolation: Interpolation) -> None:
    stored = (DRAWN > 0.5).astype(np.float16)
    pixels = load(_npy(tmp_path, stored), Domain((3, 7, 30)), Geometry(7, (7, 30), interpolation)).pixels(range(6))
    assert pixels.shape == (6, 3, 7, 30)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    if interpolation in ("bicubic", "lanczos"):  # which overshoot on their own, as the clipped values show
        assert (pixels == 1).any()


def test_rows_of_numbers_serve_encoders_of_tables(tmp_path: Path) -> None:
    table = np.linspace(-3, 3, 8).reshape(4, 2)
    images = load(_npy(tmp_path, table), Domain((2,), -3.0, 3.0))
    assert np.array_equal(images.pixels([1], dtype=torch.float64), table[[1]])
    with refused(HoldfastError, "(n, 3)", "(4, 2)", "shape"):
        load(_npy(tmp_path, table), Domain((3,), -3.0, 3.0))


def test_limit_chooses_rows_and_only_they_are_checked(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).random((50, 3, 4, 5))
    five = load(_npy(tmp_path, stored), RGB, limit=5)
    rows = [int(name) for name in five.ids]
    assert len(rows) == 5
    assert rows == sorted(rows)
    assert np.array_equal(five.pixels(range(5), dtype=torch.float64), stored[rows])
    others = [row for row in range(50) if row not in rows]
    stored[others[0]] = np.nan
    assert load(_npy(tmp_path, stored), RGB, limit=5).fingerprint == five.fingerprint
    assert load(_npy(tmp_path, np.zeros_like(stored)), RGB, limit=5, seed=1).ids != five.ids
    stored[rows[2]] = np.nan
    with pytest.raises(HoldfastError, match=f"image {rows[2]} of"):
        load(_npy(tmp_path, stored), RGB, limit=5)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell how much memory is held")
@pytest.mark.parametrize("ending", ["npy", "safetensors"])
def test_files_are_not_held_in_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    if ending == "npy":
        np.save(path, np.zeros((5000, 3, 64, 64), dtype=np.uint8))
    else:
        save_file({"images": torch.zeros(5000, 3, 64, 64, dtype=torch.uint8)}, path)
    load(str(path), Domain((3, 64, 64)), limit=1)  # imports what it needs
    before = _resident()
    images = load(str(path), Domain((3, 64, 64)))
    assert images.pixels([17]).shape == (1, 3, 64, 64)
    assert _resident() - before < 20e6  # the pixels are 61 MB


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_safetensors_of_other_types_are_refused(tmp_path: Path) -> None:
    save_file({"images": torch.from_numpy(DRAWN).bfloat16()}, tmp_path / "x.safetensors")
    with refused(HoldfastError, "got 'BF16'", "U8", "F16"):
        load(f"{tmp_path}/x.safetensors", RGB)
    save_file({"images": torch.zeros(0, 3, 4, 5)}, tmp_path / "x.safetensors")
    with pytest.raises(HoldfastError, match="holds no images"):
        load(f"{tmp_path}/x.safetensors", RGB)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, r"image 4 of .*x\.npy must be finite and lie in \[0, 1\]"),
        (np.inf, r"image 4 of .*x\.npy must be finite"),
        (-np.inf, r"image 4 of .*x\.npy must be finite"),
        (-0.01, r"image 4 of .*x\.npy .*values from -0\.01 to"),
        (1.5, "divide by 255, do not normalise"),
    ],
)
def test_the_first_bad_image_is_named(tmp_path: Path, value: float, said: str) -> None:
    stored = DRAWN.copy()
    stored[4, 2, 1, 1] = stored[5, 0, 0, 0] = value
    with pytest.raises(HoldfastError, match=said):
        load(_npy(tmp_path, stored), RGB)


def test_infinite_values_are_refused_even_where_the_domain_has_no_bounds(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"image 1 of .* must be finite"):
        load(_npy(tmp_path, np.array([[0.0], [np.inf]])), Domain((1,), -np.inf, np.inf))


@pytest.mark.parametrize(
    ("array", "domain", "said"),
    [
        (DRAWN[0], GREY, "shape"),
        (DRAWN[0, 0, 0], RGB, r"one row per image, got an array of shape \(5,\)"),
        (DRAWN[:, :2], RGB, "with 1 or 3 channels, got shape"),
        (DRAWN[:, :, :, :3], RGB, r"may be N x C x H x W or N x H x W x C; store it as .*\(n, 3, 4, 5\)"),
        (DRAWN[:, :, :0], RGB, "must be of shape"),
        (DRAWN[:0], RGB, "holds no images"),
        (DRAWN.astype(np.int64), RGB, "must be uint8, float16, float32, float64 .*int64"),
        (DRAWN.astype(">f4"), RGB, "this machine's byte order"),
        ((DRAWN * 255).astype(np.uint8), Domain((3, 4, 5), -1.0, 1.0), "holds uint8, which stands for pixels"),
    ],
)
def test_arrays_that_do_not_suit_the_encoder_say_so(
    tmp_path: Path, array: np.ndarray[Any, Any], domain: Domain, said: str
) -> None:
    if said == "shape":  # three grey images of the right size, not one of three channels
        assert len(load(_npy(tmp_path, array), domain)) == 3
        return
    with pytest.raises(HoldfastError, match=said):
        load(_npy(tmp_path, array), domain)


def test_geometry_must_belong_to_the_domain(tmp_path: Path) -> None:
    with refused(HoldfastError, "(3, 3)", "2 x 2", "geometry"):
        load(_npy(tmp_path, DRAWN), Domain((3, 2, 2)), Geometry(3, (3, 3)))


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_pickles_are_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bombs = np.array([_Bomb()], dtype=object)
    np.save("objects.npy", bombs)
    np.savez("objects.npz", images=bombs)
    Path("pure.npy").write_bytes(pickle.dumps(_Bomb()))
    Path("pure.npz").write_bytes(pickle.dumps(_Bomb()))
    for name in ("objects.npy", "objects.npz", "pure.npy", "pure.npz"):
        with refused(HoldfastError, "pickled", "objects"):
            load(name, RGB)
    assert not Path("exploded").exists()


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_files_are_one_sentence(tmp_path: Path, ending: str, share: float) -> None:
    path = tmp_path / f"x.{ending}"
    stored = np.random.default_rng(0).random((100, 3, 4, 5))
    if ending == "npy":
        np.save(path, stored)
    elif ending == "npz":
        np.savez_compressed(path, images=stored)
    else:
        save_file({"images": torch.from_numpy(stored)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(HoldfastError, match=r"truncated|empty"):
        load(str(path), RGB)


def test_misnamed_files_are_told_their_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", DRAWN)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with refused(HoldfastError, ".npz"):
        load(str(tmp_path / "a.npy"), RGB)
    Path(_npy(tmp_path, DRAWN)).rename(tmp_path / "b.npz")
    with refused(HoldfastError, ".npy"):
        load(str(tmp_path / "b.npz"), RGB)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "",
            r"has no array named images, pixels, x, arr_0; say which .* a\.npz\?images=first \(it holds: first, second",
        ),
        ("?images=frist", "Did you mean 'first'"),
        ("?images=first&labels=third", "'third'"),
        ("?pictures=first", "'pictures'. .*Known: images, labels"),
        ("?images=first&labels=second", r"must be one integer per image, shape \(6,\), got float32"),
    ],
)
def test_arrays_of_a_file_are_chosen_by_name(tmp_path: Path, settings: str, said: str) -> None:
    np.savez(tmp_path / "a.npz", first=DRAWN, second=DRAWN)
    with pytest.raises(HoldfastError, match=said):
        load(f"{tmp_path}/a.npz{settings}", RGB)


def test_unasked_labels_that_are_none_are_left_out_with_a_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=DRAWN, y=np.linspace(0, 1, 6))
    with warned(HoldfastWarning, "integer", "ignored"):
        assert load(f"{tmp_path}/a.npz", RGB).labels is None


def _header(shape: str, content: bytes = bytes(64)) -> bytes:
    """Return a .npy file whose header says ``shape``, whatever follows it."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("shape", ["(-1, 3, 4, 5)", "(-4, -3, 4, 5)", f"({10**12}, 3, 4, 5)", f"({2**70}, 4)"])
def test_lying_headers_are_one_sentence(tmp_path: Path, ending: str, shape: str) -> None:
    path = tmp_path / f"x.{ending}"
    if ending == "npy":
        path.write_bytes(_header(shape))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", _header(shape))
    with refused(HoldfastError, "truncated", "numpy"):
        load(str(path), RGB)
    with pytest.raises(HoldfastError, match=r"numpy\.save|not a numpy file"):
        features.read(path)


def test_archives_that_unpack_to_far_more_than_they_hold_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, images=np.zeros((10_000, 3, 4, 5), np.float32))
    assert len(load(str(bomb), RGB)) == 10_000
    monkeypatch.setattr(arrays, "UNPACKED", 2**20)
    for read in (lambda: load(str(bomb), RGB), lambda: features.read(bomb)):
        with refused(HoldfastError, "0.0", "GiB", "numpy.save", "unpack"):
            read()
    whole = tmp_path / "whole.npz"
    np.savez(whole, images=np.zeros((10_000, 3, 4, 5), np.float32))
    assert len(load(str(whole), RGB)) == 10_000


def test_members_of_archives_that_are_no_arrays_say_so(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", b"these are no numbers")
    for read in (lambda: load(str(tmp_path / "x.npz"), RGB), lambda: features.read(tmp_path / "x.npz")):
        with refused(HoldfastError, "'images'", "array"):
            read()


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64"])
def test_digests_of_many_rows_are_those_of_single_rows(dtype: str) -> None:
    drawn = (DRAWN * 200).astype(dtype)
    for stored in (torch.from_numpy(drawn), torch.from_numpy(np.asfortranarray(drawn))):
        wanted = [TensorSource(stored).digest(row) for row in (4, 0, 5)]
        assert digests_of(stored, [4, 0, 5]) == b"".join(wanted)


def test_unchanged_arrays_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "x.npz", one=DRAWN, other=DRAWN[::-1])
    os.utime(tmp_path / "x.npz", (1e9, 1e9))
    asked: list[tuple[str, int | None, int]] = [("one", None, 0), ("other", None, 0), ("one", 3, 0), ("one", 3, 1)]
    index = tmp_path / "run" / "files.index"

    def fingerprints(rehash: bool = False) -> list[str]:
        scan_cache, file = ScanCache.at(index, rehash), f"{tmp_path}/x.npz"
        return [
            load(f"{file}?images={name}", RGB, limit=limit, seed=seed, scan_cache=scan_cache).fingerprint
            for name, limit, seed in asked
        ]

    first = fingerprints()
    assert len(set(first)) == 4, "vacuous fixture"
    read: list[str] = []

    def hashed(stored: object, rows: list[int]) -> bytes:
        read.append("hashed")
        return bytes(16 * len(rows))

    monkeypatch.setattr(array_source, "check_values", lambda *_: read.append("checked"))
    monkeypatch.setattr(array_source, "digests_of", hashed)
    assert fingerprints() == first
    assert read == []
    fingerprints(rehash=True)
    assert read == ["checked", "hashed"] * 4
    os.utime(tmp_path / "x.npz", (1e9 + 5, 1e9 + 5))
    fingerprints()
    assert len(read) == 16


def test_a_range_is_checked_anew_for_an_encoder_of_another(tmp_path: Path) -> None:
    path, index = Path(_npy(tmp_path, DRAWN * 2 - 1)), tmp_path / "files.index"
    os.utime(path, (1e9, 1e9))
    scan_cache = ScanCache.at(index)
    _ = load(str(path), Domain((3, 4, 5), -1.0, 1.0), scan_cache=scan_cache).fingerprint
    with refused(HoldfastError, "[0, 1]", "finite"):
        load(str(path), RGB, scan_cache=ScanCache.at(index))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident pages of files are counted on Linux alone")
@pytest.mark.parametrize("let_go", [1 << 20, 1 << 30])
def test_what_was_read_of_a_mapped_array_is_given_back(tmp_path, monkeypatch, let_go):
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2]) * resource.getpagesize()

    monkeypatch.setattr(arrays, "LET_GO", let_go)
    stored = np.random.default_rng(0).integers(0, 256, (4000, 3, 40, 50), dtype=np.uint8)
    images = load(_npy(tmp_path, stored), Domain((3, 40, 50)))
    before = mapped()
    for start in range(0, 4000, 100):
        rows = list(range(start, start + 100))
        assert np.array_equal(images.source.read(rows).numpy(), stored[rows])
    grown = mapped() - before
    assert grown < 4 << 20 if let_go == 1 << 20 else grown > 20 << 20
    rows = np.random.default_rng(1).permutation(4000)[:100].tolist()
    assert np.array_equal(images.source.read(rows).numpy(), stored[rows])
    assert (mapped() - before < 4 << 20) == (let_go == 1 << 20), "a system maps what is near, too"
    again = pickle.loads(pickle.dumps(images[[7, 3]]))
    assert np.array_equal(again.source.read([0, 1]).numpy(), stored[[7, 3]])
