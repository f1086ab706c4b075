"""Codes of noisy copies, seen once and reduced at once: all that smoothing certificates of an image are made of.

Three independent sets of copies of each image, as center smoothing asks for: the first finds the centre, and what each
vote is about; the second tells whether the ball around the centre holds half the mass; the third is what is certified by.
Of each copy only what is counted is kept, so memory holds the first set's codes and a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.evaluations.smoothed.center import central_sample
from holdfast.evaluations.smoothed.index import Index, Smoothing, embedding
from holdfast.probes.base import FittedProbe, Probe
from holdfast.protocol.fits import Fit, whitenings
from holdfast.protocol.observation import Observation, entries, joined
from holdfast.protocol.population import Population

KEPT = 1024
"""How many order statistics of the distances are kept: a quantile is read from the next one above it."""
BLOCK = 2**24
"""Entries of one tile of products: 64 MB in float32."""


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
        self, purpose: str, count: int, work: Callable[[Codes], Observed], centre: Tensor | None = None
    ) -> Observed:
        """Return what ``work`` makes of the codes of ``count`` copies, block by block, joined.

        ``centre`` are other pixels to draw them around.
        """
        population = self.population
        pixels = population.pixels([self.row]) if centre is None else centre
        streams, precise = self.noise.fork(purpose), torch.promote_types(pixels.dtype, torch.float32)

        def block(draws: Sequence[int]) -> Observed:
            numbered = streams.numbered(torch.tensor(draws, device=pixels.device))
            # Normal noise, rounded once with the image: theorems hold for encoders that round what they are given.
            noisy = numbered.gaussian(pixels.shape[1:], precise).mul_(self.sigma).add_(pixels)
            return work(population.encode(noisy.to(pixels.dtype)))

        return population.run.batches(range(count), block)


@final
@dataclass(frozen=True)
class NoisyCodes(Observation):
    """What the codes of each image's noisy copies say; entry ``name`` under divergence ``k`` is called ``k.name``.

    ``centre``: of the first set, in the divergence's embedding; ``radius``: of the ball around it that holds half of that
    set; ``held``: the share of the second set in it; ``distances``: order statistics of the third set's distances from it;
    ``error``: its distance from the clean code. Of the third set's copies, ``nearer``: how many are nearer to their own
    entry of the index than to each other image's; ``kept``: how many are nearest to their own; ``retrieved``: how many have,
    their own left out, the neighbour that most of the first set have; ``agrees``: whether the clean code has it too.

    Where images and bank have labels, also how often each probe says each class: ``probe k.first`` of the first set, and
    ``probe k.votes`` of the third.
    """

    smoothing: Smoothing
    divergences: tuple[Divergence, ...]
    probes: tuple[Probe, ...]
    name = "noisy-codes"
    version = 2
    uses_bank = True
    uses_labels = True

    def fits(self) -> tuple[Fit[Any], ...]:
        return (*whitenings(self), self.smoothing.index, *self.probes)

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.smoothing.samples)

    def inputs(self, population: Population) -> int:
        return self.smoothing.forwards

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        observations = [self._of_image(population, row) for row in rows]
        return {name: torch.stack([values[name] for values in observations]) for name in observations[0]}

    def _of_image(self, population: Population, row: int) -> Observed:
        smoothing = self.smoothing
        copies = Copies.of(population, row, smoothing.sigma)
        first = copies.reduced("centre", smoothing.selection, lambda codes: {"codes": codes})["codes"]
        views = [View.of(population, row, smoothing, divergence, first) for divergence in self.divergences]
        probes = self._answering(population)
        second = copies.reduced("held", smoothing.selection, lambda codes: joined([view.held(codes) for view in views]))
        third = copies.reduced(
            "certify",
            smoothing.copies,
            lambda codes: {
                **joined([view.counted(codes) for view in views]),
                **{f"probe {k}": voted(probe, codes)[None] for k, probe in probes.items()},
            },
        )
        votes = {f"probe {k}.votes": third[f"probe {k}"].sum(0) for k in probes}
        early = {f"probe {k}.first": voted(probe, first) for k, probe in probes.items()}
        summaries = [view.summary(entries(second, k), entries(third, k)) for k, view in enumerate(views)]
        return {**joined(summaries), **votes, **early}

    def of_divergence(self, divergence: Divergence, observed: Observed) -> Observed:
        """Return what copies say under ``divergence``, from what was ``observed``."""
        return entries(observed, self.divergences.index(divergence))

    def of_probe(self, probe: Probe, observed: Observed) -> Observed:
        """Return the counts of ``probe``, ``first`` and ``votes``, from what was ``observed``."""
        return entries(observed, f"probe {self.probes.index(probe)}")

    def _answering(self, population: Population) -> dict[int, FittedProbe]:
        """Return the probes that could be learned, by their places; without labels nobody asks them.

        Whoever needs one that could not is told why when it is concluded; the others need not fail with it.

        Raises:
            HoldfastError: a probe scores the codes of another encoder.
        """
        probes: dict[int, FittedProbe] = {}
        if population.images.labels is None:
            return probes
        for index, probe in enumerate(self.probes):
            with suppress(HoldfastError):
                probes[index] = population.learned(probe)
        for index, fitted in probes.items():
            if fitted.encoder is not population.encoder:
                raise HoldfastError(
                    f"noisy copies are encoded once for all probes, and {self.probes[index]} scores codes of an encoder of "
                    "its own; use knn, linear, noise or robust"
                )
        return probes


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

    def held(self, codes: Codes) -> Observed:
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

    def summary(self, second: Observed, third: Observed) -> Observed:
        """Return what is kept of the image, from what was seen of its second and third set of copies."""
        distances = third["distances"].sort().values
        return {
            "centre": self.centre,
            "radius": torch.tensor(self.radius, dtype=torch.float64),
            "held": second["held"].double().mean(),
            "distances": distances[kept_ranks(len(distances)) - 1],
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


def kept_ranks(draws: int) -> Int[Tensor, "g"]:
    """Return which order statistics of so many distances are kept, from the median on; rank 1 is the least.

    Example:
        >>> kept_ranks(6)
        tensor([3, 4, 5, 6])
    """
    first = ceil(draws / 2)
    return torch.linspace(first, draws, min(KEPT, draws - first + 1), dtype=torch.float64).sub(1e-6).ceil().long()
