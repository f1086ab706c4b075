"""``open_clip:ViT-B-32?pretrained=laion2b_s34b_b79k``: models of OpenCLIP, with embeddings of images and texts.

Embeddings are the outputs that the model compares with texts, before they are scaled to unit norm. Images are resized and
cropped by OpenCLIP's own transform for the configuration of the weights.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, UnknownName, check_known, explained
from holdfast.core.text_tower import TextModel, TextTower
from holdfast.encoders.by_name import Options, require, split
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.loading.library_transform import PreprocessingSettings, Recipe, recipe
from holdfast.encoders.loading.weights import weights_only
from holdfast.encoders.wrappers import seeded

SOURCE = "open_clip"
FILTERS = ("bilinear", "bicubic")
ELSEWHERE = ("hf-hub:", "local-dir:")
"""What names begin with that bring weights of their own."""


@dataclass(frozen=True)
class Settings(PreprocessingSettings):
    """Settings of an OpenCLIP reference."""

    pretrained: str | None = None
    """Tag of the model, file of weights, or ``false``."""
    projection: bool = True
    """True to project embeddings to the space that images and texts share; false for the pooled last layer."""
    seed: int = 0
    """Seed of random weights, if ``pretrained`` is ``false``."""


def load(name: str, options: Options) -> Encoder:
    """Image tower of ``ViT-B-32?pretrained=TAG``, ``hf-hub:owner/name`` or ``local-dir:FOLDER``."""
    name, settings = split(name, Settings)
    declare_missing_operators()
    open_clip = require("open_clip", "clip", "open_clip_torch")
    weights = _weights(open_clip, name, settings.pretrained)
    model = seeded(lambda: _create(open_clip, name, weights, options.size), settings.seed)
    images = recipe_of(open_clip, name, _config(name, settings, open_clip.get_model_preprocess_cfg(model)))
    tower: Any = model.visual
    tower.output_tokens = False  # captioning models return tokens beside the code
    if not settings.projection:
        _remove_projection(tower, name)
    unstated = weights is not None and Path(weights).is_file() and not name.startswith(ELSEWHERE)
    return images.encoder(
        tower.eval(),
        name,
        pooling=f"by open_clip, {'projected' if settings.projection else 'before the projection'}",
        caution=settings.missing(name, "open_clip") if unstated else "",
        texts=TextTower(partial(_texts, name, weights, settings.seed)) if settings.projection else None,
    )


def _config(name: str, settings: Settings, config: dict[str, Any]) -> dict[str, Any]:
    """Return OpenCLIP's ``config`` of images with what the reference states in its place."""
    changes: dict[str, Any] = settings.normalisation(name, 3)
    if settings.interpolation:
        check_known(f"interpolation of {name!r}", settings.interpolation, FILTERS)
        changes["interpolation"] = settings.interpolation
    if resize := settings.checked_resize(name, sizes=False):
        changes["resize_mode"] = resize
    return {**config, **changes}


def recipe_of(open_clip: Any, name: str, config: dict[str, Any]) -> Recipe:
    """Recipe of OpenCLIP's evaluation transform."""
    transform = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**config), is_train=False)
    numbers = [*config["mean"], *config["std"]]
    return recipe(name, "open_clip", "", config, lambda image: transform(image).numpy(), 3, numbers)


class TextHalf(nn.Module):
    """Text half of OpenCLIP's model, from tokens to embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.visual = nn.Identity()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        model: Any = self.model
        return model.encode_text(tokens)


def _texts(name: str, weights: str | None, seed: int) -> TextModel:
    declare_missing_operators()
    open_clip = require("open_clip", "clip", "open_clip_torch")
    model: Any = seeded(lambda: _create(open_clip, name, weights, None), seed)
    scale = float(model.logit_scale.detach().exp())
    with explained(f"open_clip cannot load the tokenizer of {name!r}", "check the network"), _quiet():
        tokenizer = open_clip.get_tokenizer(name)
    return TextModel(TextHalf(model), lambda texts: {"tokens": tokenizer(texts)}, scale)


def _weights(open_clip: Any, name: str, weights: str | None) -> str | None:
    """Return the tag or file to load; None stands for weights that the name brings itself, ``false`` for none."""
    if weights == "false":
        return weights
    if name.startswith(ELSEWHERE):
        if weights not in (None, "true"):
            raise HoldfastError(f"{name!r} brings its own weights; leave out pretrained={weights}")
        return None
    if open_clip.get_model_config(name.replace("/", "-")) is None:
        raise UnknownName("model of open_clip", name, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(name.replace("/", "-"))
    if weights is not None and Path(weights).expanduser().is_file():
        return str(Path(weights).expanduser())
    if weights is None or weights.lower().replace("-", "_") not in tags:  # as open_clip compares them
        wrong = "" if weights is None else f"{weights!r} is neither a file nor weights of it; "
        raise HoldfastError(
            f"say which weights of {name!r} are meant: {wrong}add ?pretrained= and one of {', '.join(tags) or 'no tags'}, "
            "a file, or false for random ones"
        )
    return weights


def _create(open_clip: Any, name: str, weights: str | None, size: int | None) -> nn.Module:
    untrained = weights == "false"
    tag = open_clip.get_pretrained_cfg(name.replace("/", "-"), weights) if weights and not untrained else {}
    fix = "check the weights and the network, or give a file: ?pretrained=PATH"
    with explained(f"open_clip cannot load {name!r}", fix), weights_only(), _quiet():
        return open_clip.create_model(
            name,
            pretrained=None if untrained else weights,
            load_weights=not untrained,
            require_pretrained=not untrained,  # else what cannot be downloaded is drawn at random
            pretrained_text=False,
            force_quick_gelu=bool(tag.get("quick_gelu")),  # the activation that the weights were trained with
            force_image_size=size,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Give the root logger a handler: open_clip logs to it, which would set up one that prints, for good."""
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)


def _remove_projection(tower: Any, name: str) -> None:
    """Remove the last linear map of ``tower``, of OpenCLIP's transformers or of a timm network that it wraps."""
    if getattr(tower, "proj", None) is not None:
        tower.proj = None
    elif isinstance(getattr(tower, "head", None), nn.Sequential) and hasattr(tower.head, "proj"):
        tower.head.proj = nn.Identity()
    else:
        raise HoldfastError(f"{name!r} has no projection to leave out: its pooling ends in it; use projection=true")
