"""What holds for every transform there is, and what each of a kind must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.transforms.base import Chain, Transform, transformed, transforms
from tests.facts import refused

PARAMETERS = {
    "gamma": "0.4",
    "global-shuffle": "grid=4",
    "local-shuffle": "grid=4",
    "low-pass": "5",
    "high-pass": "5",
    "horizontal-flip": "p=0.7",
    "grayscale": "p=0.3",
    "solarize": "p=0.38",
    "color-jitter": "p=1",
    "gaussian-blur": "p=1",
}
"""Settings for what is no family with rungs, such that "c" is changed, and "a" in another way or not at all; common
corruptions have severity 5."""
IDS = ["a", "b", "c"]


def severe(name: str) -> Transform:
    """Return a transform of this name that certainly changes something."""
    ladder = transforms()[name].family()
    own = PARAMETERS.get(name, "" if "augmentations" in transforms()[name].__module__ else "5")
    return ladder[-1] if ladder else Transform.read(f"{name}:{own}")


def photographs(channels: int, side: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return three images with edges, colours and flat parts, on the 8-bit grid."""
    noise = Noise.of(7, IDS)
    rough = noise.uniform((channels, 7, 7))
    smooth = torch.nn.functional.interpolate(rough, (side, side), mode="bicubic").clamp(0, 1)
    smooth[:, :, : side // 3] = noise.fork("flat").uniform((channels, 1, 1))
    return ((smooth * 255).round() / 255).to(dtype)


EVERY = sorted(transforms())
FAMILIES = [name for name in EVERY if transforms()[name].family()]


def test_the_catalogue_holds_what_is_promised():
    nine = {"jpeg", "brightness", "contrast", "hue-saturation", "blur", "noise", "resize", "rotation", "crop"}
    assert nine == set(FAMILIES)
    assert {"gamma", "global-shuffle", "local-shuffle", "low-pass", "high-pass"} <= set(EVERY)
    assert len([name for name in EVERY if name.endswith("-c")]) == 15 + 4


@pytest.mark.parametrize("name", EVERY)
def test_the_text_is_read_back(name: str):
    transform = severe(name)
    assert Transform.read(str(transform)) == transform


@pytest.mark.parametrize("side", [28, 32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", EVERY)
def test_pixels_stay_pixels(name: str, channels: int, side: int):
    for dtype in (torch.float32, torch.float64):
        pixels = photographs(channels, side, dtype)
        kept = pixels.clone()
        changed = severe(name)(pixels, Noise.of(0, IDS))
        assert changed.shape == pixels.shape
        assert changed.dtype == dtype
        assert 0 <= changed.min() <= changed.max() <= 1
        assert torch.equal(pixels, kept), "the argument was written to"


@pytest.mark.parametrize("name", EVERY)
def test_images_are_changed_one_by_one(name: str):
    transform, pixels = severe(name), photographs(3, 32)
    together = transform(pixels, Noise.of(0, IDS))
    assert not torch.equal(together, pixels), "vacuous fixture"
    alone = torch.cat([transform(pixels[[row]], Noise.of(0, [IDS[row]])) for row in range(3)])
    turned = transform(pixels.flip(0), Noise.of(0, IDS[::-1])).flip(0)
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together, turned, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_precisions_agree(name: str):
    single, double = (
        severe(name)(photographs(3, 32, dtype), Noise.of(0, IDS)) for dtype in (torch.float32, torch.float64)
    )
    assert float((single - double).abs().max()) < 1e-4


@pytest.mark.parametrize("name", EVERY)
def test_the_seed_decides_what_is_drawn_and_nothing_else_does(name: str):
    transform, pixels = severe(name), photographs(3, 32)
    once, again, other = (transform(pixels, Noise.of(seed, IDS)) for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert torch.equal(once, other) != transform.draws


@pytest.mark.parametrize("name", [name for name in EVERY if transforms()[name].draws])
def test_equal_images_are_changed_in_their_own_ways(name: str):
    pixels = photographs(3, 32)[[0, 0]]
    changed = severe(name)(pixels, Noise.of(0, ["a", "c"]))
    assert not torch.equal(changed[0], changed[1])


@pytest.mark.parametrize("name", EVERY)
def test_images_of_224_pixels_are_changed(name: str):
    pixels = photographs(3, 224)[:1]
    changed = severe(name)(pixels, Noise.of(0, ["c"]))
    assert changed.shape == pixels.shape
    assert not torch.equal(changed, pixels)


def test_devices_agree(device: str):
    if device == "cpu":
        pytest.skip("compares a GPU with the CPU: give --device cuda")
    pixels = photographs(3, 96, torch.float64)
    for name in EVERY:
        here = severe(name)(pixels, Noise.of(0, IDS))
        there = severe(name)(pixels.to(device), Noise.of(0, IDS, device)).cpu()
        assert torch.allclose(here, there, atol=1e-6), name


@pytest.mark.parametrize("name", EVERY)
def test_rectangles_of_any_size_are_changed(name: str):
    pixels = photographs(3, 48)[:, :, :32]
    assert severe(name)(pixels, Noise.of(0, IDS)).shape == pixels.shape


@pytest.mark.parametrize("name", FAMILIES)
def test_ladders_rise_from_the_identity(name: str):
    pixels, noise = photographs(3, 32), Noise.of(0, IDS)
    changes = [float((rung(pixels, noise) - pixels).abs().mean()) for rung in transforms()[name].family()]
    assert changes[0] == 0
    assert changes == sorted(changes)
    assert changes[-1] > 0.01


@pytest.mark.parametrize(
    "text", ["gamma:1", "global-shuffle:grid=1", "local-shuffle:grid=32", "low-pass:64", "high-pass:1", "high-pass:0"]
)
def test_identities(text: str):
    pixels, changed = photographs(3, 32), Transform.read(text)(photographs(3, 32), Noise.of(0, IDS))
    tolerance = 1e-6 if "pass" in text else 0  # the Fourier transform rounds
    assert float((changed - pixels).abs().max()) <= tolerance


def test_a_chain_is_its_parts_one_after_the_other():
    pixels, noise = photographs(3, 32), Noise.of(0, IDS)
    chain = Transform.read("contrast:0.4+gamma:0.5")
    assert isinstance(chain, Chain)
    assert str(chain) == "contrast:0.4 + gamma:0.5"
    assert Transform.read(str(chain)) == chain
    first, second = Transform.read("contrast:0.4"), Transform.read("gamma:0.5")
    assert torch.equal(chain(pixels, noise), second(first(pixels, noise), noise))
    assert not torch.equal(chain(pixels, noise), first(second(pixels, noise), noise)), "vacuous fixture"


def test_equal_parts_of_a_chain_draw_anew():
    grey = torch.full((1, 1, 64, 64), 0.5, dtype=torch.float64)
    twice = Transform.read("noise:0.02 + noise:0.02")(grey, Noise.of(0, ["a"]))
    assert float(twice.std()) == pytest.approx(0.02 * 2**0.5, rel=0.05)


def test_transformed_images_are_known_by_what_changed_them():
    images = Images(photographs(3, 32), ids=IDS, labels=torch.tensor([0, 1, 0]))
    seen = {
        transformed(images, Transform.read(text), seed).fingerprint
        for text, seed in [
            ("noise:0.1", 0),
            ("noise:0.1", 1),
            ("noise:0.2", 0),
            ("gamma:2", 0),
            ("noise:0.1 + gamma:2", 0),
        ]
    }
    assert len(seen | {images.fingerprint}) == 6
    changed = transformed(images, Transform.read("noise:0.1"))
    assert changed.ids == images.ids
    assert changed.labels is images.labels
    assert torch.equal(changed[[2]].pixels([0]), changed.pixels([2]))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("gamma:0", "(0, inf)"),
        ("gamma:-1", "(0, inf)"),
        ("global-shuffle:grid=0", "[1, inf)"),
        ("jpeg:0", "[1, 100]"),
        ("jpeg:101", "[1, 100]"),
        ("brightness:2", "[-1, 1]"),
        ("contrast:-1", "[0, inf)"),
        ("hue-saturation:2", "[0, 1]"),
        ("blur:-0.1", "[0, 1]"),
        ("noise:-1", "[0, inf)"),
        ("resize:0", "(0, 1]"),
        ("rotation:400", "[-360, 360]"),
        ("crop:1", "[-1, 1)"),
        ("low-pass:0", "(0, inf]"),
        ("low-pass", "needs radius, as in low-pass:8"),
        ("fog-c", "needs severity, as in fog-c:SEVERITY"),
        ("high-pass:-1", "[0, inf]"),
        ("gama:2", "Did you mean 'gamma'"),
        ("gamma:2 + ", "nknown name ''"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, fact: str):
    with refused(HoldfastError, fact):
        Transform.read(text)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_pixels_out_of_range_are_refused(value: float):
    pixels = torch.full((1, 1, 4, 4), 0.5)
    pixels[0, 0, 2, 2] = value
    with pytest.raises(HoldfastError, match=r"gamma:2.0 changes pixels in \[0, 1\], got values from"):
        Transform.read("gamma:2")(pixels, Noise.of(0, ["a"]))


def test_vectors_are_no_images():
    with pytest.raises(HoldfastError, match="gamma"):
        Transform.read("gamma:2")(torch.zeros(2, 5), Noise.of(0, ["a", "b"]))
