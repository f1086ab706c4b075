"""What an edit takes away, and its share, against the definitions, delete-one jackknives and a scan of all shares."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

import pytest
import torch
from benchmarks.statistics.false_alarms import two_sets

from holdfast.core.noise import Noise
from holdfast.service import energy
from holdfast.service.drift_findings import compare
from holdfast.service.energy import Linearised, ratio_interval, taken_away
from holdfast.service.two_sets import TwoSets

NONE = torch.zeros(0, 2, dtype=torch.int64)


def drawn(count: int, name: str = "") -> torch.Tensor:
    return Noise.of(0, [f"{name}{k}" for k in range(count)]).normal((3,), torch.float64)


def unbiased(before: torch.Tensor, after: torch.Tensor, copies: torch.Tensor = NONE) -> float:
    """The energy distance without pairs of a point and itself, or its copy."""
    across, here, there = (torch.cdist(*pair) for pair in ((before, after), [before] * 2, [after] * 2))
    among = torch.ones_like(across)
    among[copies[:, 0], copies[:, 1]] = 0
    inside = sum(float(each.sum()) / (len(each) * (len(each) - 1)) for each in (here, there))
    return 2 * float((across * among).sum() / among.sum()) - inside


def jackknifed(statistic: Callable[[torch.Tensor], float], count: int) -> float:
    """The variance by leaving out one of so many points at a time."""
    places = torch.arange(count)
    left_out = torch.tensor([statistic(places[places != k]) for k in range(count)])
    return float((count - 1) / count * (left_out - left_out.mean()).square().sum())


def test_what_is_taken_away_is_the_difference_of_two_distances() -> None:
    before, after, rows = drawn(20), drawn(15, "after") + 1, torch.tensor([3, 0, 7, 12, 19])
    edited = 0.5 * before[rows] + 0.8
    part = taken_away(before, edited, rows, after, NONE)
    expected = unbiased(before[rows], after) - unbiased(edited, after)
    assert part.value == pytest.approx(expected, rel=1e-5)
    assert abs(expected) > 0.1, "vacuous: nothing is taken away"
    copies = torch.tensor([[7, 2], [12, 2 + 1], [5, 9]])  # two of those edited, and another
    among = torch.ones(5, 15)
    among[2, 2] = among[3, 3] = 0
    gains = among * (torch.cdist(before[rows], after) - torch.cdist(edited, after))
    inside = [float(torch.cdist(each, each).sum()) / 20 for each in (before[rows], edited)]
    expected = 2 * float((gains.sum(1) / among.sum(1)).mean()) - inside[0] + inside[1]
    assert taken_away(before, edited, rows, after, copies).value == pytest.approx(expected, rel=1e-5)
    assert part.value != pytest.approx(expected, rel=1e-5), "vacuous: copies change nothing"


def test_errors_are_those_of_leaving_points_out() -> None:
    before, after, rows = drawn(8), drawn(9, "after") + 1, torch.arange(8)
    edited = 0.5 * before + 0.8
    part = taken_away(before, edited, rows, after, NONE)

    def of(kept: torch.Tensor, other: torch.Tensor) -> float:
        return unbiased(before[kept], after[other]) - unbiased(edited[kept], after[other])

    every = torch.arange(9)
    assert float(part.errors[:8].square().sum()) == pytest.approx(jackknifed(lambda kept: of(kept, every), 8), rel=1e-4)
    assert float(part.errors[8:].square().sum()) == pytest.approx(jackknifed(lambda kept: of(rows, kept), 9), rel=1e-4)


def test_the_distance_errs_as_leaving_points_out_says() -> None:
    """But for terms that vanish as one over the number of points."""
    before, after = drawn(60), drawn(50, "after") + 1
    result = energy.energies(torch.cat([before, after]), weights := two_sets(before, after, 0).assignments(1, 0))
    whole = energy.distance(result, weights[:, 0] > 0)
    assert whole.value == pytest.approx(unbiased(before, after), rel=1e-4)
    expected = jackknifed(lambda kept: unbiased(before[kept], after), 60)
    assert float(whole.errors[:60].square().sum()) == pytest.approx(expected, rel=0.05)
    expected += jackknifed(lambda kept: unbiased(before, after[kept]), 50)
    assert whole.deviation(torch.arange(110)) == pytest.approx(sqrt(expected), rel=0.05)


def test_the_same_images_again_are_no_distance_away() -> None:
    """Pairs of an image and its copy are near each other whatever happened, and pull the mean between both sets down."""
    points, names = drawn(40), tuple(f"{k}.png" for k in range(40))
    again = tuple(f"{k}.jpg" for k in range(40))
    sets = TwoSets(points, points, names, again, names, again, torch.arange(40) < 20, torch.arange(40) < 20)
    assert len(sets.copies) == 40
    assert compare(sets, 19, 0).distance.value == pytest.approx(0, abs=1e-5)
    others = tuple(f"other-{k}" for k in range(40))
    apart = TwoSets(points, points, names, others, names, others, torch.arange(40) < 20, torch.arange(40) < 20)
    spread = float(torch.cdist(apart.points[:40], apart.points[:40]).mean())
    assert compare(apart, 19, 0).distance.value == pytest.approx(-2 * spread / 39, rel=1e-3)
    moved = TwoSets(points, points + 1, names, again, names, again, torch.arange(40) < 20, torch.arange(40) < 20)
    whole = compare(moved, 19, 0).distance
    assert whole.value > 0
    assert whole.deviation(moved.clusters) < 0.8 * whole.deviation(torch.arange(80)), "copies err together"


@pytest.mark.parametrize(("top", "bottom"), [(1.0, 2.0), (2.0, 1.5), (-1.0, 1.0), (0.0, 0.9)])
def test_shares_are_all_that_are_not_refuted(top: float, bottom: float) -> None:
    errors = 0.2 * drawn(6)[:, :2]
    parts = Linearised(top, errors[:, 0] - errors[:, 0].mean()), Linearised(bottom, errors[:, 1] - errors[:, 1].mean())
    clusters = torch.tensor([0, 0, 1, 2, 3, 4])
    low, high = ratio_interval(*parts, clusters, 1.5)
    shares = torch.linspace(-20, 20, 400_001, dtype=torch.float64)
    sums = torch.zeros(2, 5, dtype=torch.float64).index_add_(1, clusters, torch.stack([part.errors for part in parts]))
    deviations = (sums[0, :, None] - shares * sums[1, :, None]).square().sum(0).sqrt()
    kept = shares[(top - shares * bottom).abs() <= 1.5 * deviations]
    assert (low, high) == pytest.approx((float(kept[0]), float(kept[-1])), abs=2e-4)
    assert len(kept) == pytest.approx((high - low) / 1e-4, abs=3), "no gap between the ends"
    assert ratio_interval(*parts, clusters, 100.0) == (-inf, inf)
