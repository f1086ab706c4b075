"""``timm:resnet50.a1_in1k``: models of pytorch-image-models without their classifier, pooled as timm pools them.

Normalisation, input size, interpolation and crop come from the model's own pretrained configuration.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from math import floor
from typing import Any

from torch import nn

from holdfast.core.encoder import Domain, Encoder, Geometry
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.encoders.inputs import known_interpolation
from holdfast.encoders.reference import Options, first_line, require, split
from holdfast.encoders.torchvision_operators import declare_missing_operators
from holdfast.encoders.wrappers import seeded

SOURCE = "timm"


@dataclass(frozen=True)
class Settings:
    """Settings of a timm reference."""

    pretrained: bool = True
    seed: int = 0
    """Of the random weights, when ``pretrained`` is false."""


def load(name: str, options: Options) -> Encoder:
    """Return the timm model ``name``, as in ``resnet18`` or ``resnet18?pretrained=false&seed=1``."""
    name, settings = split(name, Settings)
    declare_missing_operators()
    timm = require("timm", "vision")
    if not name.startswith("hf-hub:") and not timm.is_model(name):
        close = get_close_matches(name, timm.list_models() + timm.list_pretrained(), n=5, cutoff=0.5)
        raise HoldfastError(f"timm has no model {name!r}; nearest: {', '.join(close) or 'none'}")
    model = seeded(lambda: _create(timm, name, settings.pretrained, options.size), settings.seed)
    config = timm.data.resolve_model_data_config(model)
    channels, height, width = config["input_size"]
    if options.size:
        height = width = options.size
    return Encoder(
        model.eval(),
        name,
        Domain((channels, height, width)),
        mean=config["mean"],
        std=config["std"],
        geometry=_geometry(name, config, (height, width)),
        pooling=_pooling(model),
    )


def _pooling(model: nn.Module) -> str:
    """Return timm's word for its pooling (``avg``, ``token``, ``map`` ...), which models keep in one of two places."""
    pool = getattr(model, "global_pool", None) or getattr(getattr(model, "head", None), "global_pool", None)
    kind = pool if isinstance(pool, str) else getattr(pool, "pool_type", None)
    return f"{kind}, by timm" if kind else "inside the module"


def _create(timm: Any, name: str, pretrained: bool, size: int | None) -> nn.Module:
    extra = {"num_classes": 0}
    try:
        fixed = getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "fixed_input_size", False)
        if size and fixed:  # only models with position tables take a size; timm resamples the tables to it
            extra["img_size"] = size
        return timm.create_model(name, pretrained=pretrained, **extra)
    except Exception as error:  # the hub's clients raise errors of many libraries
        raise HoldfastError(
            f"timm cannot load {name!r}: {first_line(error)}; check the tag and the network, or add ?pretrained=false"
        ) from error


def _geometry(name: str, config: dict[str, Any], crop: tuple[int, int]) -> Geometry:
    if config["crop_mode"] != "center":
        warnings.warn(
            f"{name} was trained on images fitted by {config['crop_mode']!r}; here the centre is cropped instead",
            HoldfastWarning,
            stacklevel=3,
        )
    return Geometry(floor(min(crop) / config["crop_pct"]), crop, known_interpolation(config["interpolation"], name))
