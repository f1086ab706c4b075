"""Preprocessing that a reference states: resizing, cropping, channel order, layout and normalisation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.geometry import Geometry
from holdfast.data import load as load_images
from holdfast.encoders import load
from holdfast.encoders.loading.inputs import InputSettings, encoder_of, pair

MEAN, STD = (104.0, 117.0, 123.0), 1.0  # of bytes, blue first: how many older networks were trained


class ChannelsLast(nn.Module):
    """Weighted sums of inputs (b, h, w, 3) in the units and the order of channels that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6 * 4 * 3 * 5).reshape(6 * 4 * 3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1:] == (6, 4, 3)
        return x.flatten(1) @ self.weight


def channels_last() -> nn.Module:
    return ChannelsLast()


STATED = "&".join(
    (
        "python:tests.encoders.loading.test_inputs:channels_last?shape=3x6x4",
        "mean=104/255,117/255,123/255&std=1/255",
        "resize=9x7&interpolation=bicubic&channels=bgr&layout=nhwc",
    )
)


@pytest.mark.parametrize("size", [(30, 20), (20, 30), (97, 131), (5, 3)])
def test_all_of_it_stated_gives_what_the_network_was_trained_on(tmp_path, size):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    picture.save(tmp_path / "a.png")
    encoder = load(STATED)
    assert encoder.domain.shape == (3, 6, 4)
    assert encoder.geometry == Geometry((9, 7), (6, 4), "bicubic")
    pixels = load_images(str(tmp_path), encoder.domain, encoder.geometry).pixels([0])
    squashed = np.asarray(picture.resize((7, 9), Image.Resampling.BICUBIC))[2:8, 2:6]  # 1.5 rounds to the even 2
    inputs = (squashed[None, :, :, ::-1].astype(np.float64) - MEAN) / STD
    expected = torch.from_numpy(inputs).float().flatten(1) @ ChannelsLast().weight
    assert torch.allclose(encoder(pixels), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    "forgotten", ["channels=bgr", "resize=9x7", "interpolation=bicubic", "mean=104/255,117/255,123/255&std=1/255"]
)
def test_each_statement_changes_the_codes_or_the_pixels(tmp_path, forgotten, recwarn):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)).save(tmp_path / "a.png")

    def codes(encoder: Encoder) -> torch.Tensor:
        return encoder(load_images(str(tmp_path), encoder.domain, encoder.geometry).pixels([0]))

    whole, without = load(STATED), load(STATED.replace(forgotten, "").replace("&&", "&").rstrip("&"))
    assert whole.fingerprint != without.fingerprint
    assert not torch.allclose(codes(whole), codes(without), rtol=1e-3)


def of(settings: InputSettings, known: tuple[int | None, ...] = (), size: int | None = None) -> Encoder:
    return encoder_of(nn.Flatten(), "mine", settings, known, size)


def test_a_layout_in_a_file_becomes_channels_first():
    assert of(InputSettings(layout="nhwc", mean="0", std="1"), (224, 160, 3)).domain.shape == (3, 224, 160)
    assert of(InputSettings(layout="nhwc", crop="8x6", mean="0", std="1"), (None, None, 3)).domain.shape == (3, 8, 6)


def test_a_crop_fills_open_sizes_and_contradicts_no_others():
    assert of(InputSettings(crop="8", resize="10"), (1, None, None)).geometry == Geometry(10, (8, 8))
    with pytest.raises(HoldfastError, match="crop=8"):
        of(InputSettings(crop="8"), (1, 6, 6))


@pytest.mark.parametrize(
    "settings",
    [
        {"channels": "brg"},
        {"layout": "chw"},
        {"interpolation": "cubic"},
        {"resize": "big"},
        {"resize": "0"},
        {"resize": "4x4"},  # less than the input
        {"crop": "1x2x3"},
    ],
)
def test_wrong_statements_are_refused_by_value(settings):
    with pytest.raises(HoldfastError) as caught:
        of(replace(InputSettings(), **settings), (1, 6, 6))
    assert next(iter(settings.values())).partition("x")[0] in str(caught.value)


def test_statements_about_images_are_refused_elsewhere():
    statements: tuple[dict[str, Any], ...] = ({"channels": "bgr"}, {"layout": "nhwc"}, {"resize": "8"}, {"crop": "8"})
    for settings in statements:
        with pytest.raises(HoldfastError, match="leave"):
            of(replace(InputSettings(), **settings), (16,))


def test_a_factory_that_states_its_inputs_takes_no_others():
    with pytest.raises(HoldfastError, match="resize, channels"):
        load("python:tests.encoders.factories:stated?channels=bgr&resize=9")


def test_sizes_are_positive():
    assert pair("224x160") == (224, 160)
    for wrong in ("", "-3", "x", "1.5"):
        with pytest.raises(HoldfastError):
            pair(wrong)
