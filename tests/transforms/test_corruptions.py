"""Gamma, shuffles and filters against their definitions and stored numbers of another program."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.noise import Noise
from holdfast.transforms.base import Transform
from holdfast.transforms.shuffles import permutation


def change(text: str, pixels: torch.Tensor) -> torch.Tensor:
    return Transform.read(text)(pixels, Noise.of(0, [str(row) for row in range(len(pixels))]))


@pytest.mark.parametrize("gamma", [0.1, 0.2, 1.0, 2.5, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_is_the_table_of_8_bit_images(gamma: float, dtype: torch.dtype):
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    table = np.floor(255 * (np.arange(256) / 255) ** gamma)
    changed = change(f"gamma:{gamma}", levels.to(dtype) / 255)
    assert (changed.flatten() * 255).round().tolist() == table.tolist()
    assert torch.equal(changed, torch.from_numpy(table).reshape(1, 1, 16, 16).to(dtype) / 255)


def test_gamma_between_levels():
    between = torch.tensor([0.5, 0.25, 100.125]).reshape(1, 1, 1, 3).double() / 255
    assert torch.allclose(change("gamma:1", between), between, rtol=0, atol=1e-12)
    squared = change("gamma:2", torch.tensor([100.5]).reshape(1, 1, 1, 1).double() / 255)
    assert float(squared) * 255 == pytest.approx((100**2 // 255 + 101**2 // 255) / 2)


def test_shuffles_by_hand():
    pixels = torch.arange(36.0).reshape(1, 1, 6, 6) / 36
    for name in ("global", "local"):
        changed = change(f"{name}-shuffle:grid=2,seed=3", pixels)[0, 0]
        for down in range(2):
            for right in range(2):
                if name == "global":
                    source = int(permutation(4, 3)[2 * down + right])
                    block = pixels[0, 0, source // 2 * 3 :, source % 2 * 3 :][:3, :3]
                else:
                    patch = pixels[0, 0, 3 * down :, 3 * right :][:3, :3].flatten()
                    block = patch[permutation(9, 3)].reshape(3, 3)
                assert torch.equal(changed[3 * down : 3 * down + 3, 3 * right : 3 * right + 3], block)


def test_shuffling_all_pixels_is_global_and_local():
    pixels = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    both = [change(f"{text},seed=5", pixels) for text in ("global-shuffle:grid=12", "local-shuffle:grid=1")]
    assert torch.equal(*both)
    assert not torch.equal(both[0], change("local-shuffle:grid=1,seed=6", pixels))


def test_permutations_are_fair_and_never_the_identity():
    orders = [tuple(permutation(3, seed).tolist()) for seed in range(1000)]
    assert len(set(orders)) == 5
    assert (0, 1, 2) not in orders
    assert all(abs(orders.count(order) - 200) < 60 for order in set(orders))


def test_a_grid_that_does_not_divide_names_those_that_do():
    with pytest.raises(OutOfRange, match="1, 2, 4, 7, 14, 28"):
        change("global-shuffle:grid=5", torch.zeros(1, 1, 28, 28))
    with pytest.raises(OutOfRange, match="1, 2, 4"):
        change("global-shuffle:grid=3", torch.zeros(1, 1, 12, 8))
    with pytest.raises(OutOfRange, match="29"):
        change("local-shuffle:grid=29", torch.zeros(1, 1, 28, 28))


def test_local_patches_of_two_sizes_keep_their_pixels():
    """L128x128 of 224 pixels: patches of 1 and 2 pixels a side, none of which gives a pixel away."""
    pixels = torch.arange(224.0 * 224).reshape(1, 1, 224, 224) / 224**2
    changed = change("local-shuffle:grid=128,seed=1", pixels)[0, 0]
    starts = [k * 224 // 128 for k in range(11)]
    assert {end - start for start, end in pairwise(starts)} == {1, 2}
    moved = 0
    for top, bottom in pairwise(starts):
        for left, right in pairwise(starts):
            ours, theirs = (image[top:bottom, left:right].flatten() for image in (changed, pixels[0, 0]))
            assert torch.equal(ours.sort().values, theirs)
            assert torch.equal(ours, theirs[permutation(len(theirs), 1)])
            moved += int((ours != theirs).sum())
    assert moved > 100


@pytest.mark.parametrize(
    "text", ["global-shuffle:grid=4", "local-shuffle:grid=5", "local-shuffle:grid=4 + gamma:1 + global-shuffle:grid=2"]
)
def test_shuffles_are_undone(text: str):
    pixels = torch.rand(2, 3, 12, 16, generator=torch.Generator().manual_seed(0)).mul(255).round() / 255
    assert not torch.equal(change(text, pixels), pixels)
    torch.testing.assert_close(Transform.read(text).undone(change(text, pixels)), pixels)


@pytest.mark.parametrize("grid", [4, 7])
@pytest.mark.parametrize("name", ["global-shuffle", "local-shuffle"])
def test_neighbours_of_raw_pixels_survive_every_shuffle(name: str, grid: int):
    text = f"{name}:grid={grid}"
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (60, 1, 28, 28), generator=generator)

    def neighbours(pixels: torch.Tensor) -> torch.Tensor:
        whole = (pixels * 255).round().long().flatten(1)  # integers, whose sums do not depend on their order
        squares = (whole[:, None] - whole[None]).square().sum(2)
        return squares.argsort(dim=1, stable=True)[:, :10]

    clean = levels / 255
    assert not torch.equal(change(text, clean), clean)
    assert torch.equal(neighbours(change(text, clean)), neighbours(clean))


def test_low_pass_of_another_program(reference: Path):
    stored = np.load(reference / "unsupervised" / "lowpass_oracle.npz")
    pixels = torch.from_numpy(stored["inp"]).double() / 255
    filtered = change(f"low-pass:{int(stored['radius'])}", pixels)
    # The other program rounds down to 8 bits; what lies on a level up to rounding may fall on either side of it.
    levels = (filtered * 255 + 1e-9).floor().to(torch.uint8)
    assert torch.equal(levels, torch.from_numpy(stored["out"]))


def test_filters_split_an_image():
    pixels = torch.rand(2, 3, 20, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.2 + 0.4
    low, high = change("low-pass:4", pixels), change("high-pass:4", pixels)
    assert torch.allclose(low + high - pixels.mean((2, 3), keepdim=True), pixels, atol=1e-12)


def test_filters_keep_the_waves_they_name():
    across = torch.arange(32, dtype=torch.float64)
    wave = {k: (0.5 + 0.4 * torch.cos(2 * torch.pi * k * across / 32)).expand(1, 1, 32, 32) for k in (3, 9)}
    assert torch.allclose(change("low-pass:5", wave[3]), wave[3])
    assert torch.allclose(change("low-pass:5", wave[9]), torch.full_like(wave[9], 0.5))
    assert torch.allclose(change("high-pass:5", wave[9]), wave[9])
    assert torch.allclose(change("high-pass:9", wave[9]), wave[9]), "the radius itself is kept"


@pytest.mark.parametrize("name", ["global-shuffle", "local-shuffle"])
def test_patches_of_four_pixels_make_a_grid(name: str) -> None:
    pixels, none = torch.rand(2, 3, 12, 12), Noise.of(0, ["a", "b"])
    by_patch, by_grid = (Transform.read(f"{name}:{text}") for text in ("patch=4,seed=5", "grid=3,seed=5"))
    assert torch.equal(by_patch(pixels, none), by_grid(pixels, none))
    assert not torch.equal(by_patch(pixels, none), pixels)
    with pytest.raises(HoldfastError, match=r"patch .*one of 1, 2, 5, 10"):
        by_patch(pixels[:, :, :10, :10], none)
    with pytest.raises(HoldfastError, match=r"patch .*-1"):
        Transform.read(f"{name}:patch=-1")
