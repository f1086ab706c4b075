"""Findings of drift: tests of two sets of embeddings, the place of the difference, and new images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, hypot, log, nan, sqrt
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Resolution, Series, Verdict
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.intervals import share_interval
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.observation import estimate_of, line_of
from holdfast.measure.population import Fit, LooksAt, Population
from holdfast.service import energy as classifier
from holdfast.service.energy import (
    Energies,
    Linearised,
    Weights,
    distance,
    energies,
    holm,
    largest_gaps,
    p_value,
    principal,
)
from holdfast.service.two_sets import (
    TwoSets,
    conformal_p_values,
    discovered,
    log_capital,
    ranks_among_earlier,
    share_beyond,
    support_distances,
    two_sets,
)

NORMAL = 1.959964
"""Deviations of a normal interval of 95%."""


def by_energy(result: Energies, whole: Linearised, sets: TwoSets) -> tuple[Estimate, Estimate]:
    """Energy distance in mean distances between images, and its permutation p-value.

    Args:
        result: Energy distances under all assignments.
        whole: Energy distance of the true assignment.
    """
    others, clusters = result.statistics[1:], sets.clusters
    spread, value = result.spread or nan, whole.value
    # What points add one by one is nothing where both distributions are equal; what pairs of them add, assignments show.
    reach = hypot(NORMAL * whole.deviation(clusters), float((others - others.mean()).abs().quantile(0.95)))
    low = max(0.0, value - reach) if value > 0 else value
    number, n, unit = (value / spread, low / spread, (value + reach) / spread), len(clusters), "mean distance of images"
    method = "normal, of each image's part, and the distance of random assignments; added in squares"
    of, why = "energy distance of both distributions of embeddings", "all embeddings are one point"
    reason = None if result.spread else why
    distance = estimate_of("energy_distance", number, n, method, unit, of, "lower", statistic="whole", reason=reason)
    return distance, _chance("energy_p_value", result.statistics, n, sets.smallest_p_values[0])


def decided(chances: Sequence[Estimate]) -> Estimate:
    """p-value of several tests together (Bonferroni)."""
    least = min(chances, key=lambda chance: chance.value)
    value, low, high = (min(1.0, len(chances) * end) for end in (least.value, least.low, least.high))
    method = f"{len(chances)} times the smaller of {' and '.join(chance.quantity for chance in chances)}"
    finest = min((chance.resolution for chance in chances if chance.resolution), key=lambda each: each.least)
    resolution = finest.model_copy(update={"tests": len(chances)})
    ends = {"value": value, "low": low, "high": high, "method": method, "n": chances[0].n, "resolution": resolution}
    return least.model_copy(update={"quantity": "drift_p_value", **ends})


def moved(chance: Estimate, alpha: float) -> Verdict:
    """Verdict on whether the two sets differ."""
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
    """Area under the curve of a linear classifier, and its p-value.

    Args:
        scores: Score of each image that the classifier did not learn from, shape (q,).
        statistics: Statistic under each assignment, the true one first, shape (r,).
    """
    area, n = classifier.area(scores, sets.first[~sets.learning].numpy()), len(scores)
    method, unit = "Gaffke's bounds of each set's shares; added in squares", "fraction of pairs"
    of = "pairs of one image of each set that a linear classifier orders right; 0.5 is chance"
    estimate = estimate_of("classifier_area", area, n, method, unit, of, "lower", statistic="whole")
    return estimate, _chance("classifier_p_value", statistics, n, sets.smallest_p_values[1])


def by_direction(sets: TwoSets, weights: Weights, count: int) -> tuple[Estimate, ...]:
    """Difference of both sets along each principal direction, with corrected p-values."""
    coordinates, shares = principal(sets.points, count)
    gaps = [largest_gaps(values.float(), weights) for values in coordinates.T]
    chances, estimates = holm([p_value(statistics)[0] for statistics in gaps]), list[Estimate]()
    resolution = Resolution(tests=len(gaps), draws=weights.shape[1] - 1, by_images=sets.smallest_p_values[0])
    slack = sum(sqrt(log(4 / 0.05) / (2 * size)) for size in (len(sets.before), len(sets.after)))
    n, unit, corrected = len(sets.points), "fraction of images", "permutation test, corrected after Holm; no interval"
    band = "Dvoretzky, Kiefer and Wolfowitz's band of each distribution function; the direction as it is"
    for k, (statistics, chance, share) in enumerate(zip(gaps, chances, shares.tolist(), strict=False)):
        case, gap = {"direction": str(k + 1)}, float(statistics[0])
        number = (gap, max(0.0, gap - slack), min(1.0, gap + slack))
        of = f"largest difference of both distribution functions along a direction with {share:.0%} of the variance"
        dressed = estimate_of("direction_gap", number, n, band, unit, of, "lower", case, statistic="whole")
        estimates += [dressed, _probability("direction_p_value", (chance, nan, nan), n, corrected, resolution, case)]
    return tuple(estimates)


def _chance(quantity: str, statistics: Float[Tensor, "r"], n: int, by_images: float) -> Estimate:
    """Return a p-value, with the interval of what it would be with all permutations."""
    value, as_large = p_value(statistics)
    resolution = Resolution(tests=1, draws=len(statistics) - 1, by_images=by_images)
    low, high = share_interval(as_large, resolution.draws)
    method = f"{as_large} of {resolution.draws} random assignments are as far apart; interval of that share"
    return _probability(quantity, (value, min(low, value), max(high, value)), n, method, resolution)


def _probability(
    quantity: str,
    number: tuple[float, float, float],
    n: int,
    method: str,
    resolution: Resolution,
    case: Conditions | None = None,
) -> Estimate:
    of, unit = "chance of a difference as large if both sets came from one distribution", "probability"
    return estimate_of(quantity, number, n, method, unit, of, "higher", case, statistic="whole", resolution=resolution)


LARGEST = 700.0
"""The largest logarithm whose exponential a float holds."""


def beyond_support(
    sets: TwoSets, alpha: float, rate: float
) -> tuple[tuple[Estimate, ...], tuple[Series, Series, Series]]:
    """Fractions of images far from the reference set, and distances of each image.

    Args:
        rate: Expected fraction of images falsely declared new, 0 to 1.
    """
    scores, reference = _scores(sets)
    chances = conformal_p_values(scores, reference)
    new = discovered(chances, rate)
    unit, of = "median distance of images before", "distance to the nearest image before"
    far, why = scores / (np.median(reference) or nan), "all images before have one embedding"
    distance = series_of("support_distance", {}, far, unit, Claim.ESTIMATE, of, why)
    of = "chance that an image like those before is as far from them"
    usual = series_of("novelty_p_value", {}, chances, "probability", Claim.ESTIMATE, of, "")
    of = f"images declared new, of which at most {rate:.0%} falsely in expectation"
    new_images = series_of("new_image", {}, new, "yes or no", Claim.ESTIMATE, of, "")
    fewest = ceil(1 / alpha) - 1
    enough = len(reference) >= fewest
    number = share_beyond(scores, reference, alpha) if enough else (nan, nan, nan)
    method = f"fraction of images, and the quantile of {len(reference)} images before; added in squares"
    of, unit = f"images farther from those before than all but {alpha:.0%} of these are", "fraction of samples"
    few = f"{len(reference)} images before say how far usual ones are, and {fewest} are needed"
    reason, n = None if enough else few, len(scores)
    outside = estimate_of(
        "outside_share", number, n, method, unit, of, "lower", series=usual.quantity, statistic="whole", reason=reason
    )
    return (outside, _share_of_new(new_images, len(reference), rate)), (distance, usual, new_images)


def _share_of_new(new_images: Series, reference: int, rate: float) -> Estimate:
    """Return the fraction of images declared new; undefined where no image could be, however far it were."""
    share = summarise(new_images, "share", "lower", "new_share")
    if 1 / (1 + reference) <= rate:
        return share
    reason = (
        f"no image can be declared new: that needs {ceil(1 / rate) - 1} images before beside the half that is searched, "
        f"and there are {reference}"
    )
    return share.model_copy(update={"value": nan, "low": nan, "high": nan, "method": "undefined", "reason": reason})


@dataclass(frozen=True)
class Bet:
    """Result of a bet against *nothing has changed*."""

    evidence: Estimate
    """Capital that the bet has won."""
    curve: Curve
    """Capital over time."""
    verdict: Verdict
    """Verdict."""


def sequential(sets: TwoSets, alpha: float, seed: int) -> Bet:
    """Bet against *nothing has changed*, in the order of the images' names."""
    scores, reference = _scores(sets)
    order = sorted(range(len(scores)), key=lambda k: sets.after_ids[k])
    ids = [sets.after_ids[k] for k in order]
    draws = Noise.of(seed, ids).fork("ties").uniform((), torch.float64).numpy()
    path = log_capital(ranks_among_earlier(reference, scores[order], draws))
    largest, threshold = float(path.max()), log(1 / alpha)
    # The most that so few bets win, each on the most unusual rank there is.
    reachable = float(log_capital(np.zeros(len(path))).max())
    reached = int(np.argmax(path >= threshold)) if largest >= threshold else None
    number, most = (exp(min(largest, LARGEST)), nan, nan), exp(min(reachable, LARGEST))
    method = "capital of a test martingale at its highest, images in the order of their names; no interval"
    of, unit = "evidence that images have moved away from those before, or towards them", "times the stake"
    name, n = "sequential_evidence", len(path)
    evidence = estimate_of(name, number, n, method, unit, of, "lower", statistic="whole", most=most)
    across, up = "images, in the order of their names", "logarithm to base 10 of the capital"
    curve = line_of(name, {}, across, up, range(1, len(path) + 1), path / log(10))
    status: Literal["refuted", "no violation found", "unknown"] = "no violation found"
    if reached is not None:
        status = "refuted"
    elif reachable < threshold:
        status = "unknown"
    verdict = Verdict(
        question="Has nothing changed so far, however often one looked?",
        status=status,
        reason=f"{len(path)} images can win {exp(reachable):.3g} at most, and {1 / alpha:g} shows a change; wait for more"
        if status == "unknown"
        else f"the evidence reached {evidence.value:.3g}, and where the order of names says nothing of the images it ever "
        f"reaches {1 / alpha:g} with probability {alpha:g} at most",
        witness={"shown after": f"{reached + 1} images ({ids[reached]})"} if reached is not None else {},
    )
    return Bet(evidence, curve, verdict)


def _scores(sets: TwoSets) -> tuple[np.ndarray, np.ndarray]:
    """Return distances to one half of the images before: of those after, and of the other half."""
    before = sets.points[: len(sets.before)]
    support = before[sets.before_half]
    both = (sets.points[len(sets.before) :], before[~sets.before_half])
    scores, reference = (support_distances(points, support).double().numpy() for points in both)
    return scores, reference


@dataclass(frozen=True)
class Comparison:
    """Both sets, and the statistics of the tests that decide."""

    sets: TwoSets
    """Both sets of embeddings."""
    energies: Energies
    """Energy distances under all assignments."""
    scores: Float[np.ndarray, "q"]
    """Score of the classifier for each held-out point."""
    rank_statistics: Float[Tensor, "r"]
    """Its statistic under each assignment of these."""
    permutations: int
    """Random divisions of the images."""
    seed: int
    """Seed of the divisions."""

    @cached_property
    def weights(self) -> Weights:
        """The random assignments of all points."""
        return self.sets.assignments(self.permutations, self.seed)

    @cached_property
    def distance(self) -> Linearised:
        """The energy distance, 0 on average if nothing has changed."""
        sets = self.sets
        before, after = sets.points.split([len(sets.before), len(sets.after)])
        between = (before[sets.copies[:, 0]] - after[sets.copies[:, 1]]).norm(dim=1)
        return distance(self.energies, sets.first, between)

    @property
    def distance_shown(self) -> bool:
        """Whether the interval of the energy distance excludes 0."""
        return self.tests[0].low > 0

    @cached_property
    def tests(self) -> tuple[Estimate, Estimate, Estimate, Estimate]:
        """Energy distance and its p-value, area under the classifier's curve and its p-value."""
        energy = by_energy(self.energies, self.distance, self.sets)
        return *energy, *by_classifier(self.sets, self.scores, self.rank_statistics)

    @cached_property
    def chance(self) -> Estimate:
        """The p-value of both tests together."""
        _, energy, _, area = self.tests
        return decided((energy, area))

    def bet(self, alpha: float) -> Bet:
        """Return the findings of the sequential test."""
        return sequential(self.sets, alpha, self.seed)

    def verdict(self, alpha: float, after_every_image: bool) -> Verdict:
        """Verdict on whether a change is shown.

        Args:
            after_every_image: True for the test that is valid after every image.

        Raises:
            HoldfastError: The sets are too small for any change to be shown.
        """
        if after_every_image:
            return self.bet(alpha).verdict
        if (least := self.sets.smallest_p_value) > alpha:
            sizes = " and ".join(str(len(set(part))) for part in (self.sets.before_groups, self.sets.after_groups))
            raise HoldfastError(
                f"drift: {sizes} images or groups of them allow no p-value below {least:.2g}, so alpha {alpha:g} can "
                "never be reached. Add images, or use a larger alpha"
            )
        return moved(self.chance, alpha)


def compare(sets: TwoSets, permutations: int, seed: int) -> Comparison:
    """Statistics of both tests, in one pass over all pairs of points.

    Args:
        sets: Both sets of embeddings.
        permutations: Random divisions of the images.
        seed: Seed of the divisions.
    """
    scores = classifier.scores(sets.points, sets.first, sets.learning)
    ranks = classifier.rank_statistics(scores, sets.assignments(permutations, seed, ~sets.learning))
    distances = energies(sets.points, sets.assignments(permutations, seed))
    return Comparison(sets, distances, scores, ranks, permutations, seed)


@final
@dataclass(frozen=True)
class Compared(Fit[Comparison]):
    """Statistics of both tests under every assignment: the expensive part of drift."""

    divergence: Divergence
    """Distance between embeddings."""
    permutations: int
    """Random divisions of the images."""
    name = "two-samples"
    version = 1
    uses_groups = True
    uses_bank = True

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        comparison = compare(two_sets(population, self.divergence), self.permutations, population.run.seed)
        return {
            "statistics": comparison.energies.statistics,
            "influence": comparison.energies.influence,
            "spread": torch.tensor(comparison.energies.spread, dtype=torch.float64),
            "scores": torch.as_tensor(comparison.scores),
            "rank_statistics": comparison.rank_statistics,
        }

    def restore(self, population: Population, learned: Observed) -> Comparison:
        return Comparison(
            two_sets(population, self.divergence),
            Energies(learned["statistics"].cpu(), learned["influence"].cpu(), float(learned["spread"])),
            learned["scores"].cpu().numpy(),
            learned["rank_statistics"].cpu(),
            self.permutations,
            population.run.seed,
        )
