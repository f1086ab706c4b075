"""``hf:facebook/dinov2-small@revision?pool=cls``: vision models of the Hugging Face hub or of a local directory.

Weights are read from safetensors alone, and a weight that the files do not hold is an error, never a random draw.
Normalisation, size and crop come from ``preprocessor_config.json``. Codes are

- ``cls``: the class token of the last hidden state (the default where the model has one),
- ``mean``: the mean of its patch tokens, or of its feature map (the default elsewhere),
- ``pooler``: what the model itself calls its pooled output;

or, with ``?tokens=patch``, all patch tokens or places of the feature map, one after another.

Masked autoencoders see all patches: as published, they drop most of them at random even outside training.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.encoders.huggingface_images import images_of
from holdfast.encoders.reference import Options, first_line, require, split
from holdfast.encoders.torchvision_operators import declare_missing_operators
from holdfast.encoders.wrappers import PATCH, check_pooling, check_tokens, dense, pool

SOURCE = "hf"
CLASS_TOKENS = ("cls_token", "class_embedding")
POOLINGS = {
    "cls": "cls, the class token of the last hidden state",
    "mean": "mean of the patch tokens or the feature map",
    "pooler": "pooler, the model's own pooled output",
    PATCH: "none, all patch tokens",
}
PREFIX_TOKENS = (*CLASS_TOKENS, "distillation_token")


@dataclass(frozen=True)
class Settings:
    """Settings of a Hugging Face reference."""

    pool: str | None = None
    tokens: str | None = None
    """``patch``: the code is all patch tokens instead of one vector."""


def load(name: str, options: Options) -> Encoder:
    """Return the model of a local directory, or of the hub: ``owner/name`` or ``owner/name@revision``."""
    name, settings = split(name, Settings)
    check_tokens(settings.tokens, settings.pool)
    repository, revision = _repository(name)
    model = _model(repository, revision, settings.pool, options)
    images = images_of(repository, revision, model.config, options.size)
    vision = Vision(model, settings.tokens or settings.pool, resized=options.size is not None)
    return Encoder(
        dense(vision, images.domain, name) if settings.tokens else vision,
        name,
        images.domain,
        mean=images.mean,
        std=images.std,
        geometry=images.geometry,
        pooling=POOLINGS[vision.how],
    )


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
    model, report = _read(repository, revision, options)
    missing = set(map(str, report["missing_keys"]))
    if hasattr(model, "vision_model"):  # a model of images and text
        model = model.vision_model
        missing = {key.partition("vision_model.")[2] for key in missing if "vision_model." in key}
    if how != "pooler" and any(key.startswith("pooler.") for key in missing):
        # Checkpoints without the unused pooler are common; drawn at random it would change the fingerprint every time.
        model.pooler = None
        missing = {key for key in missing if not key.startswith("pooler.")}
    if missing or report["mismatched_keys"]:
        bad = sorted(map(str, {*missing, *report["mismatched_keys"]}))
        raise HoldfastError(
            f"{repository!r} lacks or misfits {len(bad)} weights ({', '.join(bad[:4])} ...); get a whole one"
        )
    return model


def _read(repository: str, revision: str | None, options: Options) -> tuple[Any, dict[str, Any]]:
    """Return the model and the report of which weights the files lack."""
    declare_missing_operators()
    transformers = require("transformers", "huggingface")
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # its table of missing weights becomes one error of ours
    try:
        return transformers.AutoModel.from_pretrained(
            repository,
            revision=revision,
            use_safetensors=True,
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
            dtype=torch.float32,
        )
    except Exception as error:  # the hub's clients raise errors of many libraries
        advice = "check the name, the network and that it holds model.safetensors"
        if "trust_remote_code" in str(error):
            advice = "it runs code of its own: read that code, then pass --trust-remote-code"
        raise HoldfastError(f"cannot load {repository!r}: {first_line(error)}; {advice}") from error
    finally:
        logging.set_verbosity(before)


class Vision(nn.Module):
    """A Hugging Face vision model as a map from normalised pixels to one vector per image, or to its patch tokens."""

    def __init__(self, model: nn.Module, how: str | None, resized: bool) -> None:
        super().__init__()
        parameter_names = {key.rpartition(".")[2] for key in model.state_dict()}
        has_class = bool(parameter_names & set(CLASS_TOKENS))
        self.how = how or ("cls" if has_class else "mean")
        if self.how != PATCH:
            check_pooling(self.how, ("cls", "mean", "pooler") if has_class else ("mean", "pooler"))
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
