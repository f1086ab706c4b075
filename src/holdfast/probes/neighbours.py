"""The weighted nearest-neighbour probe: the most similar images of the reference set vote for their classes.

    score_c(x) = sum over the k images i of the reference set with the largest cos_i, those with label c, of exp(cos_i / T)

Wu et al. 2018, https://arxiv.org/abs/1805.01978, section 3.4, with its k = 200, and the usual T = 0.1. Nothing is trained,
and neighbours are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.encoder import Codes
from holdfast.core.errors import OutOfRange
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.measure.population import LooksAt, Population
from holdfast.probes.base import FittedProbe, Probe, taught

BLOCK = 2**24
"""Entries of the products that are held at a time."""
WIDTH = 32
"""Products of which the largest decides whether the others are looked at."""

COLDEST = 0.02
"""Below, the votes of near and far images, exp(cos / T), leave the range of float32."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Neighbours(FittedProbe):
    """Reference set to search, with the class of each image."""

    bank: Float[Tensor, "n d"]
    """Unit embeddings of the reference set, shape (n, d)."""
    columns: Int[Tensor, "n"]
    """Class of each image of the reference set, as a column of the scores, shape (n,)."""
    k: int
    temperature: float

    def scores(self, codes: Codes) -> Float[Tensor, "b c"]:
        size = max(1, BLOCK // len(self.bank))
        return torch.cat([self._votes(block) for block in unit(codes.to(self.bank.dtype)).split(size)])

    def _votes(self, units: Codes) -> Float[Tensor, "b c"]:
        cosines, neighbours = largest(units @ self.bank.T, self.k)
        votes = torch.zeros(len(units), len(self.classes), dtype=units.dtype, device=units.device)
        return votes.scatter_add(1, self.columns[neighbours], (cosines / self.temperature).exp())

    def logits(self, codes: Codes) -> Float[Tensor, "b c"]:
        """Logarithm of the votes of the whole reference set.

        Among k neighbours alone, most classes have neither a vote nor a slope.
        """
        weights = (unit(codes.to(self.bank.dtype)) @ self.bank.T / self.temperature).exp()
        votes = torch.zeros(len(codes), len(self.classes), dtype=weights.dtype, device=weights.device)
        return votes.index_add(1, self.columns, weights).log()


@final
@dataclass(frozen=True)
class Knn(Probe):
    """Weighted vote of the nearest images of the reference set under cosine."""

    k: int = 200
    """Nearest images that vote."""
    temperature: float = 0.1
    """Temperature of the votes."""
    name = "knn"
    version = 1

    def __post_init__(self) -> None:
        check_positive(self, "k")
        if not self.temperature >= COLDEST:
            raise OutOfRange("knn: temperature", self.temperature, f"at least {COLDEST}")

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        return {"classes": taught(population.bank).unique()}

    def restore(self, population: Population, learned: Observed) -> Neighbours:
        bank = population.bank
        classes, count = learned["classes"].to(bank.run.device), len(bank.images)
        few = f"{self} asks {self.k} neighbours, and the bank has {count} images: all of them vote"
        return Neighbours(
            encoder=population.encoder,
            classes=classes,
            caution=few if self.k > count else "",
            bank=unit(bank.codes),
            columns=torch.searchsorted(classes, bank.labels),
            k=min(self.k, count),
            temperature=self.temperature,
        )


def unit(codes: Codes) -> Codes:
    """Embeddings on the unit sphere; a zero embedding stays zero, equally far from all."""
    # Scaled by their largest entry first, so that squares neither overflow nor vanish.
    tiny = torch.finfo(codes.dtype).tiny
    scaled = codes / codes.detach().abs().amax(-1, keepdim=True).clamp_min(tiny)
    return scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).clamp_min(tiny)


def largest(products: Float[Tensor, "b n"], k: int) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """Largest entries of each row and their columns, in no particular order.

    They lie in the k groups of entries with the largest maxima, so that other groups need no search: sorting whole rows
    takes longer than the products themselves.
    """
    groups = products.shape[1] // WIDTH
    if groups <= 2 * k:
        top = products.topk(k, sorted=False)
        return top.values, top.indices
    grouped = products[:, : groups * WIDTH].reshape(-1, WIDTH, groups)
    chosen = grouped.detach().amax(1).topk(k, sorted=False).indices
    rest = torch.arange(groups * WIDTH, products.shape[1], device=products.device).expand(len(products), -1)
    steps = groups * torch.arange(WIDTH, device=products.device)
    places = torch.cat([(chosen[:, None] + steps[:, None]).flatten(1), rest], 1)
    top = products.gather(1, places).topk(k, sorted=False)
    return top.values, places.gather(1, top.indices)
