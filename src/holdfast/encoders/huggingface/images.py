"""How a Hugging Face model wants its images: ``preprocessor_config.json`` as domain, normalisation and geometry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.geometry import Geometry, Interpolation
from holdfast.encoders.loading.reference import require

INTERPOLATIONS: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""As Pillow numbers them."""


@dataclass(frozen=True)
class ImageRecipe:
    """Shape and range of the inputs, normalisation, and how files are brought to them."""

    domain: Domain
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    geometry: Geometry


def images_of(repository: str, revision: str | None, config: Any, size: int | None) -> ImageRecipe:
    """Return the recipe in the ``repository`` of the hub or the local folder; ``size`` overrides height and width."""
    file = require("transformers", "huggingface").utils.cached_file(
        repository, "preprocessor_config.json", revision=revision, _raise_exceptions_for_missing_entries=False
    )
    if file is None:
        raise HoldfastError(
            f"{repository!r} has no preprocessor_config.json, so its normalisation is unknown; "
            "save the image processor beside the model with its save_pretrained"
        )
    with open(file, encoding="utf-8") as stream:
        return recipe(json.load(stream), repository, getattr(config, "num_channels", 3), size)


def recipe(config: dict[str, Any], repository: str, channels: int, size: int | None) -> ImageRecipe:
    """Return the recipe that the dictionary ``config`` spells.

    Example:
        >>> said = {"size": {"shortest_edge": 256}, "crop_size": 224, "do_normalize": False, "resample": 3}
        >>> recipe(said, "example", 3, None).geometry
        Geometry(resize=256, crop=(224, 224), interpolation='bicubic')
    """
    if config.get("do_rescale", True) and abs(config.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise HoldfastError(
            f"{repository!r} rescales bytes by {config['rescale_factor']}, not by 1/255; wrap the module yourself"
        )
    resized = config.get("size")
    crops = config.get("do_center_crop", "crop_size" in config) and config.get("crop_size")
    crop = _height_width(crops or resized, repository)
    resize = min(_height_width(resized or crops, repository))
    if (
        "crop_pct" in config and config["crop_pct"] and max(crop) < 384
    ):  # ConvNeXt crops below 384 pixels and squeezes above
        resize = int(resize / config["crop_pct"])
    if size:
        resize, crop = round(resize * size / min(crop)), (size, size)
    normalises = config.get("do_normalize", True)
    code = config.get("resample", 2)
    if code not in INTERPOLATIONS or (normalises and not (config.get("image_mean") and config.get("image_std"))):
        raise HoldfastError(
            f"{repository!r} states no usable image_mean, image_std and resample (got resample {code}); "
            "complete its preprocessor_config.json"
        )
    return ImageRecipe(
        Domain((channels, *crop)),
        tuple(config["image_mean"]) if normalises else None,
        tuple(config["image_std"]) if normalises else None,
        Geometry(resize, crop, INTERPOLATIONS[code]),
    )


def _height_width(size: Any, repository: str) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if isinstance(size, dict) and "shortest_edge" in size:
        return int(size["shortest_edge"]), int(size["shortest_edge"])
    if isinstance(size, dict) and {"height", "width"} <= set(size):
        return int(size["height"]), int(size["width"])
    raise HoldfastError(f"{repository!r} states no image size that is understood (got {size!r}); give --size")
