"""Pairs of an anchor and a negative, and what is proved and attacked of them: what the claims on certificates share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.presets import read_attack
from holdfast.bounds import read_method
from holdfast.bounds.regions import region
from holdfast.core.files import write_whole
from holdfast.evaluations.certified.pair_attack import PairAttack
from holdfast.evaluations.certified.pairs import Pairs, image_pairs, unit_ball
from holdfast.evaluations.certified.radius_bounds import certified_radii, radius_bounds
from holdfast.protocol.population import Population
from studies.claims.material import Material

IMAGES = 1000
"""Test images that negatives are drawn from."""
NEURONS = 50_000
ATTACK = "adaptive:restarts=1,steps=15"
PLAIN = "crown:joint=false"
"""CROWN as published, not intersected with interval bounds."""
TOLERANCE = 2e-3
"""Of certified radii, as a share of the way to the farthest negative."""
STEP = 5
"""Anchors bounded together."""


def anchors(population: Population, samples: int) -> list[int]:
    """Return the rows of the anchors, the same for every encoder of these images."""
    return population.choose(samples)


def certified(
    material: Material, name: str, samples: int, negatives: int, method: str = PLAIN
) -> Float[np.ndarray, "b k"]:
    """Return the certified radius of each pair of a published encoder."""

    def compute() -> np.ndarray:
        parts = [
            certified_radii(pairs, unit_ball("linf"), read_method(method), TOLERANCE)
            for pairs in batches(material, name, samples, negatives)
        ]
        return torch.cat(parts).numpy()

    return kept(material, f"certified-{name}-{samples}-{negatives}-{method}", compute)


def certified_and_attacked(
    material: Material, name: str, samples: int, negatives: int
) -> tuple[Float[np.ndarray, "b k"], Float[np.ndarray, "b k"]]:
    """Return the certified radius of each pair, and the smallest at which an attack succeeded."""

    def compute() -> np.ndarray:
        found = [
            radius_bounds(PairAttack(pairs, unit_ball("linf"), read_attack(ATTACK)), read_method(PLAIN), TOLERANCE)
            for pairs in batches(material, name, samples, negatives)
        ]
        return np.stack([torch.cat([one[of] for one in found]).numpy() for of in ("certified", "attacked")])

    both = kept(material, f"both-{name}-{samples}-{negatives}", compute)
    return both[0], both[1]


def batches(material: Material, name: str, samples: int, negatives: int) -> list[Pairs]:
    """Return the pairs of a published encoder, some anchors at a time."""
    population = material.population(material.published(name), IMAGES)
    rows = anchors(population, samples)
    return [
        image_pairs(population, rows[start : start + STEP], negatives, NEURONS) for start in range(0, len(rows), STEP)
    ]


def kept(material: Material, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array that is computed once and then read from the folder of work."""
    path = material.work / f"{name.replace(':', '-')}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, saved(compute()))
    found: np.ndarray = np.load(path)
    return found


def saved(array: np.ndarray) -> bytes:
    """Return the bytes of an array's file."""
    held = BytesIO()
    np.save(held, array)
    return held.getvalue()


def labels(population: Population, samples: int, negatives: int) -> tuple[Int[Tensor, "b"], Int[Tensor, "b k"]]:
    """Return the labels of anchors and of their negatives."""
    rows = anchors(population, samples)
    return population.labels[rows], population.labels[population.others(rows, negatives)]


def with_head(material: Material, name: str) -> hf.Encoder:
    """Return a published encoder followed by its published linear head: its codes are the logits."""
    encoder = material.published(name)
    weight, bias = material.head(name)
    head = nn.Linear(weight.shape[1], len(weight))
    head.load_state_dict({"weight": weight.float(), "bias": bias.float()})
    return hf.Encoder(nn.Sequential(encoder.module, head).eval(), f"{name} with head", encoder.domain)


def proved_at(pairs: Pairs, radii: Float[Tensor, "p"], factors: Sequence[float], method: str) -> Float[Tensor, "p"]:
    """Return the largest of ``factors`` at which each pair is proved at that multiple of its radius, 1 if at none."""
    reached, bound = torch.ones_like(radii), read_method(method)
    specifications = pairs.specifications.flatten(0, 1)[:, None]
    for factor in factors:
        at = region(pairs.images, hf.Linf, radii * factor, pairs.encoder.domain)
        proved = bound(pairs.graph, at, specifications)[:, 0] > 0
        reached = torch.where(proved, factor, reached)
    return reached
