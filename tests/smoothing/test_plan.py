"""What is refused before anything is computed, and what the plan foretells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.smoothing.evaluations.center_smoothing import CenterSmoothing
from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval
from holdfast.smoothing.index import Smoothing, abstains, central_sample, deviation, quantile
from holdfast.smoothing.plan import Plan
from tests.facts import says


@pytest.mark.parametrize("kind", [CenterSmoothing, SmoothedRetrieval])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sigma": 0.0}, "sigma must be positive, got 0.0"),
        ({"sigma": float("nan")}, "sigma must be positive"),
        ({"selection": 0}, "selection must be at least 1"),
        ({"alpha": 1.0}, r"alpha.*\(0, 0.5\), got 1.0"),
        ({"radii": (0.0,)}, "positive l2 radii"),
        ({"slack": 0.5}, "slack must be"),
    ],
)
def test_settings_without_a_meaning_are_refused(kind: type, given: dict[str, Any], said: str):
    with pytest.raises(HoldfastError, match=said):
        kind(**given)


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"selection": 1198}, "at least 1199"),
        ({"copies": 150}, "at least 157"),
        ({"radii": (0.25, 0.9)}, "radii up to"),
        ({"radii": (5.0,)}, "larger center-smoothing.sigma"),
    ],
)
def test_too_few_copies_are_refused_with_the_number_it_takes(given: dict[str, Any], needed: str):
    with pytest.raises(HoldfastError, match=needed):
        CenterSmoothing(**given)


def test_the_number_it_takes_is_enough_and_no_more():
    assert CenterSmoothing(selection=1199, copies=157)
    assert SmoothedRetrieval(copies=80, others=1)
    with pytest.raises(HoldfastError, match="at least 40"):
        SmoothedRetrieval(copies=39, others=1)


def test_the_widest_radius_is_the_last_one_that_can_be_certified():
    widest = Plan(Smoothing(0.25, 3000, 10_000, 1, 1), 0.05, 0.01).widest
    assert quantile(widest * 0.999, 0.25, 0.05, 10_000, 0.005) < 1 < quantile(widest * 1.001, 0.25, 0.05, 10_000, 0.005)


@pytest.mark.slow
def test_the_chance_of_abstaining_is_the_simulated_one():
    """The radius is a sample's median, so that both it and the share of fresh copies that it holds are random."""
    plan, random = Plan(Smoothing(0.25, 3000, 10_000, 1, 1), 0.05, 0.01), np.random.default_rng(0)
    radii = np.median(random.random((10_000, 2999)), axis=1)  # of distances by their own distribution function
    held = random.binomial(3000, radii) / 3000
    share = float((0.5 - (held - deviation(0.0025, 3000)) > 0.05).mean())
    assert plan.abstaining == pytest.approx(share, abs=0.006)
    assert 0.06 < share < 0.1


@pytest.mark.slow
def test_the_chance_of_abstaining_is_that_of_centres_of_wide_codes():
    random, abstained, trials = torch.Generator().manual_seed(0), 0, 200
    for _ in range(trials):
        choosing, fresh = torch.randn(2, 2000, 64, generator=random)
        centre = central_sample(choosing)
        held = ((fresh.double() - choosing[centre.index].double()).norm(dim=1) <= centre.radius).double().mean()
        abstained += int(abstains(held[None], 2000, 0.05, 0.005))
    expected = Plan(Smoothing(0.25, 2000, 10_000, 1, 1), 0.05, 0.01).abstaining
    assert abstained / trials == pytest.approx(expected, abs=0.07)  # more than two standard deviations
    assert expected > 0.2


def test_a_plan_says_what_it_costs_and_what_it_brings():
    said = str(Plan(Smoothing(0.25, 10_000, 100_000, 50, 1000), 0.05, 0.01))
    assert says(said, "120,000", "6,000,000", "copies")
    assert "radii up to" in said
