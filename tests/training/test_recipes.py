"""Every recipe of the library trains, by name and by its command, on small images in the form that its data has."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands.train import read_recipe
from holdfast.encoders.architectures.resnet import ResNet18, ResNet50
from holdfast.training.objectives.contrastive import MoCoV2
from holdfast.training.recipe import read_settings, recipes
from tests.marks import rest_slow

pytest.importorskip("lightning_fabric")

BATCH, CLASSES = 20, 10
RNG = np.random.default_rng(0)


def idx(folder: Path) -> str:
    """Write MNIST's files for 60 images, as their authors do."""
    for split in ("train", "t10k"):
        for part, magic, shape in (("images-idx3", 0x803, (60, 28, 28)), ("labels-idx1", 0x801, (60,))):
            head = np.array([magic, *shape], ">u4").tobytes()
            values = RNG.integers(0, 256, shape) if part.startswith("images") else np.arange(60) % CLASSES
            (folder / f"{split}-{part}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())
    return f"torchvision:{folder}?split=train"


def batches(folder: Path) -> str:
    """Write CIFAR-10's pickles for 120 training images, as their authors do."""
    root = folder / "cifar-10-batches-py"
    root.mkdir()
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        content = {
            b"data": RNG.integers(0, 256, (24, 3072)).astype(np.uint8),
            b"labels": [k % CLASSES for k in range(24)],
        }
        (root / name).write_bytes(pickle.dumps(content))
    return f"torchvision:CIFAR10?root={folder}&split=train"


def photographs(folder: Path) -> str:
    """Write ImageNet's folders for 101 synsets, with JPEGs of several sizes."""
    for synset in range(101):
        for k in range(2 + (synset < 5)):
            path = folder / "train" / f"n{synset:08d}" / f"n{synset:08d}_{k}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(RNG.integers(0, 256, (72 + k, 90, 3)).astype(np.uint8)).save(path)
    return f"{folder / 'train'}?labels=folders"


FORMS: dict[str, Callable[[Path], str]] = {"mnist": idx, "cifar10": batches, "imagenet": photographs}
"""What a name of a recipe says of its data; the digits bring their own."""
SUBSETS = {
    "long-tail:most=1280,least=5": "long-tail:most=3,least=1",
    "long-tail:most=5000,least=50,profile=exponential": "long-tail:most=10,least=2,profile=exponential",
}
"""Subsets of whole data sets, and those of as few images as there are here."""


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: write(tmp_path_factory.mktemp(name)) for name, write in FORMS.items()}


@pytest.mark.parametrize("name", rest_slow(recipes(), fast=0))
def test_the_recipe_trains(name: str, forms: dict[str, str], tmp_path: Path) -> None:
    settings = read_settings(name)
    recipe, place = read_recipe(settings, {}, {})
    changed: dict[str, Any] = {"epochs": 1, "batch": BATCH}
    if isinstance(recipe.architecture, (ResNet18, ResNet50)):
        changed["architecture"] = f"{recipe.architecture.name}:width=8"  # a 64th of the work
    if isinstance(recipe.objective, MoCoV2):
        changed["objective"] = str(replace(recipe.objective, queue=2 * BATCH))
    chosen = [part for key, value in changed.items() for part in ("--set", f"{key}={value}")]
    (source,) = [value for form, value in forms.items() if form in name] or [str(place["images"])]
    if place["images"] is not None:
        chosen += ["--limit", "60"]
    if "imagenet" in name:
        chosen += ["--size", "64"]
    if place["subset"] in SUBSETS:
        chosen += ["--subset", SUBSETS[place["subset"]]]
    out = tmp_path / "made"
    assert run(["train", name, "--images", source, *chosen, "--out", str(out)]) == 0
    card = json.loads((out / "card.json").read_text())
    assert card["recipe"] == {**recipe.plain(), **changed, "mode": "train"}
    before, after = card["curve"]
    assert np.isfinite(after["loss"])
    assert before["spread"] != after["spread"], "vacuous: nothing was trained"
    encoder = hf.load_encoder(f"trained:{out}")
    side = 64 if "imagenet" in name else place["size"]
    assert encoder.domain.shape == (place["channels"], side, side)
    assert bool(torch.isfinite(encoder(torch.rand(2, *encoder.domain.shape))).all())


def test_every_form_has_recipes() -> None:
    assert {form for name in recipes() for form in (*FORMS, "digits") if form in name} == {*FORMS, "digits"}
    assert all(any(form in name for form in (*FORMS, "digits")) for name in recipes())


@pytest.mark.parametrize("name", recipes())
def test_queues_hold_whole_batches(name: str) -> None:
    """The trainings above have queues of two batches, so that of the recipe itself is looked at here."""
    recipe, _ = read_recipe(read_settings(name), {}, {})
    queue = getattr(recipe.objective, "queue", 0)
    assert queue % recipe.batch == 0
