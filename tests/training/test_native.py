"""Views cut from images at their own size: what crops show, with which draws, and where they are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import holdfast as hf
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.data import by_name as data
from holdfast.training.feed import Feed, as_stored, crops, first_crop
from holdfast.training.recipe import Recipe, views_of
from holdfast.transforms.augmentations.cropping import RandomResizedCrop
from holdfast.transforms.base import Transform, transformed, transforms
from holdfast.transforms.everyday import Gamma

CROPPED = sorted(
    name
    for name, kind in transforms().items()
    if "view" in name and str(getattr(kind(), "chain", "")).startswith("random-res")
)
SIZE = 24


def recipe(native: bool, augmentation: str, **settings: object) -> Recipe:
    asked = {"objective": "simclr", "architecture": "small-resnet", "augmentation": augmentation, "native": native}
    return Recipe.of({**asked, "batch": 4, "epochs": 1, **settings})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes with stripes of one pixel, which no picture resized to 24 pixels has."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(6):
        stripes = np.zeros((96 + 16 * number, 128, 3), np.uint8)
        stripes[:, number % 2 :: 2] = 255
        Image.fromarray(stripes).save(folder / f"{number}.png")
    return folder


def test_there_are_views_that_begin_with_a_crop() -> None:
    assert {"simclr-view", "moco-v2-view", "byol-view-1", "dino-local-view"} <= {*CROPPED}


@pytest.mark.parametrize("name", [*CROPPED, "random-resized-crop:scale_min=0.2 + horizontal-flip"])
def test_images_of_the_input_size_get_the_same_views(name: str) -> None:
    pixels = torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    images, domain = Images(pixels), Domain((3, SIZE, SIZE))
    native, usual = (recipe(of, name, second_augmentation="byol-view-2") for of in (True, False))
    feed = Feed(images, domain, 4, 7, torch.device("cpu"), native.augmentations)
    (rows, cut), *_ = feed.epoch(3)
    noise = feed.noise.fork("epoch", 3)[rows]
    for ours, expected in zip(views_of(cut, native, noise), views_of(pixels[rows], usual, noise), strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)


def test_crops_are_those_of_pillow(photos: Path) -> None:
    images, crop = data.load(str(photos), Domain((3, SIZE, SIZE))), RandomResizedCrop()
    noise = Noise.of(0, images.ids)
    found = crops(images.source, range(6), [crop], noise, (SIZE, SIZE))
    assert found.shape == (6, 1, 3, SIZE, SIZE)
    for row, name in enumerate(images.ids):
        picture = Image.open(photos / name)
        _, drawn, _ = first_crop(crop, noise[row : row + 1].fork("view", 0))
        top, left, height, width = map(int, crop.boxes(drawn, picture.height, picture.width)[0])
        part = picture.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        expected = torch.from_numpy(np.array(part)).permute(2, 0, 1).int()
        assert int((found[row, 0].int() - expected).abs().max()) <= 1


def test_native_crops_keep_what_resizing_blurs(photos: Path) -> None:
    images = data.load(str(photos), Domain((3, SIZE, SIZE)))
    small = "random-resized-crop:scale_min=0.03,scale_max=0.04,ratio=1"
    noise = Noise.of(0, images.ids)
    sharp = crops(images.source, range(6), [Transform.read(small)], noise, (SIZE, SIZE))[:, 0] / 255
    blurred = Transform.read(small).applied(images.pixels(range(6)), noise.fork("view", 0))
    assert float(sharp.std()) > 0.2 > 0.05 > float(blurred.std())


def test_images_are_changed_before_they_are_cut(photos: Path) -> None:
    images = data.load(str(photos), Domain((3, SIZE, SIZE)))[[4, 1]]
    stored, dark = as_stored(images.source, 1), as_stored(transformed(images, "gamma:5").source, 1)
    assert stored.shape == (3, 112, 128)
    assert torch.equal(dark, Gamma(5.0)(stored[None] / 255, Noise.of(0, ["1.png"]))[0])


@pytest.mark.parametrize(
    "augmentation", ["none", "noise:0.1", "horizontal-flip + random-resized-crop", "rvcl-cifar-view"]
)
def test_views_that_begin_otherwise_are_refused(augmentation: str) -> None:
    with pytest.raises(HoldfastError, match="random-resized-crop"):
        recipe(True, augmentation)


def test_training_sees_native_crops(photos: Path) -> None:
    pytest.importorskip("lightning_fabric")
    made = [
        hf.train(recipe(native, "simclr-view"), photos, size=SIZE, progress=False) for native in (True, True, False)
    ]
    assert made[0].fingerprint == made[1].fingerprint != made[2].fingerprint


def test_older_trainings_have_the_same_settings() -> None:
    assert "native" not in recipe(False, "simclr-view").plain()
    assert recipe(True, "simclr-view").plain()["native"] is True
