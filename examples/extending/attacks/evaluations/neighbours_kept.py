"""Neighbours kept: the share of an image's nearest neighbours that are still its nearest after an attack.

``neighbours_kept(x) = |N_k(f(x^)) & N_k(f(x))| / k``, where ``N_k(z)`` are the ``k`` clean codes nearest to ``z``, that of
``x`` itself left out. A search that answers with several images feels this before the nearest one changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from holdfast.extend import (
    AdaptiveAttack,
    Attack,
    Ball,
    Case,
    Claim,
    Evaluation,
    Findings,
    HoldfastError,
    L2Distance,
    Linf,
    Observed,
    Population,
    Question,
    Sizes,
    Untargeted,
    nearest_rows,
    population_warnings,
    series_of,
    summarise,
)


@final
@dataclass(frozen=True)
class NeighboursKept(Evaluation):
    """How much of its neighbourhood an image keeps under attack."""

    ball: Ball = Linf(0.05)
    attack: Attack = AdaptiveAttack()
    k: int = 10
    samples: int = 1000
    sizes = Sizes(quick={"samples": 300}, full={"samples": 10_000, "attack": "adaptive:steps=100,restarts=5"})
    name = "neighbours-kept"
    version = 1
    title = "Neighbours kept"
    meaning = (
        "The share of an image's nearest neighbours that an attack on it leaves in place: 1 means an untouched "
        "neighbourhood, 0 an entirely new one. A stronger attack may leave less."
    )
    headline = ("neighbours_kept",)
    words = (("neighbours_kept", "nearest neighbours kept"),)
    questions = (
        Question(
            text="Does a search still answer with the same images?",
            quantities=("neighbours_kept",),
            meaning="nearest neighbours that an attack leaves in place",
            first_screen=True,
        ),
    )

    def observation(self) -> Untargeted:
        return Untargeted(self.ball, (self.attack,), L2Distance(), self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        if len(population.images) <= self.k:
            raise HoldfastError(f"{self.k} neighbours need more than {len(population.images)} images; lower k")
        case = Case(self.ball, self.attack, L2Distance())
        clean = population.codes
        moved = self.observation().of_attack(self.attack, observed)["codes"].to(clean.device)
        kept = shared(
            nearest_rows(L2Distance(), clean[list(rows)], clean, self.k, exclude=rows),
            nearest_rows(L2Distance(), moved, clean, self.k, exclude=rows),
        )
        of, missing = "share kept in the worst case", "its code is not finite"
        series = series_of("neighbours_kept", case.conditions, kept, "share", Claim.UPPER, of, missing)
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=(series,),
            estimates=(summarise(series, "mean", "higher"),),
            warnings=population_warnings(population),
        )


def shared(before: Tensor, after: Tensor) -> Float[Tensor, "b"]:
    """Return the share of each row's entries of ``before``, shape (b, k), that occur in its row of ``after``."""
    return (before[:, :, None] == after[:, None, :]).any(dim=2).double().mean(dim=1)
