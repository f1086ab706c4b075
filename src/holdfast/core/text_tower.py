"""Text towers: embeddings of texts in the space of the images, for models that were trained on both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.core.fingerprint import fingerprint

TOGETHER = 256
"""Texts that are encoded at a time."""
KNOWN_TEXT = "The quick brown fox jumps over the lazy dog, 0123456789."
"""Whose tokens tell tokenizers apart."""


@dataclass(frozen=True, eq=False)
class TextModel:
    """Text tower that was loaded: a network and its tokenizer."""

    module: nn.Module
    """Network from tokens to embeddings (n, d)."""
    tokenize: Callable[[list[str]], Mapping[str, Tensor]]
    """Function from texts to the arguments of ``module``, each of shape (n, ...)."""
    scale: float
    """Factor from cosine similarities to logits."""


class TextTower:
    """Text half of a model of images and text; ``load`` reads it at its first use."""

    def __init__(self, load: Callable[[], TextModel]) -> None:
        self.load = load

    def __getstate__(self) -> dict[str, Any]:
        """Hand a worker what reads the tower, not the tower."""
        return {"load": self.load}

    @cached_property
    def model(self) -> TextModel:
        """Return the tower, frozen and in eval mode."""
        model = self.load()
        model.module.eval().requires_grad_(False)
        return model

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides text embeddings and logits.

        That is: weights, structure, tokenizer and scale.
        """
        tokens = {name: values.tolist() for name, values in self.model.tokenize([KNOWN_TEXT]).items()}
        return fingerprint(self.model.module, tokens, self.model.scale)

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Float[Tensor, "n d"]:
        """Embed ``texts``, before normalisation to unit norm.

        Raises:
            HoldfastError: The embeddings are not finite.
        """
        batches = [list(texts[start : start + TOGETHER]) for start in range(0, len(texts), TOGETHER)]
        codes = torch.cat([self.model.module(**self.model.tokenize(batch)) for batch in batches]).float()
        if bad := [text for text, code in zip(texts, codes, strict=True) if not code.isfinite().all()]:
            raise HoldfastError(f"the code of the text {bad[0]!r} is not finite; check the weights of the text tower")
        return codes
