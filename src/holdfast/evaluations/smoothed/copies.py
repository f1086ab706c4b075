"""Noisy copies of an image, seen once and reduced at once: all that smoothing certificates are made of.

Three independent sets of copies of each image, as center smoothing asks for: the first finds the centre, and what each
vote is about; the second tells whether the ball around the centre holds half the mass; the third is what is certified by.
Of each copy only what is counted is kept, so memory holds the first set's codes and a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.evaluations.smoothed.center import central_sample
from holdfast.evaluations.smoothed.index import Index, Smoothing, embedding
from holdfast.probes.base import FittedProbe
from holdfast.protocol.population import Population

KEPT = 1024
"""How many order statistics of the distances are kept: a quantile is read from the next one above it."""
BLOCK = 2**24
"""Entries of one tile of products: 64 MB in float32."""
_LISTENER: ContextVar[Callable[[int], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[int], None]) -> Iterator[None]:
    """Let ``listener`` be told of every batch of copies that is encoded in this process, how many it held."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@dataclass(frozen=True)
class Copies:
    """Noisy copies of one image, numbered: any of them can be drawn again, in any blocks."""

    population: Population
    row: int
    sigma: float
    noise: Noise

    @classmethod
    def of(cls, population: Population, row: int, sigma: float) -> Copies:
        """Return the copies of the image at ``row``."""
        return cls(population, row, sigma, population.run.noise([population.images.ids[row]]).fork("smoothing"))

    def reduced(
        self,
        purpose: str,
        count: int,
        work: Callable[[Codes], Observed],
        centre: Tensor | None = None,
        drawn: int = 0,
    ) -> Observed:
        """Return what ``work`` makes of the codes of ``count`` copies, block by block, joined.

        ``centre`` are other pixels to draw them around; the first ``drawn`` copies are left out.
        """
        population = self.population
        pixels = population.pixels([self.row]) if centre is None else centre
        streams, precise = self.noise.fork(purpose), torch.promote_types(pixels.dtype, torch.float32)

        def block(draws: Sequence[int]) -> Observed:
            numbered = streams.numbered(torch.tensor(draws, device=pixels.device))
            # Normal noise, rounded once with the image: theorems hold for encoders that round what they are given.
            noisy = numbered.gaussian(pixels.shape[1:], precise).mul_(self.sigma).add_(pixels)
            observed = work(population.encode(noisy.to(pixels.dtype)))
            if listener := _LISTENER.get():
                listener(len(draws))
            return observed

        return population.run.batches(range(drawn, count), block)


@dataclass(frozen=True)
class View:
    """An image's noisy copies as one divergence sees them."""

    embed: Callable[[Codes], Codes]
    clean: Float[Tensor, "1 d"]
    centre: Float[Tensor, "d"]
    radius: float
    index: Index
    neighbour: int
    """Which entry of the index most copies are nearest to, their own left out; 0 if most are nearest to none."""

    @classmethod
    def of(cls, population: Population, row: int, smoothing: Smoothing, divergence: Divergence, first: Codes) -> View:
        """Return the view of the image at ``row``, whose first set of copies has the codes ``first``.

        Raises:
            HoldfastError: the divergence is no metric of points.
        """
        embed = embedding(population, divergence)
        samples = embed(first)
        central = central_sample(samples)
        index = Index.of(population, row, embed, smoothing)
        votes = torch.cat([index.neighbours(block) for block in samples.split(max(1, BLOCK // len(index.entries)))])
        clean = embed(population.codes[[row]].to(first.dtype))
        return cls(embed, clean, samples[central.index], central.radius, index, int(votes.bincount().argmax()))

    def distances(self, points: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
        """Return how far each point lies from the centre; a code that cannot be embedded lies infinitely far."""
        return torch.nan_to_num(torch.linalg.vector_norm(points - self.centre, dim=1), nan=torch.inf, posinf=torch.inf)

    def finds(self, points: Float[Tensor, "b d"]) -> Bool[Tensor, "b"]:
        """Return whether the neighbour is nearest to each point; where there is none, nothing is found."""
        return (self.index.neighbours(points) == self.neighbour) & (self.neighbour > 0)

    def in_ball(self, codes: Codes) -> Observed:
        """Return of each copy whether it lies in the ball around the centre."""
        return {"held": self.distances(self.embed(codes)) <= self.radius}

    def counted(self, codes: Codes) -> Observed:
        """Return of each copy its distance and its votes, and of the block how many are nearer to their own entry."""
        points = self.embed(codes)
        nearer = self.index.nearer(points)
        return {
            "distances": self.distances(points),
            "nearer": nearer.sum(0, dtype=torch.int32)[None],
            "kept": nearer.all(1),
            "retrieved": self.finds(points),
        }

    def summary(self, second: Observed, third: Observed, copies: int) -> Observed:
        """Return what is kept of the image, from its second set of copies and those of at most ``copies`` in the third."""
        distances = third["distances"].sort().values
        return {
            "centre": self.centre,
            "radius": torch.tensor(self.radius, dtype=torch.float64),
            "held": second["held"].double().mean(),
            "distances": distances[kept_ranks(len(distances), copies) - 1],
            "error": torch.linalg.vector_norm(self.centre - self.clean[0]),
            "nearer": third["nearer"].sum(0, dtype=torch.int32),
            "kept": third["kept"].sum(),
            "retrieved": third["retrieved"].sum(),
            "agrees": self.finds(self.clean)[0],
        }


def voted(probe: FittedProbe, codes: Codes) -> Int[Tensor, "c"]:
    """Return of how many codes ``probe`` says each class; of a tie, or of a code that is not finite, it says none."""
    best, classes = probe.scores(codes).topk(2, dim=1)
    sure = (best[:, 0] > best[:, 1]) & codes.isfinite().all(1)
    return classes[sure, 0].bincount(minlength=len(probe.classes))


def kept_ranks(draws: int, copies: int | None = None) -> Int[Tensor, "g"]:
    """Return which order statistics of so many distances are kept, from the median on; rank 1 is the least.

    As many as of ``copies`` distances, some twice where there are fewer.

    Example:
        >>> kept_ranks(6)
        tensor([3, 4, 5, 6])
    """
    first, most = ceil(draws / 2), draws if copies is None else copies
    count = min(KEPT, most - ceil(most / 2) + 1)
    return torch.linspace(first, draws, count, dtype=torch.float64).sub(1e-6).ceil().long()


COPIES = 16
"""How many noisy copies the attack looks at."""


class MeanOfCopies(nn.Module):
    """``mean_k module(x + noise_k)``."""

    def __init__(self, module: nn.Module, noise: Tensor) -> None:
        super().__init__()
        self.module, self.noise = module, noise

    def forward(self, x: Pixels) -> Codes:
        noisy = x[:, None] + self.noise
        codes: Codes = self.module(noisy.flatten(0, 1)).unflatten(0, noisy.shape[:2])
        return codes.mean(1)


def mean_encoder(encoder: Encoder, noise: Tensor) -> Encoder:
    """Return the encoder of the mean code over these noises; its weights are shared, not copied."""
    smoothed = copy(encoder)
    smoothed.module = MeanOfCopies(encoder.module, noise)
    return smoothed
