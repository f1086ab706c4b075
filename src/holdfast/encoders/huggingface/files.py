"""The files of a Hugging Face model: safetensors weights, and the preprocessing of its image processor.

Also here: the text half of a model of images and text, with its tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError, explained, first_line
from holdfast.core.geometry import sizes
from holdfast.core.text_tower import TextModel
from holdfast.encoders.by_name import Options, require
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.loading.library_transform import Recipe, Whole, pixel_values, recipe


def architecture(repository: str, revision: str | None, options: Options) -> str:
    """Transformers class of the saved weights; empty if the configuration names none."""
    declare_missing_operators()
    transformers = require("transformers", "huggingface")
    try:
        config = transformers.AutoConfig.from_pretrained(
            repository, revision=revision, trust_remote_code=options.trust_remote_code
        )
    except Exception:  # loading the model tells what is wrong
        return ""
    return str((getattr(config, "architectures", None) or [""])[0])


def read_model(
    repository: str, revision: str | None, options: Options, kind: str = "AutoModel"
) -> tuple[Any, dict[str, Any]]:
    """Load a model, with the report of weights that its files lack.

    Raises:
        HoldfastError: The model cannot be loaded.
    """
    declare_missing_operators()
    transformers = require("transformers", "huggingface")

    def advice(error: Exception) -> str:
        if "trust_remote_code" in str(error):
            return "it runs code of its own: read that code, then pass --trust-remote-code"
        return "check the name, the network and that it holds model.safetensors"

    with explained(f"cannot load {repository!r}", advice), _silent():  # a table of missing weights becomes one error
        model, report = getattr(transformers, kind).from_pretrained(
            repository,
            revision=revision,
            use_safetensors=True,
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
            dtype=torch.float32,
        )
    for part in model.modules():
        if hasattr(part, "name_or_path"):  # else the folder would be part of the fingerprint
            part.name_or_path = part.config._name_or_path = ""
    return model, report


INSIDE = ("do_rescale", "do_normalize", "do_flip_channel_order", "include_top", "rescale_offset")
"""Steps that act on each channel alone, or order the channels: they belong inside the encoder."""
COVERED = ("do_resize", "do_center_crop", "do_convert_rgb", *INSIDE)
NAMES = ("image_processor_type", "processor_class")
SIZES = ("size", "crop_size", "pad_size")
OF_TIMM = "TimmWrapperImageProcessor"


def images_of(repository: str, revision: str | None, channels: int, accepted: set[str], options: Options) -> Recipe:
    """Recipe of the image processor of a repository.

    Args:
        accepted: Other arguments that the model accepts.
    """
    processor = _processor(repository, revision, options)
    if type(processor).__name__ == OF_TIMM:
        from holdfast.encoders.timm import recipe_of

        return recipe_of(repository, processor.data_config, channels, options.size)
    return recipe_of_processor(repository, processor, channels, accepted, options.size)


def recipe_of_processor(repository: str, processor: Any, channels: int, accepted: set[str], size: int | None) -> Recipe:
    """Recipe of an image processor of transformers.

    Args:
        accepted: Other arguments that the model accepts.
    """
    kind = type(processor)
    settings = json.loads(processor.to_json_string())
    settings = {key: value for key, value in settings.items() if key not in NAMES}
    with _silent():
        found = _recipe(repository, kind, settings, channels, accepted)
        if size and found.geometry.crop != (size, size):
            found = _recipe(repository, kind, _scaled(settings, found.geometry.crop, size), channels, accepted)
            if found.geometry.crop != (size, size):
                raise HoldfastError(
                    f"{repository!r} cannot take --size {size}: scaled to it, {kind.__name__} makes images of "
                    f"{sizes(found.geometry.crop)}; leave the size out"
                )
    return found


def _recipe(repository: str, kind: Any, settings: dict[str, Any], channels: int, accepted: set[str]) -> Recipe:
    numbers = [*_listed(settings.get("image_mean")), *_listed(settings.get("image_std"))]
    others = [step for step, on in settings.items() if step.startswith("do_") and on and step not in COVERED]
    resizing = {**settings, **{step: False for step in INSIDE if step in settings}}
    return recipe(
        repository,
        "transformers",
        f"{kind.__module__}:{kind.__qualname__}",
        resizing,
        _whole(kind(**settings), accepted),
        channels,
        numbers + [number / 255 for number in numbers],
        ", ".join(others),
        {**resizing, "do_rescale": True, "rescale_factor": 1 / 255} if settings.get("do_rescale") else None,
    )


def _processor(repository: str, revision: str | None, options: Options) -> Any:
    transformers = require("transformers", "huggingface")

    def advice(error: Exception) -> str:
        if isinstance(error, OSError) and "preprocessor_config.json" in str(error):
            return "without it the normalisation is unknown; save it beside the model with its save_pretrained"
        return 'state its class in preprocessor_config.json, as in "image_processor_type": "ViTImageProcessor"'

    with explained(f"the image processor of {repository!r} cannot be loaded", advice), _silent():
        return transformers.AutoImageProcessor.from_pretrained(
            repository, revision=revision, trust_remote_code=options.trust_remote_code
        )


def _whole(processor: Any, accepted: set[str]) -> Whole:
    def whole(picture: Any) -> Any:
        try:
            outputs = processor(picture, return_tensors="pt")
        except Exception as error:  # what a processor raises about a picture that it does not expect
            raise HoldfastError(f"it fails on a picture ({first_line(error)})") from error
        if not isinstance(outputs, Mapping):
            raise HoldfastError(f"it returns a {type(outputs).__name__} instead of named values")
        if also := sorted(accepted & {*outputs} - {"pixel_values"}):
            raise HoldfastError(f"it returns {', '.join(also)} beside the pixels, which the model takes")
        return pixel_values(outputs)

    return whole


def _scaled(settings: dict[str, Any], crop: tuple[int, int], size: int) -> dict[str, Any]:
    """Return ``settings`` with all sizes in proportion to a result of ``size`` instead of ``crop`` (height, width)."""

    def scale(key: str, value: Any) -> Any:
        side = crop[1] if key == "width" else crop[0]
        return round(value * size / side) if isinstance(value, int) else value

    changed = {
        key: {part: scale(part, value) for part, value in settings[key].items()}
        for key in SIZES
        if isinstance(settings.get(key), dict)
    }
    return {**settings, **changed}


def _listed(value: Any) -> list[float]:
    return [float(part) for part in value] if isinstance(value, list | tuple) else [value] if value else []


@contextmanager
def _silent() -> Iterator[None]:
    """Keep transformers from printing advice, tables and the progress of anything but downloads."""
    logging = require("transformers", "huggingface").utils.logging
    before, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging._tqdm_active = False  # disable_progress_bar would change those of downloads, which the caller may have set
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging._tqdm_active = progress


TAKEN = ("input_ids", "attention_mask")


class TextHalf(nn.Module):
    """Text half of the model, from tokens to embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.vision_model = nn.Identity()
        self.model = model

    def forward(self, **tokens: Tensor) -> Tensor:
        model: Any = self.model
        codes = model.get_text_features(**tokens)
        return codes if isinstance(codes, Tensor) else codes.pooler_output


def text_model(repository: str, revision: str | None, options: Options) -> TextModel:
    """Text half of a model of images and text, with its tokenizer.

    Raises:
        HoldfastError: Weights are missing, or there is no tokenizer.
    """
    model, report = read_model(repository, revision, options)
    if missing := sorted(key for key in map(str, report["missing_keys"]) if "vision_model." not in key):
        raise HoldfastError(
            f"{repository!r} lacks {len(missing)} weights of its text tower ({', '.join(missing[:4])} ...); get a whole one"
        )
    fix = "save it beside the model with its save_pretrained"
    with explained(f"{repository!r} has no tokenizer that can be read", fix):
        tokenizer = require("transformers", "huggingface").AutoTokenizer.from_pretrained(
            repository, revision=revision, trust_remote_code=options.trust_remote_code
        )
    length = model.config.text_config.max_position_embeddings

    def tokenize(texts: list[str]) -> Mapping[str, Tensor]:
        tokens = tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        return {name: tokens[name] for name in TAKEN if name in tokens}

    scaled = getattr(model, "logit_scale", None)
    scale = 1 / model.temperature if scaled is None else scaled.exp()  # ALIGN divides
    return TextModel(TextHalf(model), tokenize, float(scale.detach()))
