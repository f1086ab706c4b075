"""Images are lazy, named and hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images, Source, Subset, TensorSource
from tests.facts import refused

GREY = torch.arange(4 * 6, dtype=torch.uint8).reshape(4, 1, 2, 3) * 10
IDS = ["a", "b", "c", "d"]


class Spy:
    """A source that remembers what was read."""

    def __init__(self, count: int = 1_000_000) -> None:
        self.count, self.seen, self.digested = count, list[int](), list[int]()

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Sequence[int]) -> Tensor:
        self.seen += rows
        return torch.tensor([[row / self.count] for row in rows])

    def digest(self, row: int) -> bytes:
        self.digested.append(row)
        return row.to_bytes(8, "big")


def test_bytes_become_floats_between_zero_and_one():
    ends = torch.tensor([[0, 255]], dtype=torch.uint8)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        found = Images(ends).pixels([0], dtype=dtype)
        assert found.dtype == dtype
        assert found.tolist() == [[0, 1]]
    every = Images(torch.arange(256, dtype=torch.uint8)[None]).pixels([0])[0]
    assert torch.equal(every, torch.arange(256) / 255)


def test_floats_stay_as_they_are():
    values = torch.rand(3, 2)
    assert torch.equal(Images(values).pixels([2, 0]), values[[2, 0]])
    assert Images(values.double()).pixels([1]).dtype == torch.float32


def test_rows_come_in_the_order_asked_for():
    images = Images(GREY, IDS)
    assert torch.equal(images.pixels([3, 0, 3]), GREY[[3, 0, 3]] / 255)
    assert images.pixels([]).shape == (0, 1, 2, 3)


def test_images_are_named_by_their_number_unless_named():
    assert Images(GREY).ids == ("0", "1", "2", "3")
    assert Images(GREY, IDS).ids == tuple(IDS)
    assert len(Images(GREY)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pixels": GREY[:0]}, "photos holds no images"),
        ({"pixels": GREY, "ids": ["a", "b", "c", "b"]}, "ids must be distinct, got 'b' twice"),
        ({"pixels": GREY, "ids": ["a"]}, "photos has 4 images but 1 ids and no labels"),
        ({"pixels": GREY, "labels": torch.zeros(3, dtype=torch.int64)}, "4 images but 4 ids and 3 labels"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(HoldfastError, match=message):
        Images(**arguments, name="photos")


@pytest.mark.parametrize(
    ("rows", "ids"),
    [(slice(2), "ab"), (slice(-1, None), "d"), ([2, 0], "ca"), (range(1, 3), "bc"), (torch.tensor([3, 1]), "db"),
     (np.array([0]), "a"), ([-1], "d"), (torch.tensor([True, False, False, True]), "ad")],
)  # fmt: skip
def test_some_images_are_taken_by_numbers_masks_and_slices(unchecked: None, rows: Any, ids: str):
    labels = torch.tensor([7, 8, 9, 6])
    some = Images(GREY, "abcd", labels, groups="wxyz")[rows]
    at = ["abcd".index(name) for name in ids]
    assert some.ids == tuple(ids)
    assert torch.equal(some.pixels(range(len(ids))), GREY[at] / 255)
    assert some.labels is not None
    assert torch.equal(some.labels, labels[at])
    assert some.groups == tuple("wxyz"[row] for row in at)


@pytest.mark.parametrize("rows", [3, "a", None, [4], [0.5], [[0, 1]], [True], {0: 1}, torch.tensor(2)], ids=str)
def test_other_ways_to_take_images_are_refused_with_advice(unchecked: None, rows: Any):
    with refused(HoldfastError, "4 images", "images[[2, 0]]"):
        Images(GREY, "abcd")[rows]


def test_a_subset_keeps_ids_labels_and_name_with_their_pixels():
    images = Images(GREY, IDS, torch.tensor([7, 8, 9, 6]), "photos")
    some = images[[2, 0, 3]][[2, 1]]
    assert some.ids == ("d", "a")
    assert some.labels is not None
    assert some.labels.tolist() == [6, 7]
    assert some.name == "photos"
    assert torch.equal(some.pixels([0, 1]), images.pixels([3, 0]))


def test_nothing_is_read_before_it_is_asked_for():
    spy = Spy()
    some = Images(spy)[range(999_000, 999_010)]
    assert (spy.seen, spy.digested) == ([], [])
    assert some.pixels([3]).tolist() == [[pytest.approx(0.999003)]]
    assert spy.seen == [999_003]
    _ = some.fingerprint
    assert spy.digested == list(range(999_000, 999_010))
    assert spy.seen == [999_003]


def test_sources_are_what_they_claim():
    for source in (TensorSource(GREY), Subset(TensorSource(GREY), [1]), Spy()):
        assert isinstance(source, Source)


def test_equal_images_have_equal_fingerprints():
    once = Images(GREY, IDS).fingerprint
    assert Images(GREY.clone(), IDS, torch.zeros(4, dtype=torch.int64), "other").fingerprint == once
    assert Images(GREY.transpose(2, 3).contiguous().transpose(2, 3), IDS).fingerprint == once
    assert Images(GREY, IDS)[[3, 2, 1, 0]][[3, 2, 1, 0]].fingerprint == once


def test_any_change_changes_the_fingerprint():
    one_more = GREY.clone()
    one_more[2, 0, 1, 1] += 1
    prints = [
        Images(pixels, ids).fingerprint
        for pixels, ids in [
            (GREY, IDS),
            (one_more, IDS),
            (GREY, ["a", "b", "c", "e"]),
            (GREY, ["b", "a", "c", "d"]),
            (GREY.flip(0), IDS),
            (GREY.flip(0), IDS[::-1]),
            (GREY.reshape(4, 1, 3, 2), IDS),
            (GREY[:3], IDS[:3]),
            (GREY.float(), IDS),
        ]
    ]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8])
def test_copies_are_recognised_in_every_type(dtype: torch.dtype):
    pixels = (GREY.double() / 250).to(dtype) if dtype.is_floating_point else GREY
    digests = Images(pixels[[0, 1, 0, 2]]).digests
    assert digests[0] == digests[2]
    assert len(set(digests)) == 3
