"""The measures without labels, image by image or pair by pair, from two attacks: away from oneself, and toward another."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import holdfast as hf
from holdfast.attacks.attacked_codes import Targeted, Untargeted
from holdfast.attacks.presets import read_attack
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.points.counting import closer_counts, share_of_pairs_within
from holdfast.measure.population import Population

NAMES = (
    "breakaway risk",
    "nearest neighbour kept",
    "universal quantile",
    "relative quantile",
    "overlap risk",
    "adversarial margin",
)
UNITS = dict(zip(NAMES, ("images",) * 3 + ("pairs",) * 3, strict=True))
LOWER_IS_BETTER = ("breakaway risk", "universal quantile", "overlap risk")
U_PGD = "pgd:steps=25,step=0.001,keep=last"
"""The attack that the paper measures breakaway with."""
STRONG = "adaptive:restarts=2"
Series = Float[np.ndarray, "n"]


def away(
    population: Population, count: int, eps: float, attack: str, divergence: Divergence | None = None
) -> tuple[list[int], Float[Tensor, "n d"]]:
    """Return rows and the codes to which the images there were moved away from themselves."""
    observation = Untargeted(hf.Linf(eps), (read_attack(attack),), divergence or L2Distance(), count)
    rows = observation.rows(population)
    return rows, observation.observe(population, rows)["0.codes"]


def breakaway(
    population: Population, rows: list[int], moved: Float[Tensor, "n d"], divergence: Divergence | None = None
) -> Series:
    """Return for each moved image the share of the other images that its code is closer to than to its own."""
    counts = closer_counts(divergence or L2Distance(), moved, torch.tensor(rows), population.codes)
    return (counts.double() / (len(population.images) - 1)).numpy()


def measured_of(
    population: Population, count: int, eps: float, attack: str = STRONG, divergence: Divergence | None = None
) -> dict[str, Series]:
    """Return each measure: one value for each of ``count`` images, or for each of at most as many pairs of images."""
    kind = divergence or L2Distance()
    rows, moved = away(population, count, eps, attack, kind)
    shares = breakaway(population, rows, moved, kind)
    clean = population.codes
    far = kind(moved.double(), clean[rows].double())
    quantiles = share_of_pairs_within(kind, far, clean).numpy()
    return {
        "breakaway risk": shares,
        "nearest neighbour kept": (shares == 0).astype(float),
        "universal quantile": quantiles,
        **pairwise(population, count, eps, attack, kind),
    }


def pairwise(population: Population, count: int, eps: float, attack: str, kind: Divergence) -> dict[str, Series]:
    """Return what follows of pairs of images that are moved toward each other."""
    observation = Targeted(hf.Linf(eps), (read_attack(attack),), kind, count)
    rows = observation.rows(population)
    found = observation.observe(population, rows)
    ahead, back = found["0.ahead"].double(), found["0.back"].double()
    first = population.codes[rows].double()
    second = population.codes[population.partners[rows]].double()
    apart = kind(first, second)
    gap = kind(first, back) - kind(first, ahead)
    return {
        "relative quantile": (kind(ahead, second) / apart).numpy(),
        "overlap risk": (gap < 0).double().numpy(),
        "adversarial margin": (gap / apart).numpy(),
    }


def better(name: str, one: Series, other: Series) -> Series:
    """Return by how much ``one`` is better than ``other`` in a measure, value by value."""
    return other - one if name in LOWER_IS_BETTER else one - other
