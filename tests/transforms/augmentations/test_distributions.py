"""What is drawn has torchvision's distributions: crops, and how real photographs come out of whole pipelines."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from holdfast.core.noise import Noise
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.transforms.augmentations.cropping import RandomResizedCrop
from holdfast.transforms.base import Transform
from tests.transforms.augmentations.photographs import patches

declare_missing_operators()
pytest.importorskip("torchvision")
from torchvision.transforms import InterpolationMode, v2  # noqa: E402

LEAST = 1e-3
"""The p-value of Kolmogorov and Smirnov below which two samples differ; seeds are fixed."""


def noise(count: int) -> Noise:
    return Noise.of(0, [str(row) for row in range(count)])


def p_values(ours: Tensor, expected: Tensor) -> list[float]:
    """The p-value of each column."""
    return [float(ks_2samp(a, b).pvalue) for a, b in zip(ours.T.numpy(), expected.T.numpy(), strict=True)]


@pytest.mark.parametrize(
    ("height", "width", "scale"), [(32, 32, (0.08, 1.0)), (48, 24, (0.3, 1.0)), (12, 40, (1.0, 1.0))]
)
def test_crops(height: int, width: int, scale: tuple[float, float]):
    ours = RandomResizedCrop(*scale).boxes(noise(4000), height, width)
    drawn = v2.RandomResizedCrop(32, scale)
    image = torch.empty(3, height, width)
    boxes = [drawn.make_params([image]) for _ in range(1500)]
    expected = torch.tensor([[box[side] for side in ("top", "left", "height", "width")] for box in boxes])
    assert min(p_values(ours, expected.double())) > LEAST
    assert (ours[:, 2:] >= 1).all()
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= torch.tensor([height, width])).all()
    other = RandomResizedCrop(*scale, ratio=1.6).boxes(noise(4000), height, width)
    assert min(p_values(other, expected.double())) < LEAST, "vacuous fixture"


def changes(changed: Tensor, pixels: Tensor) -> Tensor:
    """How each image changed: brightness, spread, strength and angle of its colour, roughness, left against right."""
    kinds = [one.double() for one in (changed, pixels)]
    ratios = [torch.log((measure(kinds[0]) + 0.01) / (measure(kinds[1]) + 0.01)) for measure in MEASURES]
    angles = (hue(kinds[0]) - hue(kinds[1])).remainder(2 * torch.pi)
    return torch.stack([*ratios, angles, left(kinds[0]) - left(kinds[1])], 1)


MEASURES = (
    lambda pixels: pixels.mean((1, 2, 3)),
    lambda pixels: pixels.std((1, 2, 3)),
    lambda pixels: (pixels.amax(1) - pixels.amin(1)).mean((1, 2)),
    lambda pixels: pixels.diff(dim=-1).abs().mean((1, 2, 3)),
)


def hue(pixels: Tensor) -> Tensor:
    red, green, blue = pixels.mean((2, 3)).T
    return torch.atan2(3**0.5 * (green - blue), 2 * red - green - blue)


def left(pixels: Tensor) -> Tensor:
    return pixels[..., :16].mean((1, 2, 3)) - pixels[..., 16:].mean((1, 2, 3))


CROP, FLIP, GRAY = v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.RandomGrayscale(0.2)
BLUR = v2.GaussianBlur(3, (0.1, 2.0))


def sometimes(p: float, *jitter: float) -> v2.RandomApply:
    return v2.RandomApply([v2.ColorJitter(*jitter)], p)


PIPELINES = {
    "color-jitter:p=1": (v2.ColorJitter(0.4, 0.4, 0.4, 0.1), "color-jitter:p=1,hue=0.05"),
    "random-affine:translate=0.25": (
        v2.RandomAffine(15, (0.25, 0.25), (0.85, 1.15), interpolation=InterpolationMode.BILINEAR),
        "random-affine:scale=0",
    ),
    "gaussian-blur:p=1": (BLUR, "gaussian-blur:p=0.5"),
    "moco-cifar-view": (v2.Compose([CROP, FLIP, sometimes(0.8, 0.4, 0.4, 0.4, 0.1), GRAY]), "simclr-view"),
    "simclr-view": (
        v2.Compose([CROP, FLIP, sometimes(0.8, 0.8, 0.8, 0.8, 0.2), GRAY, v2.RandomApply([BLUR], 0.5)]),
        "simclr-view:strength=0.5,blur=0",
    ),
    "rvcl-cifar-view": (v2.Compose([sometimes(0.8, 0.4, 0.4, 0.4, 0.1), GRAY, FLIP, CROP]), "simclr-view"),
    "byol-view-2": (
        v2.Compose(
            [
                CROP,
                FLIP,
                sometimes(0.8, 0.4, 0.4, 0.2, 0.1),
                GRAY,
                v2.RandomApply([BLUR], 0.1),
                v2.RandomSolarize(0.5, 0.2),
            ]
        ),
        "simclr-view",
    ),
}


def compare(text: str) -> None:
    theirs, other = PIPELINES[text]
    pixels = patches(260)
    expected = changes(torch.stack([theirs(image) for image in pixels]), pixels)
    many = pixels.repeat(4, 1, 1, 1)
    assert min(p_values(changes(Transform.read(text)(many, noise(1040)), many), expected)) > LEAST
    unlike = changes(Transform.read(other)(many, noise(1040)), many)
    assert min(p_values(unlike, expected)) < LEAST, "vacuous fixture"


def test_color_jitter():
    compare("color-jitter:p=1")


@pytest.mark.slow
@pytest.mark.parametrize("text", PIPELINES)
def test_pipelines(text: str):
    compare(text)
