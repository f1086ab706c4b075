"""References, loaders, and the built-in images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.core.encoder import Domain
from holdfast.core.errors import Conflict, HoldfastError
from holdfast.data import builtin, load, loaders
from tests.facts import refused

DIGITS = Domain((1, 8, 8))


def test_loaders_are_found_without_a_list() -> None:
    assert sorted(loaders()) == [
        "arrays",
        "builtin",
        "embeddings",
        "folder",
        "fsspec",
        "hf",
        "parquet",
        "torchvision",
        "wds",
    ]


def test_digits_are_split_for_training_and_evaluation() -> None:
    held_out, trained = (load(f"builtin:{name}", DIGITS) for name in builtin.names())
    assert (len(held_out), len(trained)) == (597, 1200)
    assert (trained.ids[0], trained.ids[-1], held_out.ids[0], held_out.ids[-1]) == (
        "digits/0000",
        "digits/1199",
        "digits/1200",
        "digits/1796",
    )
    assert held_out.labels is not None
    assert held_out.labels.unique().tolist() == list(range(10))
    pixels = held_out.pixels(range(597))
    DIGITS.check(pixels)
    assert pixels.dtype == torch.float32
    assert pixels.max() == 1
    assert torch.equal(pixels * 16, (pixels * 16).round())


def test_digits_are_limited_and_resized_like_any_images() -> None:
    some = load("builtin:digits", Domain((3, 32, 32)), limit=7, seed=3)
    assert some.pixels(range(7)).shape == (7, 3, 32, 32)
    assert some.fingerprint == load("builtin:digits", DIGITS, limit=7, seed=3).fingerprint
    assert some.labels is not None
    assert len(some.labels) == 7
    assert len(load("builtin:digits", DIGITS, limit=10_000)) == 597


def test_balanced_images_are_as_many_of_each_class() -> None:
    whole, some = load("builtin:digits", DIGITS), load("builtin:digits?balanced=4", DIGITS)
    assert some.labels is not None
    assert some.labels.bincount().tolist() == [4] * 10
    assert set(some.ids) < set(whole.ids)
    assert some.fingerprint == load("builtin:digits?balanced=4", DIGITS).fingerprint
    assert some.fingerprint != load("builtin:digits?balanced=4", DIGITS, seed=1).fingerprint
    # One more image of each class is added to those chosen before.
    assert set(some.ids) < set(load("builtin:digits?balanced=5", DIGITS).ids)


@pytest.mark.parametrize("count", ["0", "58", "many"])
def test_images_that_cannot_be_balanced_are_refused(count: str) -> None:
    with pytest.raises(HoldfastError, match="balanced"):
        load(f"builtin:digits?balanced={count}", DIGITS)
    with pytest.raises(Conflict):
        load("builtin:digits?balanced=4", DIGITS, limit=3)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("builtin:digit", "Did you mean 'digits'"),
        ("builtin:digits?split=test", "no setting 'split'"),
        ("bultin:digits", "Did you mean 'builtin'"),
        ("{root}/missing", "no file or folder '.*missing'; check the path"),
        ("{root}/notes.txt", r"is neither a folder of images or a file ending in \.npy"),
        ("arrays:{root}/missing.npy", "no file '.*missing.npy'; check the path"),
        ("arrays:{root}/notes.txt", r"an array file ends in \.npy, \.npz, \.safetensors, got"),
    ],
)
def test_bad_references_say_what_to_do(tmp_path: Path, reference: str, said: str) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(HoldfastError, match=said):
        load(reference.format(root=tmp_path), DIGITS)


def test_limit_and_tolerance_must_make_sense() -> None:
    with refused(HoldfastError, "least 1", "got 0", "limit"):
        load("builtin:digits", DIGITS, limit=0)
    with refused(HoldfastError, "0 and", "got 5.0", "max_unreadable", "1", "share"):
        load("builtin:digits", DIGITS, max_unreadable=5.0)


@pytest.mark.parametrize(
    "reference", ["photos/?labels=folders&labels=x", "a.npz?images=x&images=x", "builtin:digits?a=1&a=1"]
)
def test_a_setting_of_a_reference_is_given_once(reference: str) -> None:
    with pytest.raises(HoldfastError, match=r"has (labels|images|a) twice"):
        load(reference, Domain((1, 8, 8)))
