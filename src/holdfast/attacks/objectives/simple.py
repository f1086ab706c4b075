"""Objectives of one image: away from its embedding, towards another, across a boundary.

Also here: the fixed views that contrastive objectives compare with, and objectives that make a classifier err.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.objective import AttackContext, DivergenceObjective, ObjectiveFunction


@final
class Away(DivergenceObjective):
    """Move the embedding away from the clean one (U-FGSM, U-BIM, U-PGD).

    Paper: Petrov and Kwiatkowska 2022, section 4.
    """

    name = "away"

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        clean = context.codes
        return lambda codes: self.divergence(codes, clean)


@final
class Toward(DivergenceObjective):
    """Move the embedding towards the target's clean one (T-PGD).

    Paper: Petrov and Kwiatkowska 2022, section 4.
    """

    name = "toward"
    targeted = True

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        targets = context.targets
        return lambda codes: -self.divergence(codes, targets)


SHIFT = 0.1
"""The share of an image's size that a view is moved by, at most."""


def shifted(pixels: Pixels, noise: Noise) -> Pixels:
    """Shift each image at random by up to ``SHIFT`` of its size, edges repeated.

    Inputs that are no images stay as they are. Each image has its own random stream, so that a view does not depend on
    the batch.
    """
    if pixels.ndim != 4:
        return pixels
    height, width = pixels.shape[-2:]
    draws = 2 * noise.uniform((2,)) - 1
    down = (draws[:, 0] * max(1, SHIFT * height)).round().long()
    right = (draws[:, 1] * max(1, SHIFT * width)).round().long()
    rows = (torch.arange(height, device=pixels.device) + down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=pixels.device) + right[:, None]).clamp(0, width - 1)
    moved = pixels.gather(2, rows[:, None, :, None].expand_as(pixels))
    return moved.gather(3, columns[:, None, None, :].expand_as(pixels))


def high_pass(pixels: Pixels, radius: float, domain: Domain) -> Pixels:
    """Remove low frequencies from images, around mid-range, clipped to the range.

    Args:
        radius: Frequencies to remove, as a fraction of the largest frequency.
    """
    if pixels.ndim != 4:
        return pixels
    spectrum = torch.fft.fft2(pixels)
    middle = (domain.low + domain.high) / 2
    return domain.clip(torch.fft.ifft2(spectrum * ~low_frequencies(pixels, radius)).real + middle)


def low_frequencies(pixels: Pixels, radius: float) -> Tensor:
    """Mask of the frequencies below a fraction of the largest one on an axis.

    Args:
        radius: Fraction of the largest frequency.

    Returns:
        Mask over the spectrum, shape (height, width).
    """
    vertical = torch.fft.fftfreq(pixels.shape[-2], device=pixels.device)
    horizontal = torch.fft.fftfreq(pixels.shape[-1], device=pixels.device)
    return (vertical[:, None].square() + horizontal.square()).sqrt() < radius / 2


# Cross the boundary between two images: become closer to ``x'`` than to oneself, the event that breakaway counts.
#
# For l2 the event ``d(f(x^), f(x')) < d(f(x^), f(x))`` is linear in the moved code:
# ``2 (f(x') - f(x)) . f(x^) > |f(x')|^2 - |f(x)|^2``; for cosine, with unit codes ``u``, ``(u(x') - u(x)) . f(x^) >
# 0``.
# Hence the gradient never vanishes at the clean image, and the same linear functions can be bounded by a certificate.


@final
class Crossing(DivergenceObjective):
    """Move the embedding closer to the target than to its own original.

    It maximises ``d(f(x^), f(x)) - d(f(x^), f(x'))`` for the target ``x'``, in its linear form where there is one.
    """

    name = "crossing"
    targeted = True

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        anchors, other = context.codes, context.targets
        return lambda codes: margin(self.divergence, codes, anchors, other)


@final
class Misretrieval(DivergenceObjective):
    """Move the embedding closer to any of the nearest other images than to its own original.

    It maximises the largest crossing margin over these images.
    """

    name = "misretrieval"
    rivals = "nearest"

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        if context.rivals is None:
            raise HoldfastError("misretrieval needs the embeddings of rival images (AttackContext.rivals)")
        anchors, rivals = context.codes, context.rivals

        def objective(codes: Codes) -> Tensor:
            return margin(self.divergence, codes[:, None], anchors[:, None], rivals).amax(1)

        return objective


def margin(divergence: Divergence, codes: Tensor, anchors: Tensor, other: Tensor) -> Tensor:
    """Value that is positive exactly if ``codes`` are closer to ``other`` than to ``anchors``.

    The unit is that of the normal of the clean distance, so that the nearest of several boundaries has the largest
    margin.

    Args:
        codes: Attacked embeddings, shape (..., d).
        anchors: Clean embeddings of the images, shape (..., d).
        other: Clean embeddings of other images, shape (..., d).

    Returns:
        Margins, shape (...).
    """
    if divergence.name == "l2":
        normal = other - anchors
        size = torch.linalg.vector_norm(normal, dim=-1).clamp_min(torch.finfo(codes.dtype).tiny)
        return (normal * (codes - (anchors + other) / 2)).sum(-1) / size
    if divergence.name == "cosine":
        unit_anchors, unit_other = (c / torch.linalg.vector_norm(c, dim=-1, keepdim=True) for c in (anchors, other))
        return ((unit_other - unit_anchors) * codes).sum(-1)
    codes, anchors, theirs = (c.expand_as(other).flatten(0, -2) for c in (codes, anchors, other))
    return (divergence(codes, anchors) - divergence(codes, theirs)).reshape(other.shape[:-1])


# With labels: make a classifier on the codes err. Objectives for attacks on a probe through the encoder.
#
# Unlike the objectives of this folder's other files they need to know a classifier, so they are functions of it.

Logits = Callable[[Codes], Float[Tensor, "b c"]]


@final
@dataclass(frozen=True, eq=False)
class ClassMargin:
    """Objective ``max over j != y of g_j - g_y``, with the classifier that attacks on classes look at."""

    logits: Logits
    """Function from embeddings (b, d) to logits (b, c)."""
    places: Int[Tensor, "b"]
    """Column of the correct class of each image, shape (b,); -1 if none is."""
    targets: Int[Tensor, "b"] | None = None
    """Column of the class that a targeted attack aims at, shape (b,); None for any other class."""

    def __call__(self, codes: Codes) -> Float[Tensor, "b"]:
        return self.of_logits(self.logits(codes))

    def of_logits(self, scored: Float[Tensor, "b c"]) -> Float[Tensor, "b"]:
        """Margins of logits that are known already."""
        of_class = functional.one_hot(self.places.clamp_min(0), scored.shape[1]).bool() & (self.places >= 0)[:, None]
        others = scored.masked_fill(of_class, -torch.inf).amax(1)
        return others - torch.where(of_class, scored, 0).sum(1)

    def of(self, rows: Int[Tensor, "n"]) -> ClassMargin:
        """The objective of some of the images."""
        targets = None if self.targets is None else self.targets[rows]
        return replace(self, places=self.places[rows], targets=targets)


def margin_of_logits(logits: Logits, places: Int[Tensor, "b"]) -> ClassMargin:
    """Objective ``max over j != y of g_j - g_y``: positive exactly where the classifier errs.

    It has a slope where the cross-entropy is flat (Carlini and Wagner 2017, https://arxiv.org/abs/1608.04644).

    Args:
        places: Column of the correct class of each image, shape (b,); -1 if none is, so that any answer is an error.

    Example:
        >>> margin_of_logits(lambda codes: codes, torch.tensor([0, 1]))(torch.tensor([[2.0, 0.5, 1.0], [2.0, 0.5, 1.0]]))
        tensor([-1.0000,  1.5000])
    """
    return ClassMargin(logits, places)


def cross_entropy(logits: Logits, places: Int[Tensor, "b"]) -> ObjectiveFunction:
    """Objective ``-log softmax(g)_y``, the loss that classifiers are trained with.

    Args:
        places: Column of the correct class of each image, shape (b,).

    Example:
        >>> cross_entropy(lambda codes: codes, torch.tensor([1]))(torch.tensor([[0.0, 0.0]]))
        tensor([0.6931])
    """
    return lambda codes: functional.cross_entropy(logits(codes), places, reduction="none")
