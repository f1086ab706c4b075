"""How ``holdfast harden`` trains an encoder: the settings of FARE, adapted to fewer images and less time.

The optimiser is that of its authors (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336): AdamW, and a cosine after a
short warm-up. Their attack takes ten steps of a quarter of the radius. Here it takes two long steps, so training sees more
images in the same time. A small set of images is seen often, as random crops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from torch import nn

from holdfast.core.balls import Ball
from holdfast.core.encoder import Domain, Encoder
from holdfast.encoders.architectures.base import LoadedEncoder
from holdfast.training.adversaries.base import Adversary, GaussianNoise, OnLoss
from holdfast.training.adversaries.certified import Certified
from holdfast.training.adversaries.edits import Edits
from holdfast.training.objectives.teachers import Distillation
from holdfast.training.optimisers import AdamW, Cosine
from holdfast.training.recipe import Recipe
from holdfast.transforms.base import Transform

RATE, RATE_WITH_BATCH_NORM = 2e-5, 3e-4
"""The largest rate of networks without batch norm, as transformers are, and of those with it, which bear more."""
CLEAN = 1.0
"""Weight of the clean images. Without them codes of a network trained on ImageNet moved twice as far in as many steps."""
ATTACK_STEPS = 2
LOOKS, LEAST_EPOCHS = 10_000, 10
"""Least number of looks at images, and of epochs. Twice as many looks moved the codes of an
ImageNet network further from what they were (cosine similarity .884 instead of .902) than they gained."""
LEAST_BATCH, MOST_BATCH = 8, 128
"""The most is FARE's."""
STEPS = 2
"""Least number of steps in an epoch, where there are enough images."""
WARMUP = 0.07
"""Share of the epochs in which the rate rises."""
RAMP = 0.3
"""Share of the training in which the radius grows, where an agreement is promised."""
LEAST_SIDE = 32
"""Of smaller images, crops show too little."""
CROPS = "random-resized-crop:scale_min=0.25 + horizontal-flip"


def recipe_for(
    encoder: Encoder,
    count: int,
    ball: Ball | None,
    *,
    epochs: int | None = None,
    rate: float | None = None,
    certified: bool = False,
    noise: float | None = None,
    agreement: float | None = None,
    edits: Sequence[str] = (),
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Recipe:
    """Training recipe of ``harden`` for an encoder and a number of images.

    Args:
        encoder: Encoder to harden.
        count: Training images.
        ball: Perturbation set to resist; None with ``noise``: noise alone.
        epochs, rate: Epochs and learning rate; None chooses them by encoder and number of images.
        certified: True for certified training instead of attacks.
        noise: Standard deviation of the noise for the smoothed encoder, in pixel units; None without noise.
        agreement: Floor of the agreement with the original, in (0, 1); None without.
        edits: Families of edits, or single transforms, to resist instead of an attack.
        seed: Seed of the recipe.
        settings: Settings of the recipe by name, which replace all others; the warm-up follows the epochs.
    """
    batch = batch_of(count)
    epochs = epochs_of(count, batch) if epochs is None else epochs
    recipe = Recipe(
        objective=Distillation(clean=CLEAN) if agreement is None else Distillation(agreement=agreement),
        architecture=LoadedEncoder("hardened"),
        augmentation=crops_of(encoder.domain, epochs),
        adversary=adversary_of(ball, certified, noise, edits, ramp=0.0 if agreement is None else RAMP),
        optimiser=AdamW(rate=rate_of(encoder.module) if rate is None else rate, weight_decay=1e-4),
        batch=batch,
        epochs=epochs,
        seed=seed,
    )
    settings = settings or {}
    recipe = Recipe.of({**recipe.plain(), **settings})
    return (
        recipe if "schedule" in settings else replace(recipe, schedule=Cosine(warmup=round(WARMUP * recipe.epochs, 6)))
    )


def adversary_of(
    ball: Ball | None, certified: bool, noise: float | None, edits: Sequence[str] = (), ramp: float = 0.0
) -> Adversary:
    """Adversary for a ball, certified training or noise.

    Args:
        ball: Perturbation set; None with ``noise``: noise alone.
        certified: True for certified training.
        noise: Standard deviation of the noise in pixel units; None without noise.
        edits: Families of edits, or single transforms; empty for none.
        ramp: Fraction of the training over which the radius of an attack grows from 0.
    """
    if edits:
        return Edits.of(edits)
    if noise is not None:
        return GaussianNoise(sigma=noise) if ball is None else GaussianNoise(ball, ATTACK_STEPS, sigma=noise)
    assert ball is not None
    return Certified(ball) if certified else OnLoss(ball, steps=ATTACK_STEPS, ramp=ramp)


def batch_of(count: int) -> int:
    """Batch size for ``count`` training images: a power of two, for several steps per epoch.

    Example:
        >>> [batch_of(count) for count in (16, 116, 160, 800, 100_000)]
        [8, 32, 64, 128, 128]
    """
    target = max(LEAST_BATCH, count // STEPS)
    return min(MOST_BATCH, 2 ** (target.bit_length() - 1))


def epochs_of(count: int, batch: int) -> int:
    """Epochs of a training on ``count`` images.

    Args:
        count: Training images.
        batch: Images per step.

    Example:
        >>> epochs_of(116, 32), epochs_of(100_000, 128)
        (105, 10)
    """
    return max(LEAST_EPOCHS, ceil(LOOKS / max(batch, count - count % batch)))


def rate_of(module: nn.Module) -> float:
    """Return the largest learning rate that a network of this kind bears."""
    norms = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    return RATE_WITH_BATCH_NORM if norms else RATE


def crops_of(domain: Domain, epochs: int) -> Transform | None:
    """Random crops where training sees each image often; None where it sees many images.

    Args:
        domain: Shape and range of the inputs.
        epochs: Epochs of the training.
    """
    images = len(domain.shape) == 3 and min(domain.shape[1:]) >= LEAST_SIDE and (domain.low, domain.high) == (0, 1)
    return Transform.read(CROPS) if images and epochs > LEAST_EPOCHS else None
