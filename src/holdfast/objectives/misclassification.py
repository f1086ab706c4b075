"""With labels: make a classifier on the codes err. Objectives for attacks on a probe through the encoder.

Unlike the objectives of this folder's other files they need to know a classifier, so they are functions of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from holdfast.core.encoder import Codes
from holdfast.objectives.base import ObjectiveFunction

Logits = Callable[[Codes], Float[Tensor, "b c"]]


def margin(logits: Logits, places: Int[Tensor, "b"]) -> ObjectiveFunction:
    """Return the objective ``max over j != y of g_j - g_y``: positive exactly where the classifier errs.

    It has a slope where the cross-entropy is flat, however sure the classifier is (Carlini and Wagner 2017,
    https://arxiv.org/abs/1608.04644). ``places`` says which logit ``y`` is each image's own; -1 if none is, so that any
    answer is an error.

    Example:
        >>> margin(lambda codes: codes, torch.tensor([0, 1]))(torch.tensor([[2.0, 0.5, 1.0], [2.0, 0.5, 1.0]]))
        tensor([-1.0000,  1.5000])
    """

    def objective(codes: Codes) -> Tensor:
        scored = logits(codes)
        of_class = functional.one_hot(places.clamp_min(0), scored.shape[1]).bool() & (places >= 0)[:, None]
        others = scored.masked_fill(of_class, -torch.inf).amax(1)
        return others - torch.where(of_class, scored, 0).sum(1)

    return objective


def cross_entropy(logits: Logits, places: Int[Tensor, "b"]) -> ObjectiveFunction:
    """Return the objective ``-log softmax(g)_y``, against which classifiers are trained.

    Example:
        >>> cross_entropy(lambda codes: codes, torch.tensor([1]))(torch.tensor([[0.0, 0.0]]))
        tensor([0.6931])
    """
    return lambda codes: functional.cross_entropy(logits(codes), places, reduction="none")
