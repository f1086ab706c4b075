"""What attacks maximise if it is not the distance that is measured: another distance, or a loss.

Petrov and Kwiatkowska 2022 (https://arxiv.org/abs/2210.04076) run one attack in l2 and report it in three distances
(tables 5 to 7). Section 4.3 of the paper attacks a training loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

import holdfast.attacks.objectives as home
from holdfast.core.discovery import named_classes
from holdfast.core.divergences import DIVERGENCES, Divergence, L2Distance
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.objective import DivergenceObjective, Objective
from holdfast.core.settings import read
from holdfast.measure.population import Population

NEAREST = 10
"""How many nearest other images an objective against neighbours faces, as in breakaway's own attack."""
RANDOM = 256
"""How many random other images an objective against a queue faces."""


def aim_of(objective: str, divergence: Divergence) -> tuple[Divergence, str]:
    """Distance and loss that attacks maximise.

    Args:
        objective: A distance such as ``l2`` or a loss such as ``queue``; empty for ``divergence``.
        divergence: Distance that is measured.

    Returns:
        The distance, and the loss that replaces it; empty if none does.

    Example:
        >>> aim_of("linf", L2Distance()), aim_of("queue:temperature=0.1", L2Distance())
        ((LinfDistance(), ''), (L2Distance(), 'queue:temperature=0.1'))
    """
    if not objective:
        return divergence, ""
    if objective.partition(":")[0] in DIVERGENCES:
        return Divergence.read(objective), ""
    return L2Distance(), objective


def read_loss(text: str) -> Objective:
    """Parse the loss that untargeted attacks of an evaluation maximise.

    Raises:
        HoldfastError: It depends on a target or on the rest of its batch, or there is no such loss.
    """
    loss = read(text, named_classes(home, Objective, "holdfast.objectives"), "objective")
    if loss.targeted or not loss.per_sample:
        raise OutOfRange(
            "objective", text, "a distance or a loss of one image, such as queue (holdfast attack runs the others)"
        )
    return loss


def rivals_of(population: Population, rows: Sequence[int], objective: Objective) -> Float[Tensor, "b k d"] | None:
    """Embeddings of the other images that ``objective`` compares each image with.

    Args:
        population: Images of the run with their clean embeddings.
        rows: Rows of the population.
        objective: Objective, which says whether it needs none, the nearest or random images.

    Returns:
        Embeddings, shape (b, k, d); None if the objective needs none.

    Raises:
        HoldfastError: The objective needs other images, and the population has only one image.
    """
    if objective.rivals == "none":
        return None
    others = len(population.images) - 1
    if others < 1:
        raise HoldfastError(
            f"the objective {objective.name} needs the embeddings of other images, but there is one; add images"
        )
    if objective.rivals == "nearest":
        divergence = objective.divergence if isinstance(objective, DivergenceObjective) else L2Distance()
        neighbours = population.nearest(divergence, population.codes[list(rows)], rows, NEAREST, population)
    else:
        neighbours = population.random_others(rows, RANDOM)
    return population.codes[neighbours]
