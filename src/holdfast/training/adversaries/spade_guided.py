"""SPADE-guided: maximise the training loss, within a larger radius for images whose neighbourhoods the encoder stretches
most.

    radius_i = ball.radius if image i is in the fraction with the highest node scores, else low

Node scores come from the ``r`` largest eigenvalues of ``L_X v = lambda L_Y v``; G_X joins neighbouring training images
and G_Y neighbouring embeddings. Cheng et al. 2021, https://proceedings.mlr.press/v139/cheng21a.html, sections 4.1 and 5.3
(their radii on CIFAR-10, their 45,000 of 50,000 images). ``scores=random`` is the control: equal numbers of images have
the same radii, but the images are drawn at random. The authors do not attack images that are misclassified without an
attack, in their own method alone; here every image is attacked in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.settings import check_positive
from holdfast.encoders.by_name import load
from holdfast.spectral.analysis import edge_scores
from holdfast.spectral.eigen import SCORES, spectrum
from holdfast.spectral.graph_pair import KNN, checked, draw
from holdfast.training.adversaries.base import Adversary, Prepared
from holdfast.training.feed import Feed
from holdfast.training.health import eval_codes
from holdfast.training.learner import Batch

KINDS = ("spade", "random")


@final
@dataclass(frozen=True)
class SpadeGuided(Adversary):
    """Maximise the training loss, in a wider ball around images with a high SPADE score."""

    ball: Ball = Linf(14 / 255)
    """Perturbation set around images with high scores."""
    low: float = 12 / 255
    """Radius for the images with lower node scores, in the norm of `ball`."""
    share: float = 0.9
    """Fraction of images with the full radius; 0.9 in the paper."""
    scores: str = "spade"
    """`spade`, or `random` for the control with random images."""
    encoder: str | None = None
    """Encoder whose embeddings give the node scores (default: the one in training)."""
    every: int = 0
    """Epochs between two computations of the scores; 0: once."""
    k: int = 10
    """Neighbours in both graphs; 100 in the paper."""
    r: int = 10
    """Eigenvectors in the node scores."""
    repair: str = "mst"
    """Treatment of graphs that fall apart: `mst`, `none`, `increase_k` or `largest`, as in `spade`."""
    name = "spade-guided"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "k")
        if self.scores not in KINDS:
            raise UnknownName("spade-guided: scores", self.scores, KINDS)
        if self.encoder is not None and (self.every or self.scores == "random"):
            raise HoldfastError("spade-guided: scores of a given encoder stay as they are; leave out every and random")
        if not (0 < self.low <= self.ball.radius and 0 < self.share < 1 and self.every >= 0 and self.r >= 1):
            raise HoldfastError(
                "spade-guided needs low in (0, radius of the ball], share in (0, 1), every of at least 0 and r of at least "
                f"1, got low={self.low}, share={self.share}, every={self.every} and r={self.r}"
            )

    def prepare(self, epoch: int, feed: Feed, codes: Callable[[], Codes], prepared: Prepared) -> Prepared:
        if prepared and not (self.every and epoch % self.every == 0):
            return prepared
        if self.scores == "random":
            values = feed.noise.fork("random radii", epoch).uniform((1,), torch.float64)[:, 0]
        else:
            pixels = feed.pixels(range(len(feed.images)))
            outputs = codes() if self.encoder is None else codes_by(self.encoder, pixels)
            values = node_scores(pixels, outputs, self.k, self.r, self.repair)
        return {"scores": values, "wide": highest(values, self.share)}

    def groups(self, batch: Batch, prepared: Prepared) -> list[tuple[Ball, Bool[Tensor, "b"]]]:
        wide = prepared["wide"].to(batch.rows.device)[batch.rows]
        return [(self.ball, wide), (replace(self.ball, radius=self.low), ~wide)]


def codes_by(reference: str, pixels: Pixels) -> Codes:
    """Embeddings by the encoder that a reference names."""
    encoder = load(reference).to(pixels.device, pixels.dtype)
    encoder.domain.check(pixels, f"images for {encoder.name}")
    return eval_codes(encoder.module, pixels)


def node_scores(pixels: Pixels, codes: Codes, k: int, r: int, repair: str) -> Float[Tensor, "n"]:
    """SPADE score of each image; nan for images that a repair leaves out.

    Args:
        codes: Embeddings of the images, shape (n, d).
        k: Neighbours of each image in the graphs.
        r: Eigenvectors of the scores.
        repair: Repair where the graph of the embeddings falls apart.

    Raises:
        HoldfastError: There are too few images for ``k``, or the graph falls apart and stays so.
    """
    graphs = draw(*checked(pixels.cpu(), codes.cpu()), k, KNN(), repair)
    if graphs.split is not None:
        raise HoldfastError(f"the images cannot be scored, since {graphs.split}")
    eigen = spectrum(graphs.inputs, graphs.outputs, r, SCORES)
    nodes = graphs.inputs.node_means(edge_scores(graphs.inputs, eigen, r))
    return torch.from_numpy(np.where(graphs.node_of >= 0, nodes[graphs.node_of], np.nan))


def highest(scores: Float[Tensor, "n"], share: float) -> Bool[Tensor, "n"]:
    """Mask of the images with the highest scores; unknown scores are lowest.

    Args:
        scores: Score of each image, shape (n,); nan if unknown.
        share: Fraction of images to mark, 0 to 1.

    Example:
        >>> highest(torch.tensor([1.0, 3.0, torch.nan, 2.0]), 0.5)
        tensor([False,  True, False,  True])
    """
    order = scores.nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True)
    wide = torch.zeros(len(scores), dtype=torch.bool)
    wide[order[: round(share * len(scores))]] = True
    return wide
