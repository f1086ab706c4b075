"""Contrastive objectives: make a sample's loss large against other samples (NT-Xent and InfoNCE as attacks).

With unit embeddings ``u`` and temperature ``T``, the loss of anchor ``a`` with positive ``p`` and others ``k`` is
``-log( exp(a.p/T) / sum_k exp(a.k/T) )`` (van den Oord et al. 2018; Chen et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from holdfast.attacks.objectives.simple import high_pass, shifted
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.objective import AttackContext, Objective, ObjectiveFunction
from holdfast.core.settings import check_positive


def loss(
    anchors: Codes, positives: Codes, others: Codes, temperature: float, with_anchors: bool = False
) -> Float[Tensor, "b"]:
    """Contrastive loss of each anchor.

    Args:
        anchors: Embeddings, shape (b, d).
        positives: Embedding of another view of each anchor, shape (b, d).
        others: Embeddings that each anchor is compared with, shape (n, d); they contain its positive.
        temperature: Temperature of the softmax, above 0.
        with_anchors: True if ``others`` are the anchors; each anchor then leaves itself out.

    Returns:
        Loss of each anchor, shape (b,).
    """
    anchors, positives, others = (normalize(codes, dim=-1) for codes in (anchors, positives, others))
    logits = anchors @ others.T / temperature
    if with_anchors:
        logits = logits.masked_fill(torch.eye(len(logits), dtype=torch.bool, device=logits.device), -torch.inf)
    return torch.logsumexp(logits, dim=1) - (anchors * positives).sum(-1) / temperature


def _batch(context: AttackContext) -> None:
    if len(context.pixels) < 2:
        raise HoldfastError("a contrastive objective needs at least 2 images in a batch, got 1; raise the batch size")


@final
@dataclass(frozen=True)
class Instance(Objective):
    """Maximise NT-Xent of an attacked image against another view; negatives are the batch.

    The instance-wise attack of RoCL (Kim et al. 2020, https://arxiv.org/abs/2006.07589) and, with one view attacked and
    one clean, ACL's A2S (Jiang et al. 2020, https://arxiv.org/abs/2010.13337).
    """

    temperature: float = 0.5
    """Temperature of NT-Xent."""
    name = "instance"
    per_sample = False

    def __post_init__(self) -> None:
        check_positive(self, "temperature")

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        _batch(context)
        view = context.code(shifted(context.pixels, context.noise.fork("view")))
        return lambda codes: loss(codes, view, view, self.temperature)


@final
@dataclass(frozen=True)
class Batch(Objective):
    """Maximise NT-Xent of clean anchors against attacked positives and attacked negatives.

    CLAE's batch loss (Ho and Vasconcelos 2020, https://arxiv.org/abs/2010.12050): all images of the batch are attacked
    together, and each is also a negative of all others.
    """

    temperature: float = 0.5
    """Temperature of NT-Xent."""
    name = "batch"
    per_sample = False

    def __post_init__(self) -> None:
        check_positive(self, "temperature")

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        _batch(context)
        clean = context.codes
        return lambda codes: loss(clean, codes, codes, self.temperature)


@final
@dataclass(frozen=True)
class Views(Objective):
    """Maximise the mean NT-Xent of the attacked image against several views of it.

    AdvCL's multi-view attack (Fan et al. 2021, https://arxiv.org/abs/2111.01124): two random views, and the image
    without low frequencies.
    """

    temperature: float = 0.5
    """Temperature of NT-Xent."""
    radius: float = 0.25
    """Radius of the removed low frequencies, as a fraction of the largest frequency."""
    name = "views"
    per_sample = False

    def __post_init__(self) -> None:
        check_positive(self, "temperature")

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        _batch(context)
        pixels, noise, domain = context.pixels, context.noise, context.encoder.domain
        views = [shifted(pixels, noise.fork("view", k)) for k in range(2)] + [high_pass(pixels, self.radius, domain)]
        codes_of = [context.code(view) for view in views]

        def objective(codes: Codes) -> Tensor:
            return torch.stack([loss(codes, view, view, self.temperature) for view in codes_of]).mean(0)

        return objective


@final
@dataclass(frozen=True)
class Pair(Objective):
    """Maximise NT-Xent between two views that are both attacked.

    Images ``i`` and ``i + b/2`` of the batch are views of one image. This is ACL's A2A, and the attacked half of its
    dual stream DS, whose clean half no attack changes (Jiang et al. 2020, https://arxiv.org/abs/2010.13337).
    """

    temperature: float = 0.5
    """Temperature of NT-Xent."""
    name = "pair"
    per_sample = False

    def __post_init__(self) -> None:
        check_positive(self, "temperature")

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        if len(context.pixels) % 2:
            raise HoldfastError(f"the pair objective takes two views per image, got an odd {len(context.pixels)}")
        half = len(context.pixels) // 2

        def objective(codes: Codes) -> Tensor:
            return loss(codes, codes.roll(half, 0), codes, self.temperature, with_anchors=True)

        return objective


@final
@dataclass(frozen=True)
class Queue(Objective):
    """Maximise InfoNCE of the attacked image against a view; negatives are random images.

    MoCo's loss (He et al. 2020, https://arxiv.org/abs/1911.05722) as an attack objective.
    """

    temperature: float = 0.2
    """Temperature of InfoNCE."""
    name = "queue"
    rivals = "random"

    def __post_init__(self) -> None:
        check_positive(self, "temperature")

    def __call__(self, context: AttackContext) -> ObjectiveFunction:
        if context.rivals is None:
            raise HoldfastError(
                "the queue objective needs the embeddings of other images (AttackContext.rivals) as negatives"
            )
        key = context.code(shifted(context.pixels, context.noise.fork("view")))
        keys = normalize(key, dim=-1)
        negatives = normalize(context.rivals, dim=-1)

        def objective(codes: Codes) -> Tensor:
            query = normalize(codes, dim=-1)
            positives = (query * keys).sum(-1, keepdim=True)
            logits = torch.cat([positives, (query[:, None] * negatives).sum(-1)], dim=1) / self.temperature
            return torch.logsumexp(logits, dim=1) - logits[:, 0]

        return objective
