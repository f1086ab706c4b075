"""Pictures of inputs of any number of channels."""

from __future__ import annotations

from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.core.encoder import Domain
from holdfast.core.pictures import row


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (2, 1), (3, 3), (4, 3), (13, 3)])
def test_the_first_channels_are_shown_and_the_caption_says_so(channels: int, shown: int) -> None:
    pixels = (torch.arange(channels * 6).reshape(channels, 2, 3) / 255).float()
    picture = row("one", {"clean": pixels}, Domain((channels, 2, 3)))
    assert picture is not None
    values = np.array(Image.open(BytesIO(b64decode(picture.pngs[0])))).reshape(2, 3, shown)
    assert np.array_equal(values.transpose(2, 0, 1), (pixels[:shown] * 255).round().numpy())
    assert (f"of {channels}" in picture.caption) == (shown < channels)


def test_videos_and_vectors_have_no_picture() -> None:
    for shape in ((3, 2, 4, 4), (7,)):
        assert row("none", {"clean": torch.rand(shape)}, Domain(shape)) is None
