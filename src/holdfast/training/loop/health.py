"""What can be seen of an encoder in training without labels: whether its codes fill their space, or collapse.

``spread`` is the deviation of single features of unit codes over images, times the root of their number: 1 for codes
all around, 0 where all images have one code (Chen and He 2021, https://arxiv.org/abs/2011.10566, section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from holdfast.core.encoder import Codes
from holdfast.core.points import points
from holdfast.evaluations.geometry.pairs import potentials
from holdfast.evaluations.geometry.spectrum import rankme

COLLAPSED = 0.01
"""Below this spread all images have one code, up to noise."""
NEIGHBOURS = 20
TOGETHER = 256
"""Images encoded at once."""
LOST = 0.5
"""Below this mean cosine similarity to the original codes, codes are no longer what they were."""


@dataclass(frozen=True)
class Health:
    """RankMe and uniformity, larger is better for both, and the spread."""

    rankme: float
    uniformity: float
    spread: float

    @property
    def collapsed(self) -> bool:
        """Whether all images have one code."""
        return not self.spread >= COLLAPSED  # nan, too


def health(codes: Codes) -> Health:
    """Return how codes (n, d) of images in random order lie.

    Example:
        >>> health(torch.ones(8, 4)).collapsed, health(torch.eye(8)).collapsed
        (True, False)
    """
    units = normalize(codes.double(), dim=1)
    (rank, _, _), _ = rankme(codes.double())
    spread = float(units.std(dim=0, correction=0).mean()) * units.shape[1] ** 0.5
    return Health(rank, -float(potentials(points(units)).mean().log()), spread)


def lost(measured: Mapping[str, float]) -> bool:
    """Return whether codes are no longer what they were, as far as that was measured.

    Either they point elsewhere, or they are farther from the original ones than the mean of these is (a relative distance
    above 1), so that one code for all images would be nearer.

    Example:
        >>> lost({"agreement": 0.3, "relative_distance": 0.9}), lost({"agreement": 0.9, "relative_distance": 0.4}), lost({})
        (True, False, False)
    """
    return not (measured.get("agreement", 1.0) >= LOST and measured.get("relative_distance", 0.0) <= 1)


def neighbour_accuracy(codes: Float[Tensor, "n d"], labels: Int[Tensor, "n"], k: int = NEIGHBOURS) -> float:
    """Return the share of codes whose ``k`` nearest others by cosine, each with weight exp(cos / 0.1), vote for their class.

    Example:
        >>> neighbour_accuracy(torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]]), torch.tensor([0, 0, 1, 1]), k=1)
        1.0
    """
    units = normalize(codes.double(), dim=1)
    cosines, neighbours = (units @ units.T).fill_diagonal_(-torch.inf).topk(min(k, len(units) - 1))
    classes, columns = labels.unique(return_inverse=True)
    votes = torch.zeros(len(units), len(classes), dtype=units.dtype, device=units.device)
    votes.scatter_add_(1, columns[neighbours], (cosines / 0.1).exp())
    return float((votes.argmax(1) == columns).double().mean())


@torch.no_grad()
def eval_codes(module: nn.Module, pixels: Tensor) -> Codes:
    """Return the codes of ``pixels`` in eval mode, the mode put back afterwards."""
    was = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        return torch.cat([module(part) for part in pixels.split(TOGETHER)])
    finally:
        for part, mode in was:
            part.training = mode
