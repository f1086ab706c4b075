"""``timm:resnet50.a1_in1k``: models of pytorch-image-models without their classifier, pooled as timm pools them.

Images are resized and cropped by timm's own transform for the model's pretrained configuration. Weights are timm's own,
those of a folder saved by timm (``local-dir:FOLDER``), or those of a file with timm's names. For transformers,
``?pool=cls`` and ``?pool=mean`` take the class token or the mean of the patch tokens, and ``?tokens=patch`` all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, check_known, existing, explained
from holdfast.encoders.by_name import Options, require, split
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.loading.library_transform import PreprocessingSettings, Recipe, recipe
from holdfast.encoders.loading.weights import Weights, WeightSettings, fit, read_weights, weights_only
from holdfast.encoders.wrappers import PATCH, POOLINGS, check_result, check_tokens, dense, pool, seeded

SOURCE = "timm"
HUB, FOLDER = "hf-hub:", "local-dir:"
CROP_MODES = {"shortest": "center", "longest": "border", "squash": "squash"}
"""As timm calls them."""
IN_FOLDER = ("model.safetensors", "pytorch_model.bin")
"""What timm calls the weights that it saves beside a ``config.json``."""


@dataclass(frozen=True)
class Settings(PreprocessingSettings, WeightSettings):
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
    brings = name.startswith((HUB, FOLDER))
    if not brings and not timm.is_model(name):
        close = get_close_matches(name, timm.list_models() + timm.list_pretrained(), n=5, cutoff=0.5)
        raise HoldfastError(f"timm has no model {name!r}; nearest: {', '.join(close) or 'none'}")
    path = _file(name, settings) if settings.pretrained else None
    timms_own = settings.pretrained and path is None
    at_once = options.size if not brings and path is None and _has_fixed_size(timm, name) else None
    model = seeded(lambda: _create(timm, name, timms_own, at_once), settings.seed)
    if path is not None:
        model.load_state_dict(_weights(path, settings, model))
    resample: Any = getattr(model, "set_input_size", None)  # the tables of positions
    if options.size and not at_once and resample:
        resample(img_size=(options.size, options.size))
    config = _config(name, settings, timm.data.resolve_model_data_config(model))
    images = recipe_of(name, config, config["input_size"][0], options.size)
    domain = images.domain
    how = settings.tokens or settings.pool
    module = _of_tokens(model.eval(), how, name, domain) if how else model.eval()
    if options.size:
        check_result(module, name, domain, settings.tokens)
    # A file for the plain name of a network may hold any weights; a tag or a folder says which.
    unstated = path is not None and not brings and "." not in name
    pooling = f"{how} of the last tokens" if how else _pooling(model)
    return images.encoder(module, name, pooling=pooling, caution=settings.missing(name, "timm") if unstated else "")


def recipe_of(name: str, config: dict[str, Any], channels: int, size: int | None) -> Recipe:
    """Return the recipe of timm's evaluation transform for ``config``; ``size`` overrides height and width."""
    timm = require("timm", "vision")
    if size:
        config = {**config, "input_size": (channels, size, size)}
    with explained(f"timm cannot prepare images for {name!r}", "state what it knows"):
        transform = timm.data.create_transform(**config, is_training=False)
    numbers = [*config["mean"], *config["std"]]
    return recipe(name, "timm", "", config, lambda image: transform(image).numpy(), channels, numbers)


def _of_tokens(model: nn.Module, how: str, name: str, domain: Domain) -> nn.Module:
    prefix: Any = getattr(model, "num_prefix_tokens", None)
    if prefix is None:
        raise HoldfastError(f"timm's {name!r} is no transformer with tokens of patches; leave out pool and tokens")
    if how == PATCH:
        return dense(LastTokens(model, how, prefix), domain, name)
    check_known("pool", how, POOLINGS if prefix else ("mean",))
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
        raise HoldfastError(f"key, prefix and drop choose among weights of a file; {name!r} needs ?weights=FILE too")
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


def _config(name: str, settings: Settings, config: dict[str, Any]) -> dict[str, Any]:
    """Return timm's ``config`` of images with what the reference states in its place."""
    channels, height, width = config["input_size"]
    changes: dict[str, Any] = settings.normalisation(name, channels)
    if settings.interpolation:
        changes["interpolation"] = settings.interpolation
    resize = settings.checked_resize(name, sizes=True)
    if resize in CROP_MODES:
        changes |= {"crop_mode": CROP_MODES[resize], "crop_pct": 1.0}
    elif resize:
        # Half a pixel keeps timm, which rounds down, from losing one.
        changes |= {"crop_mode": "center", "crop_pct": min(height, width) / (int(resize) + 0.5)}
    return {**config, **changes}


def _has_fixed_size(timm: Any, name: str) -> bool:
    try:
        return getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "fixed_input_size", False)
    except RuntimeError:  # no such tag, which creating the model tells
        return False


def _create(timm: Any, name: str, pretrained: bool, size: int | None) -> nn.Module:
    extra: dict[str, Any] = {"num_classes": 0} | ({"img_size": size} if size else {})
    advice = "check the tag and the network, or give a file, ?weights=FILE, or random weights, ?pretrained=false"
    if name.startswith(FOLDER):
        advice = "check the folder, which must hold the config.json that timm saved"
    with explained(f"timm cannot load {name!r}", advice), weights_only():
        return timm.create_model(name, pretrained=pretrained, **extra)
