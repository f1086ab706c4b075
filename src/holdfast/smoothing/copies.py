"""Noisy copies of an image: drawn in rounds, reduced to votes, and stopped once they decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from math import ceil, log
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import SharedSettings
from holdfast.measure.population import Population
from holdfast.probes.base import FittedProbe
from holdfast.smoothing.index import Index, Smoothing, central_sample, embedding

# Noisy copies of an image, seen once and reduced at once: all that smoothing certificates are made of.
#
# Three independent sets of copies of each image, as center smoothing asks for: the first finds the centre, and what
# each vote is about; the second tells whether the ball around the centre holds half the mass; the third is what is
# certified by. Of each copy only what is counted is kept, so memory holds the first set's codes and a batch.

KEPT = 1024
"""Number of stored order statistics of the distances; a quantile is the next one above it."""
BLOCK = 2**24
"""Entries of one tile of products: 64 MB in float32."""
_LISTENER: ContextVar[Callable[[int], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[int], None]) -> Iterator[None]:
    """Report the size of every batch of noisy copies that this process encodes."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@dataclass(frozen=True)
class Copies:
    """Numbered noisy copies of one image, which can be drawn again in any blocks."""

    population: Population
    """Images of the run."""
    row: int
    """Row of the image."""
    sigma: float
    """Standard deviation of the noise in pixel units."""
    noise: Noise
    """Random stream of the image."""

    @classmethod
    def of(cls, population: Population, row: int, sigma: float) -> Copies:
        """Noisy copies of the image at ``row``.

        Args:
            sigma: Standard deviation of the noise in pixel units, above 0.
        """
        return cls(population, row, sigma, population.run.noise([population.images.ids[row]]).fork("smoothing"))

    def reduced(
        self, purpose: str, count: int, work: Callable[[Codes], Observed], centre: Tensor | None = None, drawn: int = 0
    ) -> Observed:
        """Apply ``work`` to the embeddings of noisy copies, block by block.

        Args:
            work: Function from embeddings (b, d) to tensors.
            centre: Pixels to draw copies around; None for the image.
            drawn: Copies to skip, from the first on.
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
    """Noisy copies of an image under one divergence."""

    embed: Callable[[Codes], Codes]
    clean: Float[Tensor, "1 d"]
    centre: Float[Tensor, "d"]
    radius: float
    index: Index
    neighbour: int
    """Most frequent nearest index entry of the copies, without their own; 0 without a majority."""

    @classmethod
    def of(cls, population: Population, row: int, smoothing: Smoothing, divergence: Divergence, first: Codes) -> View:
        """Noisy copies of the image at ``row`` under one divergence.

        Args:
            smoothing: Settings of the noise and of the copies.
            first: Embeddings of the first set of copies, shape (n, d).

        Raises:
            HoldfastError: The divergence is no metric of points.
        """
        embed = embedding(population, divergence)
        samples = embed(first)
        central = central_sample(samples)
        index = Index.of(population, row, embed, smoothing)
        votes = torch.cat([index.neighbours(block) for block in samples.split(max(1, BLOCK // len(index.entries)))])
        clean = embed(population.codes[[row]].to(first.dtype))
        return cls(embed, clean, samples[central.index], central.radius, index, int(votes.bincount().argmax()))

    def distances(self, points: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
        """Distance of each point from the centre; infinite if it cannot be embedded."""
        return torch.nan_to_num(torch.linalg.vector_norm(points - self.centre, dim=1), nan=torch.inf, posinf=torch.inf)

    def finds(self, points: Float[Tensor, "b d"]) -> Bool[Tensor, "b"]:
        """Mask of points whose nearest entry is the neighbour; false where there is no neighbour."""
        return (self.index.neighbours(points) == self.neighbour) & (self.neighbour > 0)

    def in_ball(self, codes: Codes) -> Observed:
        """Return whether each copy lies in the ball around the centre."""
        return {"held": self.distances(self.embed(codes)) <= self.radius}

    def counted(self, codes: Codes) -> Observed:
        """Distance and votes of each copy, and counts of copies nearer to their own entry."""
        points = self.embed(codes)
        nearer = self.index.nearer(points)
        return {
            "distances": self.distances(points),
            "nearer": nearer.sum(0, dtype=torch.int32)[None],
            "kept": nearer.all(1),
            "retrieved": self.finds(points),
        }

    def summary(self, second: Observed, third: Observed, copies: int) -> Observed:
        """Tensors to keep of the image.

        Args:
            copies: Largest number of copies in the third set.
        """
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
    """Number of embeddings that a probe assigns to each class; ties count for none."""
    best, classes = probe.scores(codes).topk(2, dim=1)
    sure = (best[:, 0] > best[:, 1]) & codes.isfinite().all(1)
    return classes[sure, 0].bincount(minlength=len(probe.classes))


def kept_ranks(draws: int, copies: int | None = None) -> Int[Tensor, "g"]:
    """Ranks of the order statistics of distances to keep, from the median on.

    Args:
        draws: Number of distances.
        copies: Number of distances that decides how many ranks to keep; None for ``draws``.

    Example:
        >>> kept_ranks(6)
        tensor([3, 4, 5, 6])
    """
    first, most = ceil(draws / 2), draws if copies is None else copies
    count = min(KEPT, most - ceil(most / 2) + 1)
    return torch.linspace(first, draws, count, dtype=torch.float64).sub(1e-6).ceil().long()


COPIES = 16
"""Number of noisy copies in the attack."""


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
    """Encoder of the mean embedding over given noises, with shared weights.

    Args:
        noise: Noises to add, shape (k, *pixels).
    """
    smoothed = copy(encoder)
    smoothed.module = MeanOfCopies(encoder.module, noise)
    return smoothed


# The mathematics of votes among noisy copies: randomized smoothing (Cohen et al. 2019,
# https://arxiv.org/abs/1902.02918).
#
# Let ``A`` be any event of a noisy copy's code: *a probe says class c*, *image j is the nearest*, *its own image is
# nearer than j*. If ``A`` has a chance of at least ``p > 1/2`` at ``x``, it has more than one half at every ``x'``
# that is nearer than ``sigma Phi^-1(p)`` in l2 (their theorem 1). For an event ``g(f(x + noise)) > 0`` that is what
# percentile smoothing says of the median of ``g`` (Chiang et al. 2020, https://arxiv.org/abs/2007.03730): the median
# at ``x'`` is at least the ``Phi(-eps / sigma)`` quantile at ``x``, which is positive exactly where ``p > Phi(eps /
# sigma)``.


def least_share(count: Int[Tensor, "*b"], draws: int | Int[Tensor, "*#b"], alpha: float) -> Float[Tensor, "*b"]:
    """Lower confidence bound of a probability (Clopper and Pearson 1934, one-sided).

    Args:
        count: Draws in which the event happened.
        draws: Draws in all.
        alpha: Probability that the certificate fails, in (0, 0.5).

    Example:
        >>> least_share(torch.tensor([0, 90, 100]), 100, 0.001)
        tensor([0.0000, 0.7753, 0.9333], dtype=torch.float64)
    """
    from scipy.special import betaincinv

    counts = count.cpu().numpy().astype(np.float64)
    number = draws.cpu().numpy().astype(np.float64) if isinstance(draws, Tensor) else draws
    low = betaincinv(np.maximum(counts, 1), number - counts + 1, alpha)
    return torch.from_numpy(np.where(counts > 0, low, 0.0)).to(count.device)


def radius(share: Float[Tensor, "*b"], sigma: float) -> Float[Tensor, "*b"]:
    """ℓ2 radius within which an event keeps the majority; nan without a majority.

    Args:
        share: Lower bound of the probability of the event, 0 to 1.
        sigma: Standard deviation of the noise in pixel units, above 0.

    Example:
        >>> radius(torch.tensor([0.4, 0.8413]), 0.25)
        tensor([   nan, 0.2500])
    """
    return torch.where(share > 0.5, sigma * torch.special.ndtri(share), torch.nan)


def needed_draws(eps: float, sigma: float, alpha: float) -> int:
    """Draws, all for the event, that certify a radius: ``alpha^(1/N) > Phi(eps / sigma)``.

    Args:
        eps: ε in ℓ2, in pixel units.
        sigma: Standard deviation of the noise in pixel units, above 0.
        alpha: Probability that the certificate fails, in (0, 0.5).

    Example:
        >>> needed_draws(0.25, 0.25, 0.001)
        40
    """
    from scipy.special import log_ndtr

    return ceil(log(alpha) / float(log_ndtr(eps / sigma)))


def farthest(draws: int, sigma: float, alpha: float) -> float:
    """Largest ℓ2 radius that a number of draws can certify.

    Args:
        sigma: Standard deviation of the noise in pixel units, above 0.
        alpha: Probability that the certificate fails, in (0, 0.5).

    Example:
        >>> round(farthest(100_000, 0.25, 0.001), 4)
        0.9529
    """
    from scipy.special import ndtri

    return sigma * float(ndtri(alpha ** (1 / draws)))


# Copies in rounds: when enough of them are drawn, and how sure one may be of what they say then.
#
#     looks at   n_1 < n_2 < ... < n_R = copies,  each about twice the one before;  stop at any of them
#
# A bound that holds with confidence ``1 - a`` at each of ``R`` numbers of draws holds at all of them together with
# ``1
# - R a`` (Bonferroni 1936), so with ``a = alpha / R`` it holds with ``1 - alpha`` wherever one stops, for whatever
#   reason. Looks that double are few: the exact bounds of Clopper and Pearson pay ``ln R`` for them in ``ln(1 /
#   alpha)``, where a martingale that holds at every number of draws pays about half of ``ln n``.
#
# One stops as soon as every radius that is wanted is decided: the lower end of the chance of each event exceeds
# ``Phi(r / sigma)``, or its upper end does not reach it.

EVENTS = ("kept", "retrieved")
"""Events of a copy that are voted on, besides the classes of probes."""


@final
@dataclass(frozen=True)
class Stopping(SharedSettings):
    """When enough copies are drawn; by default all of them are, at once."""

    wanted: tuple[float, ...] = ()
    """l2 radii to decide, for each of ``events`` and the class of each probe."""
    certainty: float = 0.001
    """The chance of error with which they are decided; certificates have their own."""
    least: int | None = None
    """The fewest copies after which one looks; None: one looks once."""
    events: tuple[str, ...] = EVENTS

    def looks(self, copies: int) -> tuple[int, ...]:
        """Return the numbers of copies at which one may stop.

        Example:
            >>> Stopping(least=6000).looks(100_000), Stopping().looks(1000), Stopping(least=6000).looks(400)
            ((6250, 12500, 25000, 50000, 100000), (1000,), (400,))
        """
        looks = [copies]
        while self.least is not None and ceil(looks[0] / 2) >= self.least:
            looks.insert(0, ceil(looks[0] / 2))
        return tuple(looks)

    def decided(self, counts: Int[Tensor, "e"], draws: int, copies: int, sigma: float) -> bool:
        """True if every wanted radius is decided for every event.

        A radius that not even ``copies`` copies could certify is not waited for.

        Args:
            counts: Copies that showed each event, shape (e,).
            copies: Largest number of copies.
            sigma: Standard deviation of the noise in pixel units, above 0.
        """
        alpha = self.certainty / len(self.looks(copies))
        lower, upper = least_share(counts, draws, alpha), 1 - least_share(draws - counts, draws, alpha)
        wanted = torch.tensor(self.wanted, dtype=torch.float64, device=counts.device)
        thresholds = torch.special.ndtr(wanted / sigma)
        thresholds = thresholds[thresholds < alpha ** (1 / copies)]
        return bool(((lower[:, None] > thresholds) | (upper[:, None] < thresholds)).all())

    def fewest(self, copies: int, sigma: float) -> int:
        """Copies after which drawing stops at an image whose copies all agree.

        Args:
            copies: Largest number of copies.
            sigma: Standard deviation of the noise in pixel units, above 0.
        """
        looks = self.looks(copies)
        return next((n for n in looks[:-1] if self.decided(torch.tensor([n]), n, copies, sigma)), looks[-1])


def counts_of(third: Observed, views: int, stopping: Stopping, chosen: dict[int, int]) -> Int[Tensor, "e"]:
    """Counts of each event: of every view, and of the chosen class of every probe.

    Args:
        views: Number of divergences.
        stopping: Events and radii that decide when to stop.
        chosen: Column of the chosen class, by number of the probe.
    """
    events = [third[f"{k}.{event}"].sum() for k in range(views) for event in stopping.events]
    return torch.stack([*events, *(third[f"probe {k}"].sum(0)[place] for k, place in chosen.items())]).long()
