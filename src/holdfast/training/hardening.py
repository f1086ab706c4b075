"""How ``holdfast harden`` trains an encoder: FARE adapted to fewer images and less time, and the agreement it promises.

The optimiser is that of its authors (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336): AdamW, and a cosine after a
short warm-up. Their attack takes ten steps of a quarter of the radius. Here it takes two long steps, so training sees more
images in the same time. A small set of images is seen often, as random crops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Ball
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.records import Findings, Verdict
from holdfast.core.statistics.groups import group_mean_interval, numbered
from holdfast.encoders.architectures.base import LoadedEncoder
from holdfast.measure.observation import collapsed, estimate_of
from holdfast.training.adversaries.base import Adversary, GaussianNoise, OnLoss, in_training, untouched
from holdfast.training.adversaries.certified import Certified
from holdfast.training.adversaries.edits import Edits, worst
from holdfast.training.health import eval_codes
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
    """Random crops where training sees each image often; None where it sees many images."""
    images = len(domain.shape) == 3 and min(domain.shape[1:]) >= LEAST_SIDE and (domain.low, domain.high) == (0, 1)
    return Transform.read(CROPS) if images and epochs > LEAST_EPOCHS else None


# How far embeddings are still what they were, and whether a promised agreement with the original is kept.
#
# The promise: the mean cosine similarity to the original embeddings is at least a stated value. It is kept if the
# lower end of its 95% interval over held-out images is, and missed if the upper end is below. Between the two, it is
# not shown.

NAME, VERSION = "agreement", 1
"""Name of the number in reports, and version of its result."""
METHOD = "Student's, widened by skewness"
PART = 128
"""Images encoded at once."""
ATTACKED = 64
"""Most images that are attacked after each epoch."""
ATTACK = GradientAttack(steps=10, stride=0.25)
"""Attack that tells which epoch is the most robust."""


@final
@dataclass(frozen=True)
class Promise:
    """An agreement that was asked for, and what was reached on held-out images."""

    asked: float
    """Smallest mean cosine similarity to the original embeddings."""
    reached: float
    """Mean cosine similarity on images that neither training nor the choice of the epoch used."""
    low: float
    """Lower end of its 95% interval; with groups, over groups."""
    high: float
    """Upper end of its 95% interval."""
    n: int
    """Images measured."""

    @classmethod
    def of(cls, asked: float, cosines: Float[Tensor, "n"], groups: list[str] | None) -> Promise:
        """Check a promise.

        Args:
            asked: Smallest mean cosine similarity, in (0, 1).
            cosines: Cosine similarity of each image, shape (n,).
            groups: Name of the group of each image; None without groups.

        Example:
            >>> Promise.of(0.9, torch.tensor([0.95, 0.96, 0.94, 0.95]), None).status
            'kept'
        """
        values = cosines.double().cpu().numpy()
        which = np.arange(len(values)) if groups is None else numbered(np.array(groups))
        low, high = group_mean_interval(values, which, None)
        return cls(asked, float(values.mean()), max(-1.0, float(low)), min(1.0, float(high)), len(values))

    @property
    def kept(self) -> bool:
        """True if the lower end of the interval is at least what was asked."""
        return self.low >= self.asked

    @property
    def status(self) -> str:
        """``kept``, ``missed``, or ``not shown`` if the interval holds what was asked."""
        return "kept" if self.kept else "missed" if self.high < self.asked else "not shown"

    def findings(self, ids: Sequence[str]) -> Findings:
        """What a report says of the promise."""
        status: dict[str, Literal["refuted", "no violation found", "unknown"]] = {
            "kept": "no violation found",
            "missed": "refuted",
        }
        of, case = "mean cosine similarity to the embeddings before hardening", {"asked": f"{self.asked:g}"}
        number = (self.reached, self.low, self.high)
        reached = estimate_of(NAME, number, self.n, METHOD, "cosine similarity", of, "neither", case)
        asked = Verdict(
            question="Is the agreement with the original encoder kept?",
            status=status.get(self.status, "unknown"),
            reason=self.line,
            witness={"asked": f"{self.asked:g}", "reached": f"{self.reached:.4f}", "status": self.status},
        )
        return Findings(ids=tuple(ids), estimates=(reached,), verdicts=(asked,))

    @property
    def line(self) -> str:
        """One sentence with what was asked, what was reached and the status."""
        interval = f"95% interval {self.low:.3f} to {self.high:.3f}, n = {self.n} held-out images"
        return f"Agreement: asked {self.asked:g}, reached {self.reached:.3f} ({interval}): {self.status}."


def codes_of(module: nn.Module, images: Images, domain: Domain) -> Codes:
    """Embeddings of all images in eval mode, shape (n, d), in float32."""
    weight = next(module.parameters())
    parts = [range(start, min(start + PART, len(images))) for start in range(0, len(images), PART)]
    batches = (images.pixels(part, weight.device, weight.dtype, domain) for part in parts)
    return torch.cat([eval_codes(module, pixels).float() for pixels in batches])


def promise_of(asked: float, original: Encoder, images: Images, device: str) -> Callable[[nn.Module], Promise]:
    """Function that checks a promised agreement of a module with the original on ``images``.

    Args:
        asked: Smallest mean cosine similarity, in (0, 1).
    """
    before = codes_of(original.to(device, torch.float32).module, images, original.domain)

    def check(module: nn.Module) -> Promise:
        return _promise(asked, before, codes_of(module, images, original.domain), images)

    return check


def _promise(asked: float, before: Codes, after: Codes, images: Images) -> Promise:
    groups = None if images.groups is None else list(images.groups)
    cosines = torch.cosine_similarity(before.double(), after.double().to(before.device))
    return Promise.of(asked, cosines, groups)


def shift_of(module: nn.Module, images: Images, domain: Domain, resisted: Ball | Edits, seed: int) -> float:
    """Median shift of embeddings under attack or the worst edit, relative to the distance to the nearest other image.

    Near 0.5 and above, images can match others; lower is more robust. At most ``ATTACKED`` images.

    Args:
        images: Images to attack.
        resisted: Perturbation set, or edits of which the worst of all counts for each image.
        seed: Seed of the starting points and edits.
    """
    rows = range(min(ATTACKED, len(images)))
    weight = next(module.parameters())
    pixels = images.pixels(rows, weight.device, weight.dtype, domain)
    noise = Noise.of(seed, [images.ids[row] for row in rows]).fork("watched attack").to(pixels.device)
    with untouched(module):
        encoder = in_training(module, domain)
        with torch.no_grad():
            clean = encoder.forward(pixels)
        moved = _moved(encoder, pixels, lambda codes: L2Distance()(codes, clean), resisted, noise)
        with torch.no_grad():
            shifts = (encoder.forward(moved) - clean).double().norm(dim=1)
    nearest = torch.cdist(clean.double(), clean.double()).fill_diagonal_(torch.inf).amin(1)
    return float((shifts / nearest).median())


def _moved(encoder: Encoder, pixels: Pixels, gain: ObjectiveFunction, resisted: Ball | Edits, noise: Noise) -> Pixels:
    if isinstance(resisted, Ball):
        return ATTACK(encoder, pixels, gain, resisted, noise).detach()
    every = replace(resisted, tried=None)
    with torch.no_grad():
        return worst(every.family, every.drawn(noise), encoder, gain, pixels, noise)


def watch_of(
    asked: float, original: Encoder, images: Images, device: str, resisted: Ball | Edits, seed: int
) -> Callable[[nn.Module], dict[str, float]]:
    """Function that measures, after each epoch, agreement and robustness on validation images.

    Args:
        asked: Smallest mean cosine similarity, in (0, 1).
    """
    before = _known(original, images, device)

    def measure(module: nn.Module) -> dict[str, float]:
        after = codes_of(module, images, original.domain).to(before.device)
        promise = _promise(asked, before, after, images)
        measured = agreement(before, after) | {"agreement_low": promise.low, "kept": float(promise.kept)}
        if promise.kept:  # only among these epochs the most robust counts
            measured["shift"] = shift_of(module, images, original.domain, resisted, seed)
        return measured

    return measure


def agreement_of(original: Encoder, held_out: Images, device: str) -> Callable[[nn.Module], dict[str, float]]:
    """Return what compares a module's codes of the images ``held_out`` with those of the ``original``.

    Raises:
        HoldfastError: the original has one code for all of them.
    """
    before = _known(original, held_out, device)
    return lambda module: agreement(before, codes_of(module, held_out, original.domain).to(before.device))


def _known(original: Encoder, images: Images, device: str) -> Codes:
    """Embeddings of the original, refused if they are all equal."""
    before = codes_of(original.to(device, torch.float32).module, images, original.domain)
    if collapsed(before):
        raise HoldfastError(
            f"{original.name} gives one embedding to all images that are kept to measure with, so there is nothing to "
            "keep and it cannot be hardened; name another encoder, or check its weights and the range of its inputs"
        )
    return before


def agreement(before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> dict[str, float]:
    """Return how far codes are what they were.

    ``agreement``: their mean cosine similarity. ``relative_distance``: how far they moved in comparison with how far they
    are from their mean, both as root mean squares. ``neighbours_kept``: the share of images whose nearest other is still
    the same.

    Example:
        >>> codes = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 4.0]])
        >>> agreement(codes, codes)
        {'agreement': 1.0, 'relative_distance': 0.0, 'neighbours_kept': 1.0}
    """
    before, after = before.double(), after.double()
    moved = (after - before).square().sum(1).mean()
    spread = (before - before.mean(0)).square().sum(1).mean()
    nearest = [torch.cdist(codes, codes).fill_diagonal_(torch.inf).argmin(1) for codes in (before, after)]
    return {
        "agreement": float(torch.cosine_similarity(before, after).mean()),
        "relative_distance": float((moved / spread).sqrt()),
        "neighbours_kept": float((nearest[0] == nearest[1]).double().mean()),
    }
