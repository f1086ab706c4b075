"""Inputs of any number of channels, and videos: each transform applies to them or is left out, as it declares."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import Chain, Transform, transforms
from tests.transforms.test_laws import EVERY, IDS, photographs, severe

OF_COLOUR = {"jpeg", "jpeg-compression-c", "hue-saturation", "saturate-c", "color-jitter", "grayscale"}
VIEWS = {name for name in EVERY if name.endswith("-view") or "-view-" in name}
"""Each of which jitters colours."""
STAY = {"hue-saturation", "saturate-c", "grayscale"}
"""What changes nothing in an image of one channel."""


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
@pytest.mark.parametrize("name", EVERY)
def test_each_transform_applies_or_declares_that_it_does_not(name: str, channels: int) -> None:
    transform, pixels = severe(name), photographs(channels, 32)
    declared = transform.needs((channels, 32, 32))
    assert (declared is not None) == (channels not in (1, 3) and name in OF_COLOUR | VIEWS)
    if declared:
        with pytest.raises(HoldfastError, match=declared):
            transform(pixels, Noise.of(0, IDS))
        return
    changed = transform(pixels, Noise.of(0, IDS))
    assert changed.shape == pixels.shape
    assert changed.isfinite().all()
    assert torch.equal(changed, pixels) == (channels == 1 and name in STAY)


@pytest.mark.parametrize("name", EVERY)
def test_no_transform_claims_to_apply_to_videos_or_vectors(name: str) -> None:
    for shape in ((3, 4, 16, 16), (64,), (16, 16)):
        assert severe(name).needs(shape)
        with pytest.raises(HoldfastError, match="channels, height, width"):
            severe(name)(torch.rand(2, *shape), Noise.of(0, ["a", "b"]))


def test_a_chain_needs_what_its_parts_need() -> None:
    gamma, jpeg = Transform.read("gamma:5"), Transform.read("jpeg:30")
    assert gamma.needs((13, 8, 8)) is None
    assert Chain((gamma, jpeg)).needs((13, 8, 8)) == jpeg.needs((13, 8, 8)) is not None
    assert len(transforms()) > len(OF_COLOUR | VIEWS) + 20, "vacuous: most transforms apply to any number of channels"
