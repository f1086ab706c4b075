"""Enclosing balls against slow ones: every ball through a few of the points, and the smallest that holds them all."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.points.points import enclosing_balls
from tests.facts import refused


def slow_radius(points: Tensor) -> float:
    """The smallest of all balls that have 1 .. d + 1 of the points on their edge and hold the others."""
    best = torch.inf
    for count in range(1, min(len(points), points.shape[1] + 1) + 1):
        for chosen in combinations(range(len(points)), count):
            some = points[list(chosen)]
            edges = some[1:] - some[0]
            centre = some[0]
            if count > 1:
                # The centre in the plane of the chosen points that is equally far from all of them.
                centre = centre + torch.linalg.lstsq(edges @ edges.T, edges.square().sum(1) / 2).solution @ edges
            radius = float((points - centre).norm(dim=1).max())
            best = min(best, radius)
    return best


@given(seed=st.integers(0, 10**6), n=st.integers(1, 7), d=st.integers(1, 3), offset=st.sampled_from([0.0, 1e4]))
def test_balls_are_the_smallest(seed: int, n: int, d: int, offset: float):
    points = torch.randn(3, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset
    found = enclosing_balls(points, tolerance=1e-4)
    for k in range(3):
        smallest = slow_radius(points[k])
        assert float(found.radii[k]) <= smallest * (1 + 1e-4) + 1e-9
        assert float(found.least[k]) <= smallest + 1e-9
        assert bool(((points[k] - found.centres[k]).norm(dim=1) <= found.radii[k] * (1 + 1e-9) + 1e-9).all())


def test_known_balls():
    corners = torch.tensor([[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]])
    found = enclosing_balls(corners, tolerance=1e-6)
    assert found.radii.item() == pytest.approx((2 / 3) ** 0.5, rel=2e-6)
    assert found.centres[0].tolist() == pytest.approx([1 / 3] * 3, abs=2e-3)


def test_many_points_of_many_dimensions_are_enclosed_within_the_tolerance():
    points = torch.randn(4, 200, 64, generator=torch.Generator().manual_seed(0))
    found = enclosing_balls(points, tolerance=1e-3)
    assert bool((found.radii <= found.least * 1.001 * (1 + 1e-12)).all())
    assert bool((found.least > 0.8 * points.norm(dim=2).amax(1) / 2).all()), "vacuous"


def test_one_point_and_copies_of_one_have_radius_zero():
    assert enclosing_balls(torch.ones(1, 1, 3)).radii.item() == 0
    assert enclosing_balls(torch.ones(2, 5, 3)).radii.tolist() == [0, 0]


def test_a_set_does_not_depend_on_its_companions():
    points = torch.randn(5, 9, 4, generator=torch.Generator().manual_seed(1))
    together, alone = enclosing_balls(points, 1e-6), enclosing_balls(points[2:3], 1e-6)
    assert float(together.radii[2]) == pytest.approx(float(alone.radii[0]), rel=1e-5)


def test_what_has_no_ball_is_refused():
    for points in (torch.zeros(1, 0, 2), torch.full((1, 2, 2), torch.nan)):
        with refused(HoldfastError, "least", "point"):
            enclosing_balls(points)


def test_no_ball_depends_on_what_shares_its_batch() -> None:
    sets = torch.randn(6, 40, 3, generator=torch.Generator().manual_seed(5)).double()
    together = enclosing_balls(sets, 1e-2)
    for k, points in enumerate(sets):
        alone = enclosing_balls(points[None], 1e-2)
        assert torch.allclose(alone.radii[0], together.radii[k], rtol=1e-12)
        assert torch.allclose(alone.centres[0], together.centres[k], rtol=1e-9, atol=1e-12)
