"""What an image's noisy copies are looked up in: its own entry, then those of others that it is told from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import SharedSettings
from holdfast.protocol.population import Population

COPIES = 16
"""How many noisy copies of an image its entry of the index is the mean code of."""


@final
@dataclass(frozen=True)
class Smoothing(SharedSettings):
    """How much noise, how many copies and how many images: the settings that all smoothing certificates share."""

    sigma: float
    selection: int
    copies: int
    samples: int
    others: int

    @property
    def index(self) -> NoisyIndex:
        """What noisy copies are looked up in."""
        return NoisyIndex(self.sigma, self.samples, self.others)

    @property
    def forwards(self) -> int:
        """How many noisy copies of an image the encoder looks at."""
        return 2 * self.selection + self.copies


@final
@dataclass(frozen=True)
class NoisyIndex(Fit[Observed]):
    """The index that noisy copies are looked up in: for each image the mean code of a few noisy copies.

    ``codes`` of the ``samples`` images that are looked at and of those that they are told from, by their places in
    ``shuffled``, and ``bank`` of the images of the bank that they are told from instead, if there is one.

    Clean codes would do as well, and certificates hold for any; but where noise moves all codes one way, as it does in
    encoders that never saw any, noisy copies are nearer to each other's than to any clean code.
    """

    sigma: float
    samples: int
    others: int
    name = "noisy-index"
    version = 1
    uses_bank = True
    uses_groups = True

    def _rows(self, population: Population) -> list[int]:
        """Return the images that get an entry, as they come in ``shuffled``: those looked at, and the others of each."""
        others = 0 if population.bank_images else self.others
        if others and population.groups is not None:  # those of the own group are passed over
            others += len(population.images) - 1 - population.fewest_others
        return population.shuffled[: self.samples + others].tolist()

    def forwards(self, population: Population) -> int:
        bank = min(self.others, len(population.bank_images)) if population.bank_images else 0
        return COPIES * (len(self._rows(population)) + bank)

    def learn(self, population: Population) -> Observed:
        learned = {"codes": self._entries(population, self._rows(population), "index")}
        if population.bank_images:
            learned["bank"] = self._entries(population.bank, population.bank.choose(self.others), "bank")
        return learned

    def restore(self, population: Population, learned: Observed) -> Observed:
        return {name: codes.to(population.run.device) for name, codes in learned.items()}

    def _entries(self, population: Population, rows: Sequence[int], purpose: str) -> Codes:
        """Return the mean codes of noisy copies of the images at ``rows``."""
        ids, run = population.images.ids, population.run

        def work(some: Sequence[int]) -> Observed:
            pixels, noise = population.pixels(some), run.noise([ids[row] for row in some]).fork(purpose)
            codes = torch.stack(
                [
                    population.encode(pixels + self.sigma * noise.fork(copy).gaussian(pixels.shape[1:], pixels.dtype))
                    for copy in range(COPIES)
                ]
            )
            return {"codes": codes.mean(0)}

        return run.batches(rows, work)["codes"]


@dataclass(frozen=True)
class Index:
    """What an image's noisy copies are looked up in: its own entry first, then those of other images."""

    entries: Float[Tensor, "m1 d"]
    """Relative to its own."""
    origin: Float[Tensor, "d"]
    half: Float[Tensor, "m1"]
    """Half the squared length of each entry; infinite for copies of the image itself, which are nobody's neighbour."""

    @classmethod
    def of(cls, population: Population, row: int, embed: Callable[[Codes], Codes], smoothing: Smoothing) -> Index:
        """Return the index of the image at ``row``."""
        learned = population.learned(smoothing.index)
        codes, places = learned["codes"], population.places
        entry = codes[places[[row]]]
        others = learned["bank"] if "bank" in learned else codes[places[others_of(population, row, smoothing.others)]]
        entries = embed(torch.cat([entry, others]).to(population.codes.dtype))
        origin, entries = entries[0], entries - entries[0]
        half = (entries.square().sum(1) / 2).nan_to_num(nan=torch.inf)
        half[1:].masked_fill_(~told_apart(population, row, smoothing.others), torch.inf)
        return cls(torch.nan_to_num(entries), origin, half)

    def levels(self, points: Float[Tensor, "b d"]) -> Float[Tensor, "b m1"]:
        """Return what orders the entries by their distance from each point: half its square, less the same for all of them.

        A point that is not finite has no distances, and hence no neighbour: nan.
        """
        return torch.addmm(self.half, points - self.origin, self.entries.T, alpha=-1)

    def nearer(self, points: Float[Tensor, "b d"]) -> Bool[Tensor, "b m"]:
        """Return whether each point is nearer to the image's own entry than to each other one."""
        levels = self.levels(points)
        return levels[:, 1:] > levels[:, :1]

    def neighbours(self, points: Float[Tensor, "b d"]) -> Int[Tensor, "b"]:
        """Return which other entry each point is nearest to; 0 if it is nearest to none, or to several alike."""
        levels = self.levels(points)
        levels[:, 0] = torch.inf
        least, entry = levels.min(1)
        alone = (levels == least[:, None]).sum(1, dtype=torch.int32) == 1
        return entry.where(alone & least.isfinite(), 0)


def embedding(population: Population, divergence: Divergence) -> Callable[[Codes], Codes]:
    """Return the embedding in which ``divergence`` grows with the Euclidean distance: a metric, which certificates need.

    Raises:
        HoldfastError: it has none.
    """
    fitted = population.fitted(divergence)

    def embed(codes: Codes) -> Codes:
        points = fitted.embed(codes)
        if points is None:
            raise HoldfastError(
                f"smoothing certifies distances that obey the triangle inequality, got the divergence {divergence}; "
                "use l2, cosine, unit_l2, whitened or rank"
            )
        return points

    return embed


def others_of(population: Population, row: int, count: int) -> list[int]:
    """Return up to ``count`` other images to tell the image at ``row`` from; none if there is only one image."""
    return population.others([row], count)[0].tolist() if len(population.images) > 1 else []


def told_apart(population: Population, row: int, count: int) -> Bool[Tensor, "m"]:
    """Return which of the others the image at ``row`` can be told from: no copies of it, none of its group.

    The bank holds no copies.
    """
    device = population.run.device
    if population.bank_images:
        kin = population.kin([row])
        if kin is not None:
            return (kin.theirs[population.bank.choose(count)] != kin.mine).to(device)
        return torch.ones(min(count, len(population.bank_images)), dtype=torch.bool, device=device)
    originals = population.originals
    return (originals[others_of(population, row, count)] != originals[row]).to(device)
