"""Nearest neighbours are those of the definition: exactly, with ties to the lower index, whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.points import neighbours as exact
from holdfast.core.points.neighbours import nearest_neighbours
from holdfast.core.points.points import points
from holdfast.spectral import graph as approximate


def brute(x: np.ndarray, k: int) -> np.ndarray:
    """The definition, one pair at a time."""
    square = ((x[:, None] - x[None]) ** 2).sum(2)
    np.fill_diagonal(square, np.inf)
    return np.argsort(square, axis=1, kind="stable")[:, :k]


@given(st.integers(0, 10**6), st.integers(5, 40), st.integers(1, 4), st.integers(1, 6))
def test_whole_numbers_have_exact_ties(seed, n, d, values):
    x = np.random.default_rng(seed).integers(0, values, (n, d)).astype(float)
    x[0] = values + 1  # not constant
    k = min(4, n - 1)
    assert np.array_equal(nearest_neighbours(points(x), k).index, brute(x, k))


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e7])
def test_offsets_do_not_blur(offset):
    x = np.random.default_rng(0).normal(size=(300, 20)) + offset
    assert np.array_equal(nearest_neighbours(points(x), 7).index, brute(x, 7))


def test_what_float32_cannot_rank_is_ranked_again():
    """A far cluster makes products large; within the near one they differ by less than float32 holds."""
    rng = np.random.default_rng(0)
    x = np.concatenate([1e-5 * rng.normal(size=(60, 5)), 1 + 1e-5 * rng.normal(size=(60, 5))])
    assert np.array_equal(nearest_neighbours(points(x), 5).index, brute(x, 5))


def test_distances_are_those_of_the_points():
    x = np.random.default_rng(0).normal(size=(50, 3)) * 1e20
    near = nearest_neighbours(points(x), 2)
    assert near.distance == pytest.approx(np.linalg.norm(x[:, None] - x[near.index], axis=2), rel=1e-9)


def test_tiles_change_nothing(monkeypatch):
    x = np.random.default_rng(0).integers(0, 4, (200, 4)).astype(np.float32)
    whole = nearest_neighbours(points(x), 6).index
    monkeypatch.setattr(exact, "ROWS", 17)
    monkeypatch.setattr(exact, "COLUMNS", 23)
    monkeypatch.setattr(exact, "NEAR", 50)
    assert np.array_equal(nearest_neighbours(points(x), 6).index, whole)


def test_some_rows_alone():
    x = np.random.default_rng(0).normal(size=(100, 3))
    rows = torch.tensor([5, 99])
    assert np.array_equal(nearest_neighbours(points(x), 4, rows).index, brute(x, 4)[[5, 99]])


def test_an_approximate_search_says_how_good_it_is(monkeypatch):
    x = points(np.random.default_rng(0).normal(size=(3000, 6)).astype(np.float32))
    truth = nearest_neighbours(x, 8).index
    found = approximate.neighbours(x, 8, exact=1000)
    recall = (found.index[:, :, None] == truth[:, None]).any(2).mean()
    assert found.recall > 0.999
    assert recall > 0.999
    assert recall == pytest.approx(found.recall, abs=0.002)
    monkeypatch.setattr(approximate, "PROBES", 1)
    monkeypatch.setattr(approximate, "ROUNDS", 1)
    poor = approximate.neighbours(x, 8, exact=1000)
    recall = (poor.index[:, :, None] == truth[:, None]).any(2).mean()
    assert poor.recall < 0.9
    assert recall == pytest.approx(poor.recall, abs=0.05)


def test_points_without_candidates_are_searched_exactly(monkeypatch):
    """Cells of one point each have too few members for k neighbours."""
    x = np.random.default_rng(0).normal(size=(400, 3))
    monkeypatch.setattr(approximate, "PROBES", 1)
    monkeypatch.setattr(approximate, "ROUNDS", 1)
    monkeypatch.setattr(approximate, "sqrt", lambda n: n)
    found = approximate.neighbours(points(x), 5, exact=10)
    assert np.array_equal(found.index, brute(x, 5))


def test_small_sets_are_searched_exactly():
    x = points(np.random.default_rng(0).normal(size=(50, 3)))
    assert approximate.neighbours(x, 5).recall == 1
