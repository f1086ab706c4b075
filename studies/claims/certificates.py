"""Pairs of an anchor and a negative, and what is proved and attacked of them: what the claims on certificates share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.presets import read_attack
from holdfast.bounds import read_method
from holdfast.bounds.certified_pairs import PairAttack, Pairs, image_pairs, unit_ball
from holdfast.bounds.pair_bounds import certified_radii, nearest_confusion
from holdfast.bounds.regions import region
from holdfast.core.files import write_whole
from holdfast.measure.population import Population
from studies.claims.material import Material

IMAGES = 1000
"""Test images that negatives are drawn from."""
NEURONS = 50_000
PLAIN = "crown:joint=false"
"""CROWN as published, not intersected with interval bounds."""
TOLERANCE = 2e-3
"""Of certified radii, as a share of the way to the farthest negative."""
STEP, ATTACKED_TOGETHER = 5, 100
"""Anchors bounded, and attacked, together."""


def anchors(population: Population, samples: int) -> list[int]:
    """Return the rows of the anchors, the same for every encoder of these images."""
    return population.choose(samples)


def certified(
    material: Material, name: str, samples: int, negatives: int, method: str = PLAIN, among: int = IMAGES
) -> Float[np.ndarray, "b k"]:
    """Return the certified radius of each pair of a published encoder, with negatives ``among`` so many images."""

    def compute() -> np.ndarray:
        parts = [
            certified_radii(pairs, unit_ball("linf"), read_method(method), TOLERANCE)
            for pairs in batches(material, name, samples, negatives, among)
        ]
        return torch.cat(parts).numpy()

    return kept(material, f"certified-{name}-{among}-{samples}-{negatives}-{method}-{TOLERANCE:g}", compute)


def radii_attacked(material: Material, name: str, images: hf.Images, negatives: int) -> Float[np.ndarray, "b"]:
    """Return of each image the mean over some others of the smallest change that makes it one of them."""

    def compute() -> np.ndarray:
        population, radii = Population(material.published(name), images, hf.RunSettings()), list[np.ndarray]()
        for start in range(0, len(images), ATTACKED_TOGETHER):
            rows = range(start, min(start + ATTACKED_TOGETHER, len(images)))
            radii.append(attacked_sizes(image_pairs(population, rows, negatives, NEURONS)).mean(1).numpy())
        return np.concatenate(radii)

    return kept(material, f"attacked-{name}-{images.fingerprint}-{negatives}", compute)


def attacked_sizes(pairs: Pairs, certified: Float[Tensor, "b k"] | None = None) -> Float[Tensor, "b k"]:
    """Return the smallest change found that takes each anchor for its negative; below ``certified`` none is looked for."""
    attack = PairAttack(pairs, unit_ball("linf"), read_attack("adaptive:restarts=1,steps=10"))
    known = torch.zeros(pairs.shape, dtype=torch.float64) if certified is None else certified
    return attack.sizes(nearest_confusion(attack, known).points).reshape(pairs.shape)


@dataclass(frozen=True)
class Bracketed:
    """Pairs of a published encoder with bounds of their robust radius from both sides, by independent programs."""

    images: Float[np.ndarray, "b ..."]
    """The anchors, the first test images; the negative ``negatives[i, k]`` of anchor ``i`` is one of them."""
    negatives: Int[np.ndarray, "b k"]
    certified: Float[np.ndarray, "b k"]
    """By CROWN (auto_LiRPA), bisected to 1e-4."""
    attacked: Float[np.ndarray, "b k"]
    """The smallest change found that succeeds."""
    cosines: Float[np.ndarray, "b k"]

    @classmethod
    def of(cls, material: Material, name: str) -> Bracketed:
        """Return what the reference folder holds of an encoder."""
        bounds = material.arrays(f"verification/autolirpa__{name}.npz")
        attacks = material.arrays(f"verification/pgd__{name}.npz")
        # Unit codes differ by a vector of squared length 2 - 2 cos.
        cosines = 1 - np.square(bounds["C_f64"]).sum(2) / 2
        radii = bounds["radius_clip_f64"], attacks["pgd_radius_clip"].astype(np.float64)
        return cls(bounds["X_f32"], bounds["neg_index"], *radii, cosines)


def batches(material: Material, name: str, samples: int, negatives: int, among: int = IMAGES) -> list[Pairs]:
    """Return the pairs of a published encoder, some anchors at a time."""
    population = material.population(material.published(name), among)
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
