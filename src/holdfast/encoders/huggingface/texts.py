"""The text half of a Hugging Face model of images and text, with its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.core.text_tower import TextModel
from holdfast.encoders.huggingface.files import read_model
from holdfast.encoders.loading.reference import Options, first_line, require

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

    Args:
        repository: Repository of the hub, or local folder.
        revision: Revision of the repository; None for the default.
        options: Options of the caller.

    Raises:
        HoldfastError: Weights are missing, or there is no tokenizer.
    """
    model, report = read_model(repository, revision, options)
    if missing := sorted(key for key in map(str, report["missing_keys"]) if "vision_model." not in key):
        raise HoldfastError(
            f"{repository!r} lacks {len(missing)} weights of its text tower ({', '.join(missing[:4])} ...); get a whole one"
        )
    try:
        tokenizer = require("transformers", "huggingface").AutoTokenizer.from_pretrained(
            repository, revision=revision, trust_remote_code=options.trust_remote_code
        )
    except Exception as error:  # of many libraries
        raise HoldfastError(
            f"{repository!r} has no tokenizer that can be read ({first_line(error)}); save it beside the model with its "
            "save_pretrained"
        ) from error
    length = model.config.text_config.max_position_embeddings

    def tokenize(texts: list[str]) -> Mapping[str, Tensor]:
        tokens = tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        return {name: tokens[name] for name in TAKEN if name in tokens}

    scaled = getattr(model, "logit_scale", None)
    scale = 1 / model.temperature if scaled is None else scaled.exp()  # ALIGN divides
    return TextModel(TextHalf(model), tokenize, float(scale.detach()))
