"""``hf:facebook/dinov2-small@revision?pool=cls``: vision models of the Hugging Face hub or of a local directory.

Weights are read from safetensors alone, and a missing weight is an error, never a random draw. Pictures are resized and
cropped by the model's own image processor, whose normalisation becomes part of the encoder. Embeddings are

- ``cls``: the class token of the last hidden state (the default where the model has one),
- ``mean``: the mean of its patch tokens, or of its feature map (the default elsewhere),
- ``pooler``: the model's own pooled output,
- ``projected``: the output that a model of images and text compares with texts, which can then be encoded too;

or, with ``?tokens=patch``, all patch tokens or places of the feature map, one after another.

Masked autoencoders get all patches: as published, they drop most of them at random even outside training.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, check_known
from holdfast.core.text_tower import TextTower
from holdfast.encoders.by_name import Options, split
from holdfast.encoders.huggingface.files import architecture, images_of, read_model, text_model
from holdfast.encoders.wrappers import PATCH, check_result, check_tokens, dense, pool

SOURCE = "hf"
PROJECTED = "projected"
CLASS_TOKENS = ("cls_token", "class_embedding")
POOLINGS = {
    "cls": "cls, the class token of the last hidden state",
    "mean": "mean of the patch tokens or the feature map",
    "pooler": "pooler, the model's own pooled output",
    PATCH: "none, all patch tokens",
    PROJECTED: "projected to where images and texts meet",
}
SCALES = ("logit_scale", "temperature")
"""Parameters of models that compare images with texts, one of which each has."""
TEXT_PARTS = ("text_model", "text_projection")
PREFIX_TOKENS = (*CLASS_TOKENS, "distillation_token")


@dataclass(frozen=True)
class Settings:
    """Settings of a Hugging Face reference."""

    pool: str | None = None
    """Pooling of tokens; None for the model's own."""
    tokens: str | None = None
    """``patch``: dense embeddings of all patch tokens instead of one vector."""


def load(name: str, options: Options) -> Encoder:
    """Vision model of a local directory, or of the hub: ``owner/name`` or ``owner/name@revision``."""
    name, settings = split(name, Settings)
    check_tokens(settings.tokens, settings.pool)
    repository, revision = _repository(name)
    resized, projected = options.size is not None, settings.pool == PROJECTED
    module: Any
    if projected:
        module = Projected(_together(repository, revision, options), resized)
    else:
        module = Vision(_model(repository, revision, settings.pool, options), settings.tokens or settings.pool, resized)
    accepted = set(inspect.signature(module.model.forward).parameters)
    images = images_of(repository, revision, getattr(module.model.config, "num_channels", 3), accepted, options)
    domain = images.domain
    check_result(module, name, domain, settings.tokens)
    how = PROJECTED if projected else module.how
    texts = projected and module.with_texts and TextTower(partial(text_model, repository, revision, options))
    module = dense(module, domain, name) if settings.tokens else module
    return images.encoder(module, name, pooling=POOLINGS[how], texts=texts or None)


def _repository(name: str) -> tuple[str, str | None]:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder), None
    if name.startswith((".", "/", "~")):
        raise HoldfastError(f"there is no folder {name!r}; name a folder saved by save_pretrained, or owner/name")
    repository, _, revision = name.partition("@")
    return repository, revision or None


def _model(repository: str, revision: str | None, how: str | None, options: Options) -> nn.Module:
    """Return the part of the model that sees, with every weight it uses read from the files."""
    model, report = read_model(repository, revision, options)
    missing = set(map(str, report["missing_keys"]))
    if hasattr(model, "vision_model"):  # a model of images and text
        model = model.vision_model
        missing = {key.partition("vision_model.")[2] for key in missing if "vision_model." in key}
    if how != "pooler" and any(key.startswith("pooler.") for key in missing):
        # Checkpoints without the unused pooler are common; drawn at random it would change the fingerprint every time.
        model.pooler = None
        missing = {key for key in missing if not key.startswith("pooler.")}
    _check_whole(repository, missing, report)
    return model


def _together(repository: str, revision: str | None, options: Options) -> nn.Module:
    """Return the model that brings images and texts together, without what it needs for texts alone."""
    saved = architecture(repository, revision, options)
    # AutoModel leaves the projection of a vision model out.
    kind = saved if saved.endswith("VisionModelWithProjection") else "AutoModel"
    model, report = read_model(repository, revision, options, kind)
    together = hasattr(model, "get_image_features") and any(hasattr(model, scale) for scale in SCALES)
    if kind == "AutoModel" and not together:
        raise HoldfastError(
            f"{type(model).__name__} of {repository!r} compares no images with texts, so it has no projection; leave out "
            f"pool={PROJECTED}"
        )
    for part in TEXT_PARTS:
        if hasattr(model, part):
            setattr(model, part, nn.Identity())
    texts = tuple(f"{part}." for part in TEXT_PARTS)
    _check_whole(repository, {key for key in map(str, report["missing_keys"]) if not key.startswith(texts)}, report)
    return model


def _check_whole(repository: str, missing: set[str], report: dict[str, Any]) -> None:
    if missing or report["mismatched_keys"]:
        bad = sorted(map(str, {*missing, *report["mismatched_keys"]}))
        raise HoldfastError(
            f"{repository!r} lacks or misfits {len(bad)} weights ({', '.join(bad[:4])} ...); get a whole one"
        )


class Projected(nn.Module):
    """Image half of a model of images and text, projected as for comparison with texts."""

    def __init__(self, model: Any, resized: bool) -> None:
        super().__init__()
        self.with_texts = hasattr(model, "get_image_features")
        accepts = inspect.signature(model.get_image_features if self.with_texts else model.forward).parameters
        self.extra = {"interpolate_pos_encoding": True} if resized and "interpolate_pos_encoding" in accepts else {}
        self.model = model.eval()
        self.eval()

    def extra_repr(self) -> str:
        return f"{self.extra}"

    def forward(self, pixels: Tensor) -> Tensor:
        model: Any = self.model
        if not self.with_texts:
            return model(pixel_values=pixels, **self.extra).image_embeds
        codes = model.get_image_features(pixel_values=pixels, **self.extra)
        return codes if isinstance(codes, Tensor) else codes.pooler_output


class Vision(nn.Module):
    """Hugging Face vision model from normalised pixels to one vector, or to patch tokens."""

    def __init__(self, model: nn.Module, how: str | None, resized: bool) -> None:
        super().__init__()
        parameter_names = {key.rpartition(".")[2] for key in model.state_dict()}
        has_class = bool(parameter_names & set(CLASS_TOKENS))
        self.how = how or ("cls" if has_class else "mean")
        if self.how != PATCH:
            check_known("pool", self.how, ("cls", "mean", "pooler") if has_class else ("mean", "pooler"))
        registers = getattr(model.config, "num_register_tokens", 0) or 0
        self.prefix = len(parameter_names & set(PREFIX_TOKENS)) + (registers if has_class else 0)
        accepts = inspect.signature(model.forward).parameters
        self.extra: dict[str, Any] = {}
        if resized and "interpolate_pos_encoding" in accepts:
            self.extra["interpolate_pos_encoding"] = True
        # Masked autoencoders leave most patches out, other ones each time and outside training, too.
        config: Any = model.config
        self.unmasked = "noise" in accepts and hasattr(config, "mask_ratio")
        if self.unmasked:
            config.mask_ratio = 0.0
            self.patch = int(config.patch_size)
        self.model = model.eval()
        self.eval()

    def extra_repr(self) -> str:
        return f"pool={self.how}, prefix={self.prefix}, {self.extra}" + (", unmasked" if self.unmasked else "")

    def forward(self, pixels: Tensor) -> Tensor:
        order: dict[str, Tensor] = {}
        if self.unmasked:  # the patches in their own order, which is otherwise drawn
            patches = prod(size // self.patch for size in pixels.shape[2:])
            order["noise"] = torch.arange(patches, device=pixels.device).expand(len(pixels), -1)
        out = self.model(pixel_values=pixels, **self.extra, **order)
        if self.how != "pooler":
            return pool(out.last_hidden_state, self.how, self.prefix)
        pooled = getattr(out, "pooler_output", None)
        if pooled is None:
            raise HoldfastError(f"{type(self.model).__name__} has no pooled output; use ?pool=cls or ?pool=mean")
        return pooled.flatten(1)
