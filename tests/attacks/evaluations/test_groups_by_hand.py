"""Images that come in groups, where every number is known: those of one group are never others to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_radii import Searched
from holdfast.attacks.evaluations.attack_radius import AttackRadius
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.evaluations.impersonation import Impersonation
from holdfast.attacks.evaluations.overlap import Overlap
from holdfast.core.balls import Linf
from holdfast.core.divergences import Divergence, L2Distance, SoftmaxKL
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.points.counting import Kin, crossings, nearest_rows, share_of_pairs_within, shares_within
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population

DOUBLE = RunSettings(precision="float64")
ATTACK = AdaptiveAttack(restarts=1, steps=20)
VALUES, GROUPS = (0.2, 0.22, 0.3, 0.9), ("a", "a", "b", "c")


def pixel(values: tuple[float, ...] = VALUES, groups: tuple[str, ...] | None = GROUPS) -> Images:
    """Images of one pixel each."""
    pixels = torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1, 1)
    return Images(pixels, [f"v{value}" for value in values], groups=groups)


def identity() -> Encoder:
    return Encoder(nn.Flatten().eval(), "identity", Domain((1, 1, 1)))


def one(radius: float) -> dict[str, Any]:
    return {"balls": (Linf(radius),), "attacks": (ATTACK,), "divergences": (L2Distance(),)}


def series(result: Result, quantity: str, **conditions: str) -> list[float]:
    return list(
        next(
            each.values
            for each in result.series
            if each.quantity == quantity and conditions.items() <= each.conditions.items()
        )
    )


@pytest.mark.parametrize(
    ("radius", "kept"),
    [
        (0.03, [1, 1, 1, 1]),
        (0.045, [1, 0, 0, 1]),  # beyond 0.26, halfway between 0.22 and 0.3, but not beyond 0.25
    ],
)
def test_breakaway_is_from_images_of_other_groups(radius: float, kept: list[int]) -> None:
    result = Breakaway(**one(radius), pairwise=ATTACK)(identity(), pixel(), DOUBLE)
    assert series(result, "nearest_neighbour_kept", attack=f"{ATTACK} at retrieval") == kept
    found = result.estimate("nearest_neighbour_accuracy", attack=f"{ATTACK} at retrieval")
    assert found.value == np.mean(kept)
    assert "groups" in found.method
    alone = Breakaway(**one(radius), pairwise=ATTACK)(identity(), pixel(groups=None), DOUBLE)
    assert alone.estimate("nearest_neighbour_accuracy", attack=f"{ATTACK} at retrieval").value < np.mean(kept)


def test_shares_are_of_images_of_other_groups() -> None:
    searched, rows = Searched(Population(identity(), pixel(), DOUBLE)), range(4)
    moved = torch.tensor([[0.245], [0.265], [0.255], [0.9]], dtype=torch.float64)
    closer, passed = searched.closer(rows, L2Distance(), moved)
    assert closer.tolist() == [0, 1, 1, 0]
    assert searched.others(rows).tolist() == [2, 2, 3, 3]
    # 0.22 is passed by one of the two images that can pass it, which counts as 3/2 of three.
    assert passed is not None
    assert passed.tolist() == [0, 1.5, 1, 0]


def test_copies_in_a_group_count_once_and_not_for_their_group() -> None:
    images = Images(pixel().source, pixel().ids)
    pixels = images.pixels(range(4), dtype=torch.float64)[[0, 0, 1, 2, 2, 3]]
    people = Population(identity(), Images(pixels, groups=["a", "a", "a", "b", "b", "c"]), DOUBLE)
    # Distinct are 0.2 and 0.22 (a), 0.3 (b) and 0.9 (c).
    assert Searched(people).others(range(6)).tolist() == [2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("group", ["a", "z"])
def test_images_of_the_bank_may_be_of_the_same_group(group: str) -> None:
    bank = Population(identity(), pixel((0.21, 0.5), ("a", "b")), DOUBLE)
    searched = Searched(Population(identity(), pixel((0.2,), (group,)), DOUBLE, bank=bank))
    closer, passed = searched.closer([0], L2Distance(), torch.tensor([[0.24]], dtype=torch.float64))
    assert (closer.tolist(), searched.others([0]).tolist()) == (([0], [1]) if group == "a" else ([1], [2]))
    assert passed is None


def test_a_bank_of_the_own_group_alone_is_refused() -> None:
    bank = Population(identity(), pixel((0.21, 0.5), ("a", "a")), DOUBLE)
    people = Population(identity(), pixel((0.2, 0.8), ("a", "b")), DOUBLE, bank=bank)
    with pytest.raises(HoldfastError, match="'a'"):
        Searched(people).closer([1], L2Distance(), torch.tensor([[0.24]], dtype=torch.float64))


def test_radii_are_those_at_which_an_image_of_another_group_is_nearer() -> None:
    settings: dict[str, Any] = {"attack": ATTACK, "fixed": (ATTACK,), "pairwise": ATTACK, "events": ("retrieval",)}
    found = {
        groups: series(AttackRadius(**settings)(identity(), pixel(groups=groups), DOUBLE), "attack_radius")
        for groups in (None, GROUPS)
    }
    assert found[None] == pytest.approx([0.01, 0.01, 0.04, 0.3], rel=0.02)
    assert found[GROUPS] == pytest.approx([0.05, 0.04, 0.04, 0.3], rel=0.02)


def test_pairs_that_overlap_are_of_two_groups() -> None:
    images = pixel((0.2, 0.21, 0.88, 0.9), ("a", "a", "b", "b"))
    result = Overlap(**one(0.05))(identity(), images, DOUBLE)
    people = Population(identity(), images, DOUBLE)
    rows, codes = people.disjoint_pairs(10), people.codes[:, 0]
    assert len(rows) == 2
    apart = (codes[rows] - codes[people.partners[rows]]).abs()
    assert apart.min() > 0.6
    # Each image moves 0.05 towards the other: (D - 0.05 - 0.05) / D is left.
    assert series(result, "adversarial_margin") == pytest.approx((1 - 0.1 / apart).tolist(), abs=1e-4)


def test_a_crop_of_the_target_does_not_stand_in_the_way_of_an_impersonation() -> None:
    images = pixel((0.2, 0.3, 0.301, 0.302), ("a", "b", "b", "b"))
    rate = Impersonation(**one(0.09))(identity(), images, DOUBLE).estimate("impersonation_rate")
    assert (rate.value, rate.n) == (1, 1)
    alone = pixel((0.2, 0.3, 0.301, 0.302), None)
    missed = [
        Impersonation(**one(0.09))(identity(), alone, RunSettings(seed=seed, precision="float64")) for seed in range(4)
    ]
    assert min(each.estimate("impersonation_rate").value for each in missed) < 1


def test_the_scale_of_displacements_is_of_pairs_of_two_groups() -> None:
    result = Displacement(**one(0.025))(identity(), pixel(), DOUBLE)
    assert series(result, "universal_quantile") == [0] * 4  # 0.2 and 0.22 are no pair
    alone = Displacement(**one(0.025))(identity(), pixel(groups=None), DOUBLE)
    assert series(alone, "universal_quantile") == pytest.approx([1 / 6] * 4)


@pytest.mark.parametrize("divergence", [L2Distance(), SoftmaxKL()])
def test_fast_counts_are_those_of_the_definition(divergence: Divergence) -> None:
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    moved = clean + torch.randn(60, 3, generator=generator, dtype=torch.float64)
    groups = torch.randint(0, 12, (60,), generator=generator)
    other, kin = groups[:, None] != groups, Kin(groups, groups)
    distance = torch.stack([divergence(code.expand_as(clean), clean) for code in moved])
    closer = (distance < distance.diagonal()[:, None]) & other
    counts, passed = crossings(divergence, moved, torch.arange(60), clean, kin=kin)
    assert counts.tolist() == closer.sum(1).tolist()
    assert passed.tolist() == closer.sum(0).tolist()
    expected = distance.masked_fill(~other, torch.inf).argsort(1)[:, :5]
    assert torch.equal(nearest_rows(divergence, moved, clean, 5, range(60), kin), expected)
    between = torch.stack([divergence(code.expand_as(clean), clean) for code in clean])
    thresholds = between[other].quantile(torch.tensor([0.1, 0.5], dtype=torch.float64))
    within = torch.stack([(between <= threshold) & other for threshold in thresholds])
    shares = within.sum(2) / other.sum(1)
    assert torch.allclose(shares_within(divergence, thresholds, clean, groups).float(), shares, atol=1e-6)
    whole = within.sum((1, 2)) / other.sum()
    assert torch.allclose(share_of_pairs_within(divergence, thresholds, clean, groups).float(), whole, atol=1e-6)
