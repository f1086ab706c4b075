"""What a training looks up, and refuses, before its first step."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.training.loop.health import eval_codes
from holdfast.training.loop.views import resized
from holdfast.training.recipe import Recipe

SEARCHED = 2000
"""Images of the bank among which neighbours are looked for after each epoch."""


def classes_of(images: Images, recipe: Recipe) -> tuple[Int[Tensor, "n"] | None, int]:
    """Return the labels as 0, 1, ... and how many classes there are, if the images have labels."""
    if images.labels is None:
        if recipe.objective.needs_labels:
            raise HoldfastError(
                f"{recipe.objective} learns from labels, and {images.name} has none; name a labelled source "
                "(folder:photos?labels=folders), or choose an objective without labels"
            )
        return None, 0
    values, columns = torch.as_tensor(images.labels).unique(return_inverse=True)
    if recipe.objective.needs_labels and len(values) < 2:
        raise HoldfastError(
            f"all images of {images.name} have one label, so {recipe.objective} has nothing to tell apart"
        )
    return columns, len(values)


def watched_bank(bank: Images | None, domain: Domain) -> tuple[Pixels, Int[Tensor, "n"]] | None:
    """Return pixels and labels of the images of the bank among which neighbours are looked for, always the same ones."""
    if bank is None or bank.labels is None:
        return None
    order = Noise.of(0, bank.ids).fork("watched").uniform((1,))[:, 0].argsort()[:SEARCHED]
    return bank.pixels(order.tolist(), domain=domain), torch.as_tensor(bank.labels)[order]


def width_of(encoder: nn.Module, pixels: Pixels, crop_size: int | None = None) -> int:
    """Return how many features the codes have.

    Raises:
        HoldfastError: they are no vectors, or the network does not take crops of this size.
    """
    anchor = next(encoder.parameters(), pixels)
    pixels = pixels.to(anchor.device, anchor.dtype)
    codes = eval_codes(encoder, pixels)
    if codes.ndim != 2:
        raise HoldfastError(
            f"the encoder must give one vector per image, got shape {tuple(codes.shape)}; pool inside it"
        )
    if crop_size is not None:
        try:
            fits = eval_codes(encoder, resized(pixels, crop_size)).shape == codes.shape
        except (RuntimeError, ValueError, AssertionError):  # whatever a network of one size says to another
            fits = False
        if not fits:
            raise HoldfastError(
                f"the network does not take crops of {crop_size} x {crop_size} pixels, only its own inputs of "
                f"{' x '.join(map(str, pixels.shape[-2:]))}; leave crop_size out, or take one that pools over all places, "
                "such as small-resnet"
            )
    return codes.shape[1]


def check_batch_norm(learner: nn.Module, share: int) -> None:
    """Raise where batch norm would have to take the variance of one image."""
    norms = [part for part in learner.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if share == 1 and any(norm.training or norm.running_var is None for norm in norms):
        raise HoldfastError("batch norm needs at least 2 images in a batch of each process, got 1; raise batch")
