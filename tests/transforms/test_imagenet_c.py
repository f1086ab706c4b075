"""Common corruptions against slow programs written from the published definitions, given equal draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import Transform, transforms
from holdfast.transforms.imagenet_c.noise_and_blur import counts
from holdfast.transforms.imagenet_c.weather_and_digital import BrightnessC, crystals
from tests.transforms.published import PUBLISHED
from tests.transforms.test_laws import photographs

EVERY = sorted(name for name in transforms() if name.endswith("-c"))
TOLERANCE = {"pixelate-c": 1.01 / 255}
"""The definition of pixelate works on 8 bits; all others agree up to rounding."""


def both(name: str, severity: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an image corrupted by the library and by the published definition."""
    pixels = photographs(3, side, torch.float64)[:1]
    noise = Noise.of(0, ["a"])
    ours = Transform.read(f"{name}:{severity}")(pixels, noise)[0].permute(1, 2, 0).numpy()
    slow, at_224, at_32 = PUBLISHED[name]
    c = (at_32 if side == 32 else at_224)[severity - 1]
    if name == "elastic-transform-c" and side != 32:  # whose lengths are shares of the size
        c = [length * side / 224 for length in c]
    x = pixels[0].permute(1, 2, 0).numpy()
    return ours, np.clip(slow(x.copy(), noise.fork("transform", name), c), 0, 1)


@pytest.mark.parametrize("side", [32, 88])
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_corruptions_are_those_published(name: str, side: int):
    for severity in (1, 2, 3, 4, 5):
        ours, published = both(name, severity, side)
        assert np.abs(ours - published).max() <= TOLERANCE.get(name, 1e-6), severity


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_corruptions_are_those_published_at_224_pixels(name: str):
    for severity in (1, 2, 3, 4, 5):
        ours, published = both(name, severity, 224)
        assert np.abs(ours - published).max() <= TOLERANCE.get(name, 1e-6), severity


def test_all_but_frost_are_compared():
    assert set(EVERY) - set(PUBLISHED) == {"frost-c"}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("side", [32, pytest.param(224, marks=pytest.mark.slow)])
def test_every_severity_is_another_one(name: str, side: int):
    pixels, noise = photographs(3, side), Noise.of(0, ["a", "b", "c"])
    away = [
        float((Transform.read(f"{name}:{severity}")(pixels, noise) - pixels).abs().mean()) for severity in range(1, 6)
    ]
    assert min(away) > 0.001
    assert len(set(away)) >= 4  # those of motion blur at 32 pixels differ by weights of 0.0001
    rises = name.split("-")[0] in (
        "gaussian",
        "shot",
        "impulse",
        "speckle",
        "defocus",
        "zoom",
        "fog",
        "contrast",
        "jpeg",
    )
    assert away == sorted(away) or not rises


@pytest.mark.parametrize("side", [7, 84, 85])
def test_parameters_are_those_of_the_nearer_size(side: int):
    grey = torch.zeros(1, 1, side, side + 3, dtype=torch.float64)
    published = BrightnessC.at_32 if side < 85 else BrightnessC.at_224
    assert float(BrightnessC(2)(grey, Noise.of(0, ["a"])).mean()) == pytest.approx(published[1])


@pytest.mark.parametrize("severity", ["0", "6", "-1"])
def test_there_are_five_severities(severity: str):
    with pytest.raises(HoldfastError, match=r"fog-c.* \[1, 5\], got"):
        Transform.read(f"fog-c:{severity}")


def test_poisson_counts_are_exact_for_every_level():
    from scipy import stats

    for photons in (3, 60, 500):
        counted, start, most = counts(photons)
        assert (counted.diff() >= 0).all()
        for level in (0, 1, 128, 255):
            row = counted[level * most : (level + 1) * most] - level
            exact = stats.poisson.cdf(start[level].numpy() + np.arange(most), photons * level / 255)
            assert np.allclose(row, exact, atol=1e-12)


def test_poisson_noise_has_the_variance_of_its_mean():
    grey = torch.full((4, 3, 96, 96), 51 / 255, dtype=torch.float64)
    noisy = Transform.read("shot-noise-c:3")(grey, Noise.of(0, list("abcd")))
    assert float(noisy.mean()) == pytest.approx(0.2, abs=0.003)
    assert float(noisy.var()) == pytest.approx(0.2 / 12, rel=0.05)


def test_gray_images_keep_their_saturation():
    pixels = photographs(1, 32)
    assert torch.equal(Transform.read("saturate-c:5")(pixels, Noise.of(0, ["a", "b", "c"])), pixels)


def test_crystals_are_bright_ridges_on_a_darker_ground():
    layer = crystals(224, 224, Noise.of(0, ["a", "b"]), torch.float32)
    assert 0.4 <= float(layer.min()) < 0.45
    assert 0.9 < float(layer.max()) <= 1
    assert 0.5 < float(layer.mean()) < 0.7
