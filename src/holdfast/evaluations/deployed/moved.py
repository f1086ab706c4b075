"""Two sets of codes against each other: the test that decides, and those that say where the difference lies."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log, nan, sqrt

import numpy as np
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Estimate, Resolution, Verdict
from holdfast.core.statistics.intervals import share_interval
from holdfast.evaluations.deployed.two_sets import TwoSets
from holdfast.twosample import classifier
from holdfast.twosample.directions import largest_gaps, principal
from holdfast.twosample.energy import Energies
from holdfast.twosample.linearised import Linearised
from holdfast.twosample.permutations import Weights, holm, p_value

NORMAL = 1.959964
"""Deviations of a normal interval of 95%."""


def by_energy(result: Energies, whole: Linearised, sets: TwoSets) -> tuple[Estimate, Estimate]:
    """Return the energy distance in mean distances between images, and the p-value of its permutation test."""
    others, clusters = result.statistics[1:], sets.clusters
    chance, as_large = p_value(result.statistics)
    spread, value = result.spread or nan, whole.value
    # What points add one by one is nothing where both distributions are equal; what pairs of them add, assignments show.
    reach = hypot(NORMAL * whole.deviation(clusters), float((others - others.mean()).abs().quantile(0.95)))
    distance = Estimate(
        quantity="energy_distance",
        value=value / spread,
        low=max(0.0, value - reach) / spread if value > 0 else value / spread,
        high=(value + reach) / spread,
        n=len(clusters),
        method="normal, of each image's part, and the distance of random assignments; added in squares",
        unit="mean distance of images",
        claim=Claim.ESTIMATE,
        of="energy distance of both distributions of codes",
        better="lower",
        statistic="whole",
        reason=None if result.spread else "all codes are one point",
    )
    return distance, _chance(
        "energy_p_value",
        as_large,
        len(clusters),
        chance,
        Resolution(tests=1, draws=len(others), by_images=sets.smallest_p_values[0]),
    )


def decided(chances: Sequence[Estimate]) -> Estimate:
    """Return the p-value of several tests together: that of the smallest, times their number (Bonferroni)."""
    least = min(chances, key=lambda chance: chance.value)
    value, low, high = (min(1.0, len(chances) * end) for end in (least.value, least.low, least.high))
    method = f"{len(chances)} times the smaller of {' and '.join(chance.quantity for chance in chances)}"
    finest = min((chance.resolution for chance in chances if chance.resolution), key=lambda each: each.least)
    resolution = finest.model_copy(update={"tests": len(chances)})
    ends = {"value": value, "low": low, "high": high, "method": method, "n": chances[0].n, "resolution": resolution}
    return least.model_copy(update={"quantity": "drift_p_value", **ends})


def moved(chance: Estimate, alpha: float) -> Verdict:
    """Return the answer that a gate asks for."""
    shown = chance.value <= alpha
    return Verdict(
        question="Do both sets of images look alike to the encoder?",
        status="refuted" if shown else "no violation found",
        reason=f"p = {chance.value:.2g} {'<=' if shown else '>'} {alpha:g}: "
        + ("the inputs have moved" if shown else "no difference was shown, which does not prove that there is none"),
    )


def by_classifier(
    sets: TwoSets, scores: Float[np.ndarray, "q"], statistics: Float[Tensor, "r"]
) -> tuple[Estimate, Estimate]:
    """Return how well a linear classifier tells both sets apart, and the p-value of that."""
    area = classifier.area(scores, sets.first[~sets.learning].numpy())
    chance, as_large = p_value(statistics)
    estimate = Estimate(
        quantity="classifier_area",
        value=area.value,
        low=area.low,
        high=area.high,
        n=len(scores),
        method="Gaffke's bounds of each set's shares; added in squares",
        unit="share of pairs",
        claim=Claim.ESTIMATE,
        of="pairs of one image of each set that a linear classifier orders right; 0.5 is chance",
        better="lower",
        statistic="whole",
    )
    return estimate, _chance(
        "classifier_p_value",
        as_large,
        len(scores),
        chance,
        Resolution(tests=1, draws=len(statistics) - 1, by_images=sets.smallest_p_values[1]),
    )


def by_direction(sets: TwoSets, weights: Weights, count: int) -> tuple[Estimate, ...]:
    """Return for each principal direction how far both distributions are apart along it, and a corrected p-value."""
    coordinates, shares = principal(sets.points, count)
    gaps = [largest_gaps(values.float(), weights) for values in coordinates.T]
    chances, estimates = holm([p_value(statistics)[0] for statistics in gaps]), list[Estimate]()
    resolution = Resolution(tests=len(gaps), draws=weights.shape[1] - 1, by_images=sets.smallest_p_values[0])
    sizes = len(sets.before), len(sets.after)
    slack = sum(sqrt(log(4 / 0.05) / (2 * size)) for size in sizes)
    for k, (statistics, chance, share) in enumerate(zip(gaps, chances, shares.tolist(), strict=False)):
        conditions = {"direction": str(k + 1)}
        gap = float(statistics[0])
        dressed = Estimate(
            quantity="direction_gap",
            conditions=conditions,
            value=gap,
            low=max(0.0, gap - slack),
            high=min(1.0, gap + slack),
            n=len(sets.points),
            method="Dvoretzky, Kiefer and Wolfowitz's band of each distribution function; the direction as it is",
            unit="share of images",
            claim=Claim.ESTIMATE,
            of=f"largest difference of both distribution functions along a direction with {share:.0%} of the variance",
            better="lower",
            statistic="whole",
        )
        adjusted = _bare("direction_p_value", conditions, chance, "permutation test, corrected after Holm; no interval")
        estimates += [dressed, adjusted.model_copy(update={"n": len(sets.points), "resolution": resolution})]
    return tuple(estimates)


def _chance(quantity: str, as_large: int, n: int, value: float, resolution: Resolution) -> Estimate:
    """Return a p-value, with the interval of what it would be with all permutations."""
    low, high = share_interval(as_large, resolution.draws)
    method = f"{as_large} of {resolution.draws} random assignments are as far apart; interval of that share"
    ends = {"low": min(low, value), "high": max(high, value)}
    return _bare(quantity, {}, value, method).model_copy(update={**ends, "n": n, "resolution": resolution})


def _bare(quantity: str, conditions: Conditions, value: float, method: str) -> Estimate:
    return Estimate(
        quantity=quantity,
        conditions=conditions,
        value=value,
        low=nan,
        high=nan,
        n=0,
        method=method,
        unit="probability",
        claim=Claim.ESTIMATE,
        of="chance of a difference as large if both sets came from one distribution",
        better="higher",
        statistic="whole",
    )
