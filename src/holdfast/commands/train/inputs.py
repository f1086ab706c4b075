"""What a training begins with: images, a bank, their shape, and the module with its first weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.commands.inputs import at_hand
from holdfast.core.copies import copied
from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.data.reading.remembered import Remembered
from holdfast.encoders.architectures.loaded import trainable
from holdfast.execution.request.loading import select
from holdfast.protocol.bank import apart
from holdfast.training.recipe import Recipe
from holdfast.transforms.base import transformed


@dataclass(frozen=True, eq=False)
class Inputs:
    """What an encoder is trained on, and from."""

    images: Images
    bank: Images | None
    """Labelled images to look for neighbours among, none of which is trained on."""
    domain: Domain
    start: Encoder | None
    """The encoder that training goes on from."""


def load_inputs(recipe: Recipe, place: Mapping[str, Any], start: Encoder | None, remembered: Remembered) -> Inputs:
    """Return what ``place`` names, loaded; the bank without copies of training images, ``remembered`` files unread.

    Raises:
        HoldfastError: something is not named, does not exist or does not fit.
    """
    if place["images"] is None:
        raise HoldfastError('training needs images; name them with --images, or as images = "photos/" in the file')
    named = at_hand(place["images"])
    domain = _domain(recipe, named, place, start)
    geometry = start.geometry if start is not None else None
    taught = select(named, domain, geometry, limit=place["limit"], seed=recipe.seed, remembered=remembered)
    original = taught
    if place["transform"] is not None:
        taught = transformed(taught, place["transform"], recipe.seed)
    if place["bank"] is None:
        return Inputs(taught, None, domain, start)
    bank = select(at_hand(place["bank"]), domain, geometry, remembered=remembered)
    if bank.labels is None:
        raise HoldfastError(f"the bank {bank.name} has no labels, so its neighbours say nothing; leave --bank out")
    return Inputs(taught, apart(bank, original), domain, start)


def _domain(recipe: Recipe, named: str | Images, place: Mapping[str, Any], start: Encoder | None) -> Domain:
    if start is not None:
        return start.domain
    if isinstance(named, Images):
        return Domain(tuple(named.pixels([0]).shape[1:]))
    size, channels = place["size"], place["channels"] or 3
    if size is None:
        raise HoldfastError("how large are the inputs? name it with --size, as in --size 32")
    if channels not in (1, 3):
        raise HoldfastError(f"images have 1 or 3 channels, got {channels}")
    return Domain((channels, int(size), int(size)))


def mode_of(recipe: Recipe, start: Encoder | None) -> str:
    """Return the mode in which the encoder learns: that of the recipe, or else what suits where training starts.

    In ``train`` mode a trained network with batch norm is another one than the network that is attacked and used: codes of
    both modes may have next to nothing in common. Where no batch norm has any statistics yet, there is nothing to keep.
    """
    if recipe.mode is not None or start is None:
        return recipe.mode or "train"
    norms = [part for part in start.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return "train" if norms and all(map(_is_fresh, norms)) else "eval"


def _is_fresh(norm: nn.modules.batchnorm._BatchNorm) -> bool:
    """Return whether the running statistics, if there are any, are those that batch norm begins with."""
    mean, variance = norm.running_mean, norm.running_var
    return mean is None or variance is None or (not bool(mean.any()) and bool((variance == 1).all()))


def module_of(recipe: Recipe, inputs: Inputs) -> nn.Module:
    """Return the module to train, its random weights drawn by the recipe's seed."""
    torch.manual_seed(recipe.seed)
    if inputs.start is not None:
        # Convolutions of trained networks, depthwise ones above all, take half the time so: EfficientNet-Lite0 at 64 pixels
        # 8 ms an image forward and backward instead of 18, in batches of 32 on one thread.
        return laid_out(trainable(copied(inputs.start.module)), torch.channels_last)
    domain = inputs.domain
    if len(recipe.mean) not in (0, 1, domain.shape[0]):
        raise HoldfastError(
            f"mean and std have {len(recipe.mean)} numbers, and images {domain.shape[0]} channels; give one of each per "
            "channel"
        )
    module = recipe.architecture.build(domain)
    return Normalised(module, recipe.mean, recipe.std, len(domain.shape)) if recipe.mean else module


def laid_out(module: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Return ``module`` with the weights of its convolutions in that order in memory, which their maps then follow."""
    for weight in module.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=layout)
    return module
