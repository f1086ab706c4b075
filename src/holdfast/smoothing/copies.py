"""Noisy copies of an image: drawn in rounds, reduced to votes, stopped when they are enough."""

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
    """Return which order statistics of the distances are kept, from the median on; rank 1 is the least.

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
    """Return the lower end, with confidence ``1 - alpha``, of the chance of what happened in ``count`` of ``draws``.

    Clopper and Pearson 1934, one-sided.

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
    """Return within which l2 radius the event keeps the majority; nan where it may not have it at all.

    Example:
        >>> radius(torch.tensor([0.4, 0.8413]), 0.25)
        tensor([   nan, 0.2500])
    """
    return torch.where(share > 0.5, sigma * torch.special.ndtri(share), torch.nan)


def needed_draws(eps: float, sigma: float, alpha: float) -> int:
    """Return how many draws, all for the event, certify the radius ``eps``: ``alpha^(1/N) > Phi(eps / sigma)``.

    Example:
        >>> needed_draws(0.25, 0.25, 0.001)
        40
    """
    from scipy.special import log_ndtr

    return ceil(log(alpha) / float(log_ndtr(eps / sigma)))


def farthest(draws: int, sigma: float, alpha: float) -> float:
    """Return the largest radius that this number of draws can certify: when all are for the event.

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
"""What a copy may do that is voted on, beside what probes say of it."""


@final
@dataclass(frozen=True)
class Stopping(SharedSettings):
    """When enough copies are drawn; by default all of them are, at once."""

    wanted: tuple[float, ...] = ()
    """l2 radii that shall be decided, for each of the ``events`` and the class that each probe says."""
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
        """Return whether of each event, of which ``draws`` copies showed ``counts``, every wanted radius is decided.

        A radius that not even ``copies`` copies, all for an event, could certify is not waited for.
        """
        alpha = self.certainty / len(self.looks(copies))
        lower, upper = least_share(counts, draws, alpha), 1 - least_share(draws - counts, draws, alpha)
        wanted = torch.tensor(self.wanted, dtype=torch.float64, device=counts.device)
        thresholds = torch.special.ndtr(wanted / sigma)
        thresholds = thresholds[thresholds < alpha ** (1 / copies)]
        return bool(((lower[:, None] > thresholds) | (upper[:, None] < thresholds)).all())

    def fewest(self, copies: int, sigma: float) -> int:
        """Return after how many of ``copies`` one stops at an image whose copies all agree."""
        looks = self.looks(copies)
        return next((n for n in looks[:-1] if self.decided(torch.tensor([n]), n, copies, sigma)), looks[-1])


def counts_of(third: Observed, views: int, stopping: Stopping, chosen: dict[int, int]) -> Int[Tensor, "e"]:
    """Return how often each event was seen: those of each view, and the class ``chosen`` by each probe."""
    events = [third[f"{k}.{event}"].sum() for k in range(views) for event in stopping.events]
    return torch.stack([*events, *(third[f"probe {k}"].sum(0)[place] for k, place in chosen.items())]).long()
