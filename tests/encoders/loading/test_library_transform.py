"""The normalisation that is read off a library's own preprocessing."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.loading.library_transform import LIBRARIES, recipe

declare_missing_operators()
pytest.importorskip("torchvision")
SETTINGS = {"crop_size": 32, "resize_size": 36, "interpolation": "bilinear"}


def test_numbers_of_a_normalisation_follow_its_channels() -> None:
    """By hand: the network takes green, blue, red, and states .1, .2, .3 for them in this order."""
    resized = LIBRARIES["torchvision"]("", dict(SETTINGS))
    mean, std = (np.array(values)[:, None, None] for values in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))

    def whole(picture: Image.Image) -> np.ndarray:
        return (np.asarray(resized(picture))[[1, 2, 0]] / 255 - mean) / std

    found = recipe("turned", "torchvision", "", SETTINGS, whole, 3)
    assert found.order == (1, 2, 0)
    assert found.mean == pytest.approx((0.3, 0.1, 0.2), abs=1e-5)
    assert found.std == pytest.approx((0.6, 0.4, 0.5), abs=1e-5)
