"""Everyday edits by hand."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import torch
from PIL import Image
from scipy import ndimage

from holdfast.core.noise import Noise
from holdfast.transforms.base import Transform


def change(text: str, pixels: torch.Tensor) -> torch.Tensor:
    return Transform.read(text)(pixels, Noise.of(0, [str(row) for row in range(len(pixels))]))


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_values_by_hand():
    pixels = torch.tensor([0.2, 0.6]).reshape(1, 1, 1, 2).double()
    expected = {"brightness:0.1": [0.3, 0.7], "brightness:-0.5": [0.0, 0.1], "contrast:0.5": [0.3, 0.5]}
    for text, values in expected.items():
        assert torch.allclose(change(text, pixels).flatten(), torch.tensor(values).double())


def test_hue_keeps_luma_and_greys():
    luma = torch.tensor([0.299, 0.587, 0.114]).double()
    pixels = random(2, 3, 8, 8) * 0.2 + 0.4
    changed = change("hue-saturation:1", pixels)
    assert torch.allclose((changed * luma[:, None, None]).sum(1), (pixels * luma[:, None, None]).sum(1), atol=1e-9)
    assert torch.allclose(change("hue-saturation:1", pixels[:, :1].expand(-1, 3, -1, -1)), pixels[:, :1], atol=1e-9)
    assert torch.equal(change("hue-saturation:1", pixels[:, :1]), pixels[:, :1])
    spread = [one.std(1).mean() for one in (pixels, changed)]
    assert spread[1] < 0.75 * spread[0]


def test_blur_is_the_gaussian_filter_of_scipy():
    pixels = random(2, 3, 40, 30)
    for sigma in (0.01, 0.04, 0.4):
        slow = ndimage.gaussian_filter(pixels.numpy(), (0, 0, sigma * 30, sigma * 30), mode="nearest")
        assert np.allclose(change(f"blur:{sigma}", pixels).numpy(), slow, atol=1e-12)


def test_noise_has_its_standard_deviation():
    noisy = change("noise:0.05", torch.full((4, 3, 32, 32), 0.5, dtype=torch.float64))
    assert abs(float(noisy.std()) - 0.05) < 0.001
    assert abs(float(noisy.mean()) - 0.5) < 0.002


def test_rotation_by_a_quarter_and_by_scipy():
    pixels = random(1, 2, 21, 21)
    assert torch.allclose(change("rotation:90", pixels), pixels.rot90(1, (2, 3)), atol=1e-9)
    slow = ndimage.rotate(pixels.numpy(), 10, axes=(3, 2), reshape=False, order=1, mode="constant")
    inner = np.s_[..., 5:-5, 5:-5]
    ours = change("rotation:10", pixels).numpy()
    assert min(np.abs(ours[inner] - slow[inner]).max(), np.abs(ours[inner] - slow[..., ::-1, :][inner]).max()) < 1e-6


def test_crop_enlarges_the_middle_and_pads_with_black():
    pixels = torch.zeros(1, 1, 40, 40).double()
    pixels[..., 10:30, 10:30] = 1
    assert change("crop:0.5", pixels)[..., 1:-1, 1:-1].min() == 1
    padded = change("crop:-1", pixels)
    assert padded[..., 16:24, 16:24].min() == 1
    assert padded[..., :14, :].max() == 0
    assert change("crop:-0.5", torch.ones(1, 1, 40, 40))[..., :5, :].max() == 0


def test_resize_keeps_slow_waves_and_loses_fast_ones():
    across = torch.arange(64, dtype=torch.float64)
    wave = {k: (0.5 + 0.5 * torch.cos(2 * torch.pi * k * across / 64)).expand(1, 1, 64, 64) for k in (2, 24)}
    left = {k: float(change("resize:0.25", wave[k]).std() / wave[k].std()) for k in wave}
    assert left[2] > 0.8
    assert left[24] < 0.1


def test_jpeg_is_what_pillow_makes_of_the_file():
    levels = (random(2, 3, 24, 17) * 255).to(torch.uint8)
    for channels in (1, 3):
        changed = change("jpeg:30", levels[:, :channels].double() / 255)
        for image, ours in zip(levels[:, :channels], changed, strict=True):
            array = image.permute(1, 2, 0).numpy()
            file = BytesIO()
            Image.fromarray(array[..., 0] if channels == 1 else array).save(file, "JPEG", quality=30)
            opened = np.atleast_3d(np.array(Image.open(file)))
            assert np.array_equal((ours * 255).round().permute(1, 2, 0).numpy(), opened)
