"""The margin distribution: the fit against slow ones, theorems against loops, undefined cases."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest
import torch

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds.evaluations.margin_distribution import (
    NO_FIT,
    NO_LABEL,
    MarginDistribution,
    TheoremCounts,
    by_head,
    by_similarity,
    fit,
    foreign,
    negatives,
    similarity,
    theorem_verdict,
)
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from tests.bounds.evaluations.known import Boast
from tests.bounds.evaluations.test_linear import labelled
from tests.samples import builtin, digits

SMALL = MarginDistribution(
    tail=8, samples=6, negatives=3, rivals=1, tolerance=1e-2, attack=AdaptiveAttack(restarts=1, steps=10)
)


@pytest.mark.parametrize(("shape", "scale"), [(0.7, 2.0), (3.0, 0.05), (40.0, 1e-4)])
def test_the_fit_finds_the_law_that_made_the_values(shape: float, scale: float) -> None:
    values = scale * np.random.default_rng(0).weibull(shape, 4000)
    law = fit(values)
    assert law is not None
    assert law.shape == pytest.approx(shape, rel=0.05)
    assert law.scale == pytest.approx(scale, rel=0.05)
    assert law.misfit < 0.025
    few = fit(values[:20])
    assert few is not None
    assert law.misfit < few.misfit < 0.4


def test_no_other_law_is_more_likely() -> None:
    values = np.random.default_rng(1).gamma(3.0, size=25)
    law = fit(values)
    assert law is not None

    def likelihood(shape: float, scale: float) -> float:
        z = values / scale
        return float(np.sum(np.log(shape / scale) + (shape - 1) * np.log(z) - z**shape))

    best = likelihood(law.shape, law.scale)
    steps = np.linspace(0.9, 1.1, 21)
    assert all(likelihood(law.shape * a, law.scale * b) <= best + 1e-9 for a in steps for b in steps)


def test_values_that_are_all_the_same_have_no_law() -> None:
    assert fit(np.full(9, 0.3)) is None
    assert fit(np.array([0.3])) is None


def test_inclusion_is_one_at_the_image_and_falls() -> None:
    law = fit(np.array([0.1, 0.2, 0.25, 0.3]))
    assert law is not None
    at = [law.inclusion(distance) for distance in (0.0, 0.1, law.scale, 1.0)]
    assert at[0] == 1
    assert at[2] == pytest.approx(np.exp(-1))
    assert at == sorted(at, reverse=True)


def test_the_order_theorem_is_counted_as_a_loop_counts_it() -> None:
    generator = torch.Generator().manual_seed(0)
    certified = torch.rand(7, 3, generator=generator).double()
    attacked = certified + 0.2 * torch.rand(7, 3, generator=generator).double()
    certified[2, 1] = attacked[2, 1] = torch.nan
    similar = torch.rand(7, 3, generator=generator).double()
    count, holds, fails = (np.zeros(7, dtype=int) for _ in range(3))
    for k in range(3):
        for one in range(7):
            for other in range(7):
                if similar[one, k] < similar[other, k] and not (certified[one, k] + certified[other, k]).isnan():
                    for image in (one, other):
                        count[image] += 1
                        holds[image] += int(certified[one, k] >= attacked[other, k])
                        fails[image] += int(attacked[one, k] < certified[other, k])
    found = by_similarity({"certified": certified, "attacked": attacked}, similar)
    assert found.count.tolist() == count.tolist()
    assert found.holds.tolist() == holds.tolist()
    assert found.fails.tolist() == fails.tolist()
    assert holds.sum() > 10
    assert fails.sum() > 10


def test_the_head_theorem_is_counted_for_other_classes_and_right_images_alone() -> None:
    seen = {
        "certified": torch.tensor([[0.5, 0.1, 0.5], [0.5, 0.5, 0.5]]),
        "attacked": torch.tensor([[0.9, 0.2, 0.9], [0.9, 0.9, 0.9]]),
    }
    linear = {
        "right": torch.tensor([1.0, 0.0]),
        "certified": torch.tensor([0.3, 0.3]),
        "attacked": torch.tensor([0.4, 0.4]),
    }
    found = by_head(seen, linear, torch.tensor([[True, True, False], [True, True, True]]))
    assert (found.count.tolist(), found.holds.tolist(), found.fails.tolist()) == ([2, 0], [1, 0], [1, 0])


def test_verdicts_follow_the_counts() -> None:
    def counts(*values: int) -> TheoremCounts:
        return TheoremCounts(*(torch.tensor([value]) for value in values))

    assert theorem_verdict("?", counts(4, 3, 1)).status == "refuted"
    assert theorem_verdict("?", counts(4, 4, 0)).status == "proved"
    assert theorem_verdict("?", counts(4, 3, 0)).status == "unknown"
    assert theorem_verdict("?", counts(0, 0, 0)).status == "unknown"
    assert (
        theorem_verdict("?", counts(4, 2, 2), sides=2).reason
        == "of 2 comparisons 1 provably obey and 1 provably do not"
    )


def test_the_report_is_in_order() -> None:
    result = SMALL(builtin(), labelled(40))
    order, head = result.series[4:6], result.series[6:8]
    for least, most in (order, head):
        assert [least.claim, most.claim] == [Claim.LOWER, Claim.UPPER]
        assert all(low <= high for low, high in zip(least.values, most.values, strict=True) if low == low)
    obeyed = result.estimate("order_obeyed")
    assert 0 < obeyed.value < 1
    assert isnan(obeyed.low)
    assert obeyed.method.endswith("the same few others: no interval")
    assert not isnan(result.estimate("head_obeyed").low)
    assert 0 < result.estimate("view_inclusion").value < 1
    assert result.estimate("margin_misfit").value < 0.5
    assert all(e.value == 0 for e in result.estimates if e.quantity == "contradictions")
    assert not result.findings.warnings


def test_a_law_is_that_of_the_nearest_others() -> None:
    images = digits(40)
    population = Population(builtin(), images, RunSettings(precision="float64"))
    result = SMALL(builtin(), images, RunSettings(precision="float64"))
    row = population.choose(6)[2]
    codes = population.codes
    cosines = [torch.cosine_similarity(codes[row], codes[k], dim=0).item() for k in range(40) if k != row]
    law = fit(np.array(sorted((1 - c) / 2 for c in cosines)[:8]))
    assert law is not None
    assert result.series[1].values[2] == pytest.approx(law.scale)
    shared = negatives(population, 3)
    assert similarity(population, [row], shared)[0, 0] == pytest.approx(
        torch.cosine_similarity(codes[row], codes[shared[0]], dim=0).item()
    )


def test_what_is_missing_is_undefined() -> None:
    result = SMALL(builtin(), digits(8))  # 7 others, no labels
    assert set(result.series[0].reasons.values()) == {NO_FIT}
    assert set(result.series[6].reasons.values()) == {NO_LABEL}
    assert isnan(result.estimate("margin_scale").value)
    assert isnan(result.estimate("head_obeyed").value)
    pixels = digits(40).pixels(range(40))
    pixels[1:] = pixels[:1]
    copies = SMALL(builtin(), Images(pixels, ids=[str(k) for k in range(40)]))
    assert all(isnan(v) for series in copies.series for v in series.values)
    assert not foreign(Population(builtin(), digits(), RunSettings()), [0, 1], 3).any()


def test_a_bound_that_lies_is_found_out() -> None:
    result = replace(SMALL, method=Boast())(builtin(), labelled(40))
    assert result.findings.warnings
    verdict = result.findings.verdicts[0]
    assert verdict.status == "refuted"
    assert float(verdict.witness["value_in_float64"]) <= 0
    assert verdict.witness["negative"] in labelled(40).ids


def test_a_radius_between_the_heads_two_bounds_neither_obeys_nor_refutes() -> None:
    """The head's radius lies in [.2, .3]: what is certified from .3 on obeys, what was attacked below .2 does not."""
    shared = {
        "certified": torch.tensor([[0.30, 0.25, 0.10, 0.10]]).double(),
        "attacked": torch.tensor([[0.50, 0.50, 0.25, 0.19]]).double(),
    }
    linear = {
        name: torch.tensor([value]).double() for name, value in (("right", 1), ("certified", 0.2), ("attacked", 0.3))
    }
    counts = by_head(shared, linear, torch.ones(1, 4, dtype=torch.bool))
    assert [part.tolist() for part in (counts.count, counts.holds, counts.fails)] == [[4], [1], [1]]


def test_no_anchor_is_a_negative_while_there_are_enough_images() -> None:
    population = Population(builtin(), digits(30), RunSettings())
    shared = negatives(population, 5).tolist()
    assert len(set(shared)) == 5
    assert not set(shared) & set(population.choose(25))
    assert len(negatives(population, 99)) == 30
