"""Arrays that cannot be measured are refused in one sentence; those that can are measured as they are."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.points.points import distinct, points
from holdfast.spectral.analysis import spade
from holdfast.spectral.graph_pair import CKNN, PCA, _enough
from tests.spectral.graphs import folded


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda x, y: (x, y[:-1]), r"rows of outputs must be 60, .* got 59"),
        (
            lambda x, y: (x, np.where(np.arange(60)[:, None] == 7, np.nan, y)),
            r"outputs must be finite, got .* row 7 \(1 of",
        ),
        (lambda x, y: (np.where(x > 1, np.inf, x), y), r"inputs must be finite"),
        (lambda x, y: (np.full((60, 1), np.inf, np.float16), y), r"float16 ends at 65504"),
        (lambda x, y: (x, np.ones((60, 3))), r"outputs are constant: all 60 rows are equal"),
        (lambda x, y: (x, (1e5 + 1e-3 * y).astype(np.float32)), r"outputs are constant"),
        (lambda x, y: (np.zeros_like(x), y), r"inputs are constant"),
        (lambda x, y: (x[:, 0], y), r"inputs must be an array of real numbers, shape \(samples, features\).*\(n, 1\)"),
        (lambda x, y: (x, y + 1j), r"outputs must be real numbers, got torch.complex128"),
        (lambda x, y: (x, [["a"]] * 60), r"outputs must be an array of numbers"),
        (lambda x, y: (x[:29], y[:29]), r"k = 10 neighbours need at least 30 samples \(3 k\), got 29"),
        (lambda x, y: (np.repeat(x[:20], 3, 0), y), r"got 20 after 40 duplicates were removed"),
    ],
)
def test_bad_arrays_are_refused_in_one_sentence(spoil, said):
    x, y = folded(60)
    with pytest.raises(HoldfastError, match=said):
        spade(*spoil(x, y))


@pytest.mark.parametrize("k", [60, 100])
def test_k_must_leave_other_samples(k):
    with pytest.raises(HoldfastError, match=f"k = {k} neighbours need at least {3 * k} samples"):
        spade(*folded(60), k=k)


@pytest.mark.parametrize("k", [0, -1, 5.5, "5"])
def test_k_is_a_whole_number(k):
    # Without the check of annotations, which users do not have.
    with pytest.raises(HoldfastError, match=f"k must be .*, got {k!r}"):
        inspect.unwrap(_enough)(k, 60, 0)


@pytest.mark.parametrize("k", [1, 20])
def test_three_samples_per_neighbour_are_enough(k):
    _enough(k, 3 * k, 0)


@pytest.mark.parametrize(("text", "kind"), [("cknn:delta=0.9", CKNN(0.9)), ("pca:components=1", PCA(1))])
def test_a_graph_may_be_named_as_on_the_command_line(text, kind):
    x, y = folded(90)
    named, plain = (spade(x, y, k=20, graph=graph, repair="mst") for graph in (text, kind))
    assert named.score == plain.score != spade(x, y, k=20, repair="mst").score
    with pytest.raises(HoldfastError, match="Did you mean 'knn'"):
        spade(x, y, graph="knm")


def test_scores_print_in_one_line():
    found = spade(*folded(60), k=5)
    assert repr(found) == f"Spade(score={found.score:.6g}, riemannian={found.riemannian:.6g}, samples=60, k=5)"


def test_a_repair_must_exist():
    with pytest.raises(HoldfastError, match=r"repair.*'ridge'"):
        spade(*folded(60), repair="ridge")


def same(left: tuple[object, object], right: tuple[object, object]) -> bool:
    return spade(*left).score == pytest.approx(spade(*right).score, rel=1e-9)


def test_huge_offsets_change_nothing():
    x, y = folded(200)
    assert same((x, y), (x + 2.0**20, y - 2.0**22))


@pytest.mark.parametrize("scale", [1e-160, 1e-30, 1e30, 1e160])
def test_scale_changes_nothing(scale):
    x, y = folded(200)
    assert same((x, y), (x * scale, y / scale))


def test_types_change_nothing_that_they_hold():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (200, 30)), rng.integers(0, 200, (200, 5))
    assert same((x.astype(np.uint8), y.astype(np.float16)), (x / 1.0, torch.tensor(y)))


def test_constant_up_to_rounding_is_constant():
    for dtype, spread in ((np.float64, 4e-15), (np.float32, 1e-6), (np.float16, 2e-3)):
        assert points((3 + spread * np.eye(4)).astype(dtype)).constant
        assert not points((3 + 100 * spread * np.eye(4)).astype(dtype)).constant


def test_zero_has_no_sign():
    kept, place = distinct(points(np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 1.0]])))
    assert kept.tolist() == [0, 2]
    assert place.tolist() == [0, 0, 1]


def test_arrays_are_left_alone():
    x, y = folded(100)
    before = x.copy(), y.copy()
    spade(x, y)
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])
