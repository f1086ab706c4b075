"""Gradients of margins at random points near images.

A margin is linear in the codes, ``g(x') = w . f(x')``. Without labels ``w = f~(x) - f~(x_j)`` with normalised clean codes:
while it is positive, x' is more similar to x than to the other sample x_j. With logits ``w = e_c - e_j``: while it is
positive, class c, the one predicted for x, wins over class j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from holdfast.attacks.base import GRADIENT, climb
from holdfast.core.balls import Ball
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population
from holdfast.spectral.fits import SpectralFit
from holdfast.spectral.graph_pair import TooFewSamplesError
from holdfast.spectral.graphs.base import GraphConstruction

COPY = 1e-10
"""Squared distance of two normalised codes below which they are one."""


@final
@dataclass(frozen=True)
class Gradients(Observation):
    """Largest gradient norms of ``1 + rivals`` margins in ``batches`` batches of ``draws`` points of each ball.

    Of ``random`` images chosen at random, and of the ``guided`` ones with the largest SPADE node scores. Margin 0 is that
    against a random other sample (or class), the others are those against the nearest.
    """

    balls: tuple[Ball, ...]
    batches: int
    draws: int
    rivals: int
    random: int
    guided: int
    logits: bool
    k: int
    graph: GraphConstruction
    samples: int
    name = "gradients"
    version = 1
    uses_groups = True

    def fits(self) -> tuple[SpectralFit, ...]:
        return (SpectralFit(self.k, self.graph, "none", self.samples),) if self.guided else ()

    def rows(self, population: Population) -> list[int]:
        return sorted({*population.choose(self.random), *self.worst(population)[0]})

    def worst(self, population: Population) -> tuple[list[int], str]:
        """Return the rows of the images with the largest node scores, largest first, and why they are too few."""
        if not self.guided:
            return [], ""
        try:
            scores = population.learned(*self.fits())
        except TooFewSamplesError as error:
            return [], str(error)
        nodes = torch.from_numpy(scores.spade.node_scores()).nan_to_num(nan=-torch.inf)
        order = nodes.argsort(descending=True, stable=True)[: self.guided]
        worst = [scores.rows[node] for node in order.tolist() if nodes[node] > -torch.inf]
        why = "the SPADE score is infinite" if scores.spade.split else "no more images have one"
        return worst, "" if len(worst) == self.guided else why

    def forwards(self, population: Population) -> int:
        return GRADIENT * len(self.balls) * self.batches * self.draws * (1 + self.rivals)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        weights = self.weights(population, rows)
        clean = population.codes[list(rows)]
        observed: Observed = {"margin": torch.einsum("bkd,bd->bk", weights, clean)}
        for index, ball in enumerate(self.balls):
            observed[f"maxima{index}"] = self._maxima(population, rows, weights, ball)
        return observed

    def maxima(self, ball: Ball, observed: Observed) -> Float[Tensor, "b k s"]:
        """Return the largest gradient norms in ``ball``, from what was ``observed``."""
        return observed[f"maxima{self.balls.index(ball)}"]

    def weights(self, population: Population, rows: Sequence[int]) -> Float[Tensor, "b k d"]:
        """Return the margins' ``w``, the random one first."""
        return self._logits(population, rows) if self.logits else self._codes(population, rows)

    def _codes(self, population: Population, rows: Sequence[int]) -> Float[Tensor, "b k d"]:
        unit = normalize(population.codes.double(), dim=1)
        anchors = unit[list(rows)]
        similarity = anchors @ unit.T
        similarity[torch.arange(len(rows)), list(rows)] = -torch.inf
        if (kin := population.kin(rows, population)) is not None:
            similarity[kin.mine[:, None] == kin.theirs] = -torch.inf
        near = similarity.topk(min(self.rivals, population.fewest_others), dim=1).indices
        others = torch.cat([population.partners[list(rows)][:, None].to(near.device), near], dim=1)
        weights = anchors[:, None] - unit[others]
        # What rounding leaves of the difference of two equal codes is no direction.
        weights[weights.square().sum(2) < COPY] = 0
        return weights.to(population.codes.dtype)

    def _logits(self, population: Population, rows: Sequence[int]) -> Float[Tensor, "b k d"]:
        logits = population.codes[list(rows)]
        classes = logits.shape[1]
        if classes < 2:
            raise HoldfastError("clever with logits=true needs an encoder that returns at least 2 logits per image")
        order = logits.argsort(dim=1, descending=True, stable=True)
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("clever class")
        position = 1 + (noise.uniform((1,), torch.float64) * (classes - 1)).long()
        others = torch.cat([order.gather(1, position), order[:, 1 : 1 + self.rivals]], dim=1)
        return (one_hot(order[:, :1], classes) - one_hot(others, classes)).to(logits.dtype)

    def _maxima(
        self, population: Population, rows: Sequence[int], weights: Float[Tensor, "b k d"], ball: Ball
    ) -> Float[Tensor, "b k s"]:
        """Return the largest dual norm of each margin's gradient in each batch of points."""
        pixels = population.pixels(rows)
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("clever", ball.name)
        maxima = torch.zeros(*weights.shape[:2], self.batches, dtype=weights.dtype, device=weights.device)
        together = max(1, population.run.batch_size // len(rows))
        for batch in range(self.batches):
            for start in range(0, self.draws, together):
                parts = [noise.fork(batch, draw).keys for draw in range(start, min(start + together, self.draws))]
                delta = ball.sample(Noise(torch.cat(parts)), pixels.shape[1:], pixels.dtype)
                # Clipped: the encoder is evaluated nowhere outside its domain.
                points = population.encoder.domain.clip(pixels.repeat(len(parts), *(1,) * (pixels.ndim - 1)) + delta)
                for k in range(weights.shape[1]):
                    norms = _slopes(population, points, weights[:, k].repeat(len(parts), 1), ball)
                    largest = norms.reshape(len(parts), len(rows)).amax(0)
                    maxima[:, k, batch] = torch.maximum(maxima[:, k, batch], largest)
        return maxima


def _slopes(population: Population, points: Tensor, weights: Codes, ball: Ball) -> Float[Tensor, "b"]:
    _, gradient = climb(population.arranged, points, lambda codes: (codes * weights).sum(1))
    return ball.dual_norm(gradient)


def positions(rows: Sequence[int], chosen: Sequence[int]) -> Int[Tensor, "c"]:
    """Return where each of ``chosen`` stands among ``rows``."""
    position_of = {row: position for position, row in enumerate(rows)}
    return torch.tensor([position_of[row] for row in chosen], dtype=torch.int64)
