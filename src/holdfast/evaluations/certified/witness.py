"""Witnesses: points that refute a certificate, recomputed and spelled out so that anybody can check them."""

from __future__ import annotations

from base64 import b64encode

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.bounds.methods.base import Method
from holdfast.core.balls import Ball
from holdfast.core.whole_float32 import whole_float32
from holdfast.evaluations.certified.pairwise.pair_attack import AttackResult, PairAttack
from holdfast.evaluations.certified.pairwise.radius_bounds import certify_cheaply_and_attack, cross_check
from holdfast.protocol.population import Population


def point_witness(
    population: Population, row: int, point: Float[Tensor, "*pixels"], norm: Ball, facts: dict[str, str]
) -> dict[str, str]:
    """Return ``facts`` about a ``point`` near the image at ``row``, how far away it is in ``norm``, and its pixels."""
    distance = norm.norm(point[None] - population.pixels([row]).double())
    # Exactly, as text.
    pixels = b64encode(point.cpu().numpy().astype("<f8").tobytes()).decode()
    return {**facts, "distance": f"{float(distance):.6g}", "pixels_float64_base64": pixels}


def pair_witness(
    population: Population,
    row: int,
    pair_attack: PairAttack,
    result: AttackResult,
    certified: Bool[Tensor, "k"],
    radii: Float[Tensor, "k"],
) -> dict[str, str]:
    """Return the worst point of the ``certified`` pairs of the image at ``row``, replayed in the run's own precision.

    Args:
        population: the images and their encoder.
        row: the anchor of all pairs.
        pair_attack: the attacks on its pairs alone.
        result: what they found.
        certified: the pairs whose certificate is at stake.
        radii: the certified radius of each pair.
    """
    worst = int(result.values.masked_fill(~certified, torch.inf).argmin())
    point = result.points[worst]
    replayed = replay(population, point, pair_attack.pairs.specifications[0, worst])
    facts = {
        "image": population.images.ids[row],
        "negative": pair_attack.pairs.ids[0][1 + worst],
        "certified_radius": f"{float(radii[worst]):.6g}",
        "value_in_float64": f"{float(result.values[worst]):.3g}",
        f"value_in_{population.run.precision}": f"{replayed:.3g}",
    }
    return point_witness(population, row, point, pair_attack.ball, facts)


@whole_float32()
def replay(population: Population, point: Float[Tensor, "*pixels"], specification: Float[Tensor, "d"]) -> float:
    """Return ``W f`` of a witness by the encoder as users run it, in the run's own precision."""
    with torch.no_grad():
        (code,) = population.encoder.forward(point[None].to(population.run.device, population.run.dtype))
    return float((code.to(specification) * specification).sum())


def radius_witness(
    population: Population,
    row: int,
    pair_attack: PairAttack,
    method: Method,
    tolerance: float,
    radii: Float[Tensor, "k"],
    refuted: Bool[Tensor, "k"],
) -> dict[str, str]:
    """Return a point inside one of the certified ``radii`` of the image at ``row`` that attacks ``refuted``."""
    device = pair_attack.pairs.specifications.device
    radii, refuted = radii.to(device), refuted.to(device)
    result = cross_check(pair_attack, radii[None].nan_to_num(0))
    if not bool((result.values <= 0).any()):
        _, result = certify_cheaply_and_attack(pair_attack, method, tolerance)
    return pair_witness(population, row, pair_attack, result, refuted, radii)
