"""``timm:resnet50.a1_in1k``: models of pytorch-image-models without their classifier, pooled as timm pools them.

Normalisation, input size, interpolation and crop come from the model's own pretrained configuration. Weights are timm's,
those of a folder that timm saved (``local-dir:FOLDER``), or those of a file with the names timm gives them. Of transformers
``?pool=cls`` and ``?pool=mean`` take the class token or the mean of the patch tokens, and ``?tokens=patch`` all of these.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from math import floor
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.geometry import Geometry
from holdfast.encoders.loading.inputs import known_interpolation
from holdfast.encoders.loading.reference import Options, existing, first_line, require, split
from holdfast.encoders.loading.torchvision_operators import declare_missing_operators
from holdfast.encoders.loading.weights import Weights, WeightSettings, fit, read_weights, weights_only
from holdfast.encoders.wrappers import PATCH, POOLINGS, check_pooling, check_tokens, dense, pool, seeded

SOURCE = "timm"
FOLDER = "local-dir:"
IN_FOLDER = ("model.safetensors", "pytorch_model.bin")
"""What timm calls the weights that it saves beside a ``config.json``."""


@dataclass(frozen=True)
class Settings(WeightSettings):
    """Settings of a timm reference."""

    weights: str | None = None
    """A file of weights under timm's names, safetensors or a state dict, instead of timm's own."""
    pretrained: bool = True
    seed: int = 0
    """Of the random weights, when ``pretrained`` is false."""
    pool: str | None = None
    """``cls`` or ``mean`` of the last tokens, instead of how timm pools them."""
    tokens: str | None = None
    """``patch``: the code is all patch tokens instead of one vector."""


def load(name: str, options: Options) -> Encoder:
    """Return the timm model ``name``, as in ``resnet18`` or ``resnet18?pretrained=false&seed=1``."""
    name, settings = split(name, Settings)
    check_tokens(settings.tokens, settings.pool)
    declare_missing_operators()
    timm = require("timm", "vision")
    if not name.startswith(("hf-hub:", FOLDER)) and not timm.is_model(name):
        close = get_close_matches(name, timm.list_models() + timm.list_pretrained(), n=5, cutoff=0.5)
        raise HoldfastError(f"timm has no model {name!r}; nearest: {', '.join(close) or 'none'}")
    path = _file(name, settings) if settings.pretrained else None
    timms_own = settings.pretrained and path is None
    model = seeded(lambda: _create(timm, name, timms_own, options.size), settings.seed)
    if path is not None:
        model.load_state_dict(_weights(path, settings, model))
    config = timm.data.resolve_model_data_config(model)
    channels, height, width = config["input_size"]
    if options.size:
        height = width = options.size
    domain = Domain((channels, height, width))
    how = settings.tokens or settings.pool
    return Encoder(
        _of_tokens(model.eval(), how, name, domain) if how else model.eval(),
        name,
        domain,
        mean=config["mean"],
        std=config["std"],
        geometry=_geometry(name, config, (height, width)),
        pooling=f"{how} of the last tokens" if how else _pooling(model),
    )


def _of_tokens(model: nn.Module, how: str, name: str, domain: Domain) -> nn.Module:
    prefix: Any = getattr(model, "num_prefix_tokens", None)
    if prefix is None:
        raise HoldfastError(f"timm's {name!r} is no transformer with tokens of patches; leave out pool and tokens")
    if how == PATCH:
        return dense(LastTokens(model, how, prefix), domain, name)
    check_pooling(how, POOLINGS if prefix else ("mean",))
    return LastTokens(model, how, prefix)


class LastTokens(nn.Module):
    """The tokens of a timm transformer after its last layer, pooled or not."""

    def __init__(self, model: nn.Module, how: str, prefix: int) -> None:
        super().__init__()
        self.model, self.how, self.prefix = model, how, prefix
        self.train(model.training)

    def extra_repr(self) -> str:
        return f"{self.how}, prefix={self.prefix}"

    def forward(self, pixels: Tensor) -> Tensor:
        model: Any = self.model
        return pool(model.forward_features(pixels), self.how, self.prefix)


def _pooling(model: nn.Module) -> str:
    """Return timm's word for its pooling (``avg``, ``token``, ``map`` ...), which models keep in one of two places."""
    pool = getattr(model, "global_pool", None) or getattr(getattr(model, "head", None), "global_pool", None)
    kind = pool if isinstance(pool, str) else getattr(pool, "pool_type", None)
    return f"{kind}, by timm" if kind else "inside the module"


def _file(name: str, settings: Settings) -> Path | None:
    """Return the file whose weights are meant; None where timm brings its own."""
    if settings.weights is not None:
        return existing(settings.weights)
    if settings.key or settings.prefix or settings.drop:
        raise HoldfastError(
            f"key, prefix and drop choose among the weights of a file; {name!r} needs ?weights=FILE too"
        )
    if not name.startswith(FOLDER):
        return None
    folder = Path(name.removeprefix(FOLDER)).expanduser()
    if not (folder / "config.json").is_file():
        raise HoldfastError(
            f"'{folder}' has no config.json; expected a folder that timm's save_for_hf or push_to_hf_hub wrote"
        )
    file = next((folder / file for file in IN_FOLDER if (folder / file).is_file()), None)
    if file is None:
        raise HoldfastError(f"'{folder}' has neither {' nor '.join(IN_FOLDER)}; say which file: ?weights=FILE")
    return file


def _weights(path: Path, settings: Settings, model: nn.Module) -> Weights:
    """Return the tensors of ``path`` for ``model``, without those of the classifier that it lacks."""
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    classifier = config.get("classifier") or ()
    heads = tuple(f"{head}." for head in ((classifier,) if isinstance(classifier, str) else classifier))
    kept = {key: value for key, value in read_weights(path, settings).items() if not (heads and key.startswith(heads))}
    return fit(kept, model, str(path), "name the model that they belong to, with timm's names for its weights")


def _create(timm: Any, name: str, pretrained: bool, size: int | None) -> nn.Module:
    extra = {"num_classes": 0}
    try:
        fixed = getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "fixed_input_size", False)
        if size and fixed:  # only models with position tables take a size; timm resamples the tables to it
            extra["img_size"] = size
        with weights_only():
            return timm.create_model(name, pretrained=pretrained, **extra)
    except Exception as error:  # the hub's clients raise errors of many libraries
        advice = "check the tag and the network, or give a file, ?weights=FILE, or random weights, ?pretrained=false"
        if name.startswith(FOLDER):
            advice = "check the folder, which must hold the config.json that timm saved"
        raise HoldfastError(f"timm cannot load {name!r}: {first_line(error)}; {advice}") from error


def _geometry(name: str, config: dict[str, Any], crop: tuple[int, int]) -> Geometry:
    if config["crop_mode"] != "center":
        warnings.warn(
            f"{name} was trained on images fitted by {config['crop_mode']!r}; here the centre is cropped instead",
            HoldfastWarning,
            stacklevel=3,
        )
    return Geometry(floor(min(crop) / config["crop_pct"]), crop, known_interpolation(config["interpolation"], name))
