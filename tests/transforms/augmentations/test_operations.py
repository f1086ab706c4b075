"""Each operation, given what is drawn for it, is torchvision's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.transforms.augmentations import colour as color_jitter
from holdfast.transforms.augmentations import colour as gaussian_blur
from holdfast.transforms.augmentations import colour as solarize
from holdfast.transforms.augmentations import cropping as random_affine
from holdfast.transforms.augmentations import cropping as random_resized_crop
from holdfast.transforms.augmentations.colour import luma
from holdfast.transforms.base import Transform
from tests.facts import refused
from tests.transforms.augmentations.photographs import patches

declare_missing_operators()
pytest.importorskip("torchvision")
from torchvision.transforms import InterpolationMode  # noqa: E402
from torchvision.transforms.v2 import functional as theirs  # noqa: E402

WEIGHTS = 2e-4
"""Torchvision's luma: 0.2989 of the red, where the standard has 0.299, so that white is 0.9999."""


def close(ours: Tensor, expected: list[Tensor], tolerance: float = 1e-6) -> bool:
    return torch.allclose(ours, torch.stack(expected), atol=tolerance, rtol=0)


def draws(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64)


def test_hue_is_turned():
    pixels = patches(12)
    pixels[0] = pixels[0, :1]  # gray
    pixels[1] = (pixels[1] * 3).round() / 3  # channels that are equal, black and white
    turns = draws(12) - 0.5
    expected = [theirs.adjust_hue(image, float(turn)) for image, turn in zip(pixels, turns, strict=True)]
    assert close(color_jitter.hue_turned(pixels, turns), expected, 1e-5)
    assert torch.allclose(color_jitter.hue_turned(pixels, turns * 0), pixels, atol=1e-6)


def test_colours_are_jittered_in_the_order_of_each_image():
    pixels = patches(48)
    order = torch.stack([torch.randperm(4) for _ in pixels])
    factors = draws(48, 4) * 1.6
    factors[:, 3] = draws(48) - 0.5
    operations = [theirs.adjust_brightness, theirs.adjust_contrast, theirs.adjust_saturation, theirs.adjust_hue]
    expected = list(pixels)
    for row, image in enumerate(pixels):
        for operation in order[row].tolist():
            image = operations[operation](image, float(factors[row, operation]))
        expected[row] = image
    assert len({tuple(row.tolist()) for row in order}) > 15
    apart = color_jitter.jittered(pixels, factors, order) - torch.stack(expected)
    # Turned hues of almost gray pixels swing widely: a few pixels of many may be further off.
    assert float(apart.abs().flatten().quantile(0.999)) < 10 * WEIGHTS
    one_order = order[:1].expand_as(order)
    assert not close(color_jitter.jittered(pixels, factors, one_order), expected, 0.1), "vacuous fixture"


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 40)])
def test_crops_are_resized(height: int, width: int):
    pixels = patches(40)[:, :, :height].repeat(1, 1, 1, 2)[..., :width].double()
    size = 1 + torch.floor(draws(40, 2) * torch.tensor([height, width]))
    boxes = torch.cat([torch.floor(draws(40, 2) * (torch.tensor([height, width]) - size + 1)), size], 1)
    boxes[0] = torch.tensor([0, 0, height, width])
    expected = [
        theirs.resized_crop(image, *(int(value) for value in box), size=[height, width], antialias=True)
        for image, box in zip(pixels, boxes, strict=True)
    ]
    assert close(random_resized_crop.resized_crops(pixels, boxes), expected)


@pytest.mark.parametrize("reach", [1, 3, 12])
def test_blurs(reach: int):
    pixels, sigmas = patches(8).double(), 0.1 + 1.9 * draws(8)
    expected = [
        theirs.gaussian_blur(image, [2 * reach + 1] * 2, [float(sigma)] * 2)
        for image, sigma in zip(pixels, sigmas, strict=True)
    ]
    assert close(gaussian_blur.blurred(pixels, sigmas, reach), expected)


def test_affine_maps():
    pixels = patches(8).double()
    angles, scales = draws(8) - 0.5, 0.5 + draws(8)
    shifts = torch.floor(draws(8, 2) * 9) - 4
    expected = [
        theirs.affine(
            pixels[row],
            float(angles[row].rad2deg()),
            [int(shifts[row, 1]), int(shifts[row, 0])],
            float(scales[row]),
            [0.0, 0.0],
            InterpolationMode.BILINEAR,
        )
        for row in range(8)
    ]
    assert close(random_affine.moved(pixels, angles, scales, shifts), expected, 1e-4)


def test_gray_and_solarized_images():
    pixels = patches(4)
    assert torch.equal(solarize.solarized(pixels, 0.4), theirs.solarize(pixels, 0.4))
    gray = theirs.rgb_to_grayscale(pixels, 3)
    assert torch.allclose(luma(pixels).expand_as(pixels), gray, atol=WEIGHTS)


@pytest.mark.parametrize(("mode", "fill"), [("zeros", "constant"), ("reflect", "reflect")])
def test_crops_of_padded_images_are_of_all_places(mode: str, fill: str):
    pixels = patches(1).expand(600, -1, -1, -1)
    changed = Transform.read(f"random-crop:padding=2,padding_mode={mode}")(pixels, noise(600))
    padded = theirs.pad(pixels[0], [2], padding_mode=fill)
    places = {(top, left): theirs.crop(padded, top, left, 32, 32) for top in range(5) for left in range(5)}
    found = [place for image in changed for place, crop in places.items() if torch.equal(crop, image)]
    assert len(found) == 600
    counts = torch.tensor([found.count(place) for place in places]).double()
    assert float((counts - 24).square().sum() / 24) < 43  # chi-square with 24 degrees of freedom, p = 0.01


def noise(count: int) -> Noise:
    return Noise.of(0, [str(row) for row in range(count)])


@pytest.mark.parametrize("name", ["horizontal-flip", "grayscale", "solarize", "color-jitter", "gaussian-blur"])
def test_p_is_the_share_that_changes(name: str):
    pixels = patches(1).expand(1000, -1, -1, -1)
    changed = Transform.read(f"{name}:p=0.3")(pixels, noise(1000))
    share = float((changed != pixels).flatten(1).any(1).double().mean())
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 1000) ** 0.5
    assert torch.equal(Transform.read(f"{name}:p=0")(pixels, noise(1000)), pixels)


def test_no_strength_changes_nothing():
    text = "color-jitter:brightness=0,contrast=0,saturation=0,hue=0,p=1"
    assert torch.equal(Transform.read(text)(patches(9), noise(9)), patches(9))


def test_flips_are_flips():
    assert torch.equal(Transform.read("horizontal-flip:p=1")(patches(3), noise(3)), theirs.horizontal_flip(patches(3)))


def test_gray_images_have_no_colours_to_change():
    pixels = patches(3)[:, :1]
    for text in ("color-jitter:brightness=0,contrast=0,p=1", "grayscale:p=1"):
        assert torch.equal(Transform.read(text)(pixels, noise(3)), pixels), text
    assert not torch.equal(Transform.read("color-jitter:p=1")(pixels, noise(3)), pixels)


@pytest.mark.parametrize("text", ["color-jitter", "grayscale"])
def test_images_of_other_channels_have_no_colours(text: str):
    with pytest.raises(HoldfastError, match=rf"^{text} .* 1 or 3 channels, .*\(3, 2, 32, 32\)"):
        Transform.read(text)(patches(3)[:, :2], noise(3))


def test_images_too_small_to_reflect_are_refused():
    with pytest.raises(HoldfastError, match="reflects 4 pixels, which images of 3 x 32 do not have"):
        Transform.read("random-crop:padding_mode=reflect")(patches(3)[:, :, :3], noise(3))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("horizontal-flip:p=1.5", "[0, 1]"),
        ("color-jitter:p=-1", "[0, 1]"),
        ("color-jitter:hue=0.6", "[0, 0.5]"),
        ("color-jitter:contrast=-1", "[0, inf)"),
        ("random-crop:padding=0", "[1, inf)"),
        ("random-crop:padding_mode=edge", "reflect, zeros"),
        ("random-resized-crop:scale_min=0", "(0, 1]"),
        ("random-resized-crop:scale_min=0.5,scale_max=0.4", "scale_max=0.4"),
        ("random-resized-crop:ratio=0.5", "[1, inf)"),
        ("random-affine:degrees=200", "[0, 180]"),
        ("random-affine:scale=1", "[0, 1)"),
        ("random-affine:translate=2", "[0, 1]"),
        ("gaussian-blur:sigma_min=0", "(0, inf)"),
        ("gaussian-blur:kernel=2", "(0, 1]"),
        ("solarize:threshold=2", "[0, 1]"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, fact: str):
    with refused(HoldfastError, fact):
        Transform.read(text)
