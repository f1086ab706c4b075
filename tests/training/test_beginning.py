"""What a training refuses before its first step."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.training.recipe import Recipe, check_views, resized

RECIPE = {"objective": "simclr", "architecture": "digits"}


def test_augmentations_are_tried_before_they_no_longer_look() -> None:
    noise, pixels = Noise.of(0, ["a"]), torch.rand(1, 1, 8, 8)
    augmented = Recipe.of({**RECIPE, "second_augmentation": "horizontal-flip"})
    check_views(augmented, Domain((1, 8, 8)), pixels, noise)
    with pytest.raises(HoldfastError, match=r"pixels in \[0, 1\], got values from 0 to 2"):
        check_views(augmented, Domain((1, 8, 8)), torch.tensor([0.0, 2.0]).expand(1, 1, 8, 2), noise)
    with pytest.raises(HoldfastError, match=r"the encoder's lie in \[-1, 1\]"):
        check_views(augmented, Domain((1, 8, 8), low=-1.0), pixels, noise)
    check_views(Recipe.of(RECIPE), Domain((1, 8, 8), low=-1.0), pixels - 1, noise)


def test_crops_are_made_smaller_without_leaving_their_range() -> None:
    pixels = torch.rand(2, 3, 8, 8).round()
    small = resized(pixels, 4)
    assert small.shape == (2, 3, 4, 4)
    assert 0 <= small.min() < small.max() <= 1
    torch.testing.assert_close(small.mean((2, 3)), pixels.mean((2, 3)), atol=0.05, rtol=0)
    assert resized(pixels, None) is pixels
