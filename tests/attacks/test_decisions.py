"""RayS beside a slow search over all directions of signs."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from holdfast.attacks.black_box import radii_by_decisions
from holdfast.attacks.radius_search import Goal
from holdfast.core.balls import L2, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError

WEIGHT = torch.tensor([0.5, -2.0, 1.0, 0.25, -1.0, 3.0])
LINEAR_MARGIN = 0.2


class Counting(nn.Module):
    """The pixels themselves, and how often anybody asked for them."""

    queries = 0

    def forward(self, pixels: Float[Tensor, "b 1 2 3"]) -> Float[Tensor, "b 6"]:
        Counting.queries += 1
        return pixels.flatten(1)


def goal(curved: float = 0.0) -> Goal:
    pixels = torch.rand(7, 1, 2, 3, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.4
    clean = pixels.flatten(1)

    def event(codes: Float[Tensor, "b 6"]) -> Bool[Tensor, "b"]:
        moves = codes - clean[: len(codes)]
        return moves @ WEIGHT + curved * (moves[:, 0] * moves[:, 1]) > LINEAR_MARGIN

    return Goal(Encoder(Counting(), "pixels", Domain((1, 2, 3))), pixels, lambda codes: codes.sum(1), event)


def by_trying_all_directions(goal: Goal, widest: float) -> Float[Tensor, "b"]:
    """Bisect along each of the 64 directions."""
    best = torch.full((len(goal.pixels),), torch.inf)
    for signs in product((-1.0, 1.0), repeat=6):
        direction = torch.tensor(signs).reshape(1, 1, 2, 3)
        low, high = torch.zeros(len(best)), torch.full((len(best),), widest)
        ever = goal.happens(goal.pixels + widest * direction)
        for _ in range(20):
            middle = (low + high) / 2
            happens = goal.happens(goal.pixels + middle.reshape(-1, 1, 1, 1) * direction)
            low, high = torch.where(happens, low, middle), torch.where(happens, middle, high)
        best = torch.where(ever, torch.minimum(best, high), best)
    return best


@pytest.mark.parametrize("curved", [0.0, 5.0])
def test_many_decisions_find_the_best_of_all_directions_and_few_an_upper_bound(curved: float) -> None:
    searched = goal(curved)
    best = by_trying_all_directions(searched, 0.3)
    Counting.queries = 0
    many, few = radii_by_decisions(searched, Linf(0.3), 400), radii_by_decisions(searched, Linf(0.3), 40)
    assert Counting.queries == 440, "the stated number of queries"
    assert bool((many <= few).all())
    assert bool((many >= best * (1 - 1e-3)).all())
    assert bool((many <= best * 1.02).all())
    assert bool((few > 1.02 * best).any()), "vacuous budget"


def test_what_is_never_lost_has_no_radius_and_other_norms_are_refused() -> None:
    searched = goal()
    assert radii_by_decisions(searched, Linf(0.02), 100).isinf().all()
    with pytest.raises(HoldfastError, match="in linf balls, got l2:1"):
        radii_by_decisions(searched, L2(1.0), 10)


def test_images_do_not_influence_each_other() -> None:
    searched = goal(5.0)
    together = radii_by_decisions(searched, Linf(0.3), 60)
    first = Goal(searched.encoder, searched.pixels[:3], searched.objective, searched.event)
    assert torch.equal(radii_by_decisions(first, Linf(0.3), 60), together[:3])
