"""``torchvision:resnet50@IMAGENET1K_V2``: torchvision's classifiers without their last linear layer.

The head is removed by one rule: the last ``nn.Linear`` with as many outputs as there are classes becomes the identity, so
embeddings are the inputs of the classifier. Images are resized and cropped by the weights' own transforms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName, check_known, explained
from holdfast.encoders.by_name import Options, require, split
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.loading.library_transform import Recipe, recipe
from holdfast.encoders.loading.weights import weights_only
from holdfast.encoders.wrappers import seeded

SOURCE = "torchvision"
CLASSES = 1000


@dataclass(frozen=True)
class Settings:
    """Settings of a torchvision reference."""

    pretrained: bool = True
    seed: int = 0
    """Of the random weights, when ``pretrained`` is false."""


def load(name: str, options: Options) -> Encoder:
    """Return the torchvision model ``name[@weights]``; the weights are torchvision's default ones unless named."""
    name, settings = split(name, Settings)
    declare_missing_operators()
    models = require("torchvision", "vision").models
    architecture, _, tag = name.partition("@")
    known = models.list_models(module=models)
    check_known("classifier of torchvision", architecture, known)
    weights = _weights(models, architecture, tag)
    model = seeded(lambda: _create(models, architecture, weights if settings.pretrained else None), settings.seed)
    images = recipe_of(name, weights.transforms(), options.size)
    side = images.geometry.crop[0]
    expected = getattr(model, "image_size", side)  # vision transformers have one table of positions
    if expected != side:
        raise OutOfRange(f"--size of {architecture}", side, f"{expected}, its only size")
    module = without_head(model, architecture, CLASSES).eval()
    return images.encoder(module, name, pooling="as in the classifier, up to its last linear layer")


def recipe_of(name: str, transforms: Any, size: int | None) -> Recipe:
    """Return the recipe of the ``transforms`` of torchvision's weights; ``size`` overrides height and width."""
    side = transforms.crop_size[0]
    settings = {
        "crop_size": size or side,
        "resize_size": round(transforms.resize_size[0] * (size or side) / side),
        "interpolation": transforms.interpolation,
        "antialias": transforms.antialias,
    }
    numbers = {"mean": transforms.mean, "std": transforms.std}
    whole = type(transforms)(**settings, **numbers)
    return recipe(
        name, "torchvision", "", settings, lambda image: whole(image).numpy(), 3, [*transforms.mean, *transforms.std]
    )


def _weights(models: Any, architecture: str, tag: str) -> Any:
    known = models.get_model_weights(architecture)
    if tag and tag not in known.__members__:
        raise UnknownName(f"weights of {architecture}", tag, known.__members__)
    return known[tag] if tag else known.DEFAULT


def _create(models: Any, architecture: str, weights: Any) -> nn.Module:
    fix = "check the network, or add ?pretrained=false"
    with explained(f"torchvision cannot load {architecture}", fix), weights_only():
        return models.get_model(architecture, weights=weights)


def without_head(model: nn.Module, name: str, classes: int) -> nn.Module:
    """Return ``model`` with its last linear layer of ``classes`` outputs replaced by the identity.

    Example:
        >>> without_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)), "toy", 10)
        Sequential(
          (0): Linear(in_features=4, out_features=3, bias=True)
          (1): ReLU()
          (2): Identity()
        )
    """
    heads = [
        path for path, part in model.named_modules() if isinstance(part, nn.Linear) and part.out_features == classes
    ]
    if not heads:
        raise HoldfastError(
            f"{name} ends in no linear layer of {classes} outputs, so its head is unknown; "
            "cut it yourself and pass the module to holdfast.Encoder"
        )
    parent, _, child = heads[-1].rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())
    return model
