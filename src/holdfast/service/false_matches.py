"""Thresholds for stated rates of false matches, and the pairs of images that test them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.points.counting import TIE
from holdfast.core.records import Conditions, Curve, Estimate, Verdict
from holdfast.core.settings import number
from holdfast.core.statistics.groups import GROUPED, numbered
from holdfast.core.statistics.intervals import share_interval
from holdfast.measure.observation import estimate_of, line_of
from holdfast.measure.population import Population

# Pairs of different images: which share of them matches, and how far chance moves that share.
#
# ``U = #{i < j: d(i, j) <= t} / N`` is a U-statistic: pairs that share an image depend on each other. With ``z_gh`` the
# matches between the groups ``g`` and ``h`` less ``U`` times their pairs, its variance is estimated by
#
#     V = (sum_g (sum_h z_gh)^2 - sum_{g<h} z_gh^2) / N^2,
#
# the variance robust to dyads (Aronow, Samii and Assenova 2015, https://arxiv.org/abs/1312.3398). An image alone is a
# group of its own; pairs within a group are no pairs of different things and count nowhere. ``N`` pairs are worth ``N
# / e`` independent ones, ``e = V / (U (1 - U) / N)``, of which the interval is that of a share (Korn and Graubard
# 1998).
#
# ``e`` grows with the share, and few matches say little of it. So it is taken as the largest of those at the matches
# seen, at the stated rate and at ``LOOSER`` times that rate.

LOOSER = 2
NORMAL = 1.959964
"""Standard deviations of a normal interval of 95%."""
FEWEST = 3
"""Groups whose pairs say anything of their dependence."""
METHOD = f"mid-P of as many pairs as their dependence leaves, {GROUPED}"


@dataclass(frozen=True)
class Pairs:
    """Cosine divergences of all pairs of images of different groups, ascending, with the groups of each pair."""

    distances: Float[np.ndarray, "p"]
    first: Int[np.ndarray, "p"]
    second: Int[np.ndarray, "p"]
    sizes: Int[np.ndarray, "g"]
    """Images in each group."""

    @classmethod
    def of(cls, codes: Codes, groups: Sequence[str]) -> Pairs:
        """Return the pairs of ``codes``, shape (n, d); an embedding without a direction makes none."""
        points = Cosine().embed(codes.double())
        assert points is not None
        known = points.isfinite().all(1)
        points, names = points[known], numbered(np.array(groups, dtype=str)[known.numpy()])
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square() / 2
        i, j = np.triu_indices(len(points), 1)
        apart = names[i] != names[j]
        i, j = i[apart], j[apart]
        values = distances.numpy()[i, j]
        order = values.argsort(kind="stable")
        return cls(values[order], names[i[order]], names[j[order]], np.bincount(names))

    def __len__(self) -> int:
        return len(self.distances)

    def within(self, distance: float) -> int:
        """Return the number of pairs that match at ``distance``."""
        return int(np.searchsorted(self.distances * (1 - TIE), distance, side="right"))

    @cached_property
    def _each(self) -> Float[np.ndarray, "g"]:
        return self.sizes * float(self.sizes.sum()) - self.sizes.astype(float) ** 2

    def effect(self, count: int) -> float:
        """Return the variance of the fraction relative to independent pairs, if the nearest ``count`` pairs match."""
        count, groups, pairs = min(max(count, 1), len(self)), len(self.sizes), len(self)
        share = count / pairs
        if groups < FEWEST or share == 1:
            return float(pairs)
        first, second = self.first[:count], self.second[:count]
        matches = np.bincount(first, minlength=groups) + np.bincount(second, minlength=groups)
        squares = self.sizes.astype(float) ** 2
        between = (squares.sum() ** 2 - (squares**2).sum()) / 2
        if len(squares) == squares.sum():
            own = count - 2 * share * count + share**2 * between
        else:
            met, times = np.unique(np.minimum(first, second) * groups + np.maximum(first, second), return_counts=True)
            product = self.sizes[met // groups] * self.sizes[met % groups]
            own = (times**2).sum() - 2 * share * (times * product).sum() + share**2 * between
        total = ((matches - share * self._each) ** 2).sum()
        return max(1.0, (total - own) * groups / (groups - 1) / (share * (1 - share) * pairs))

    def interval(self, count: int, rate: float) -> tuple[float, float]:
        """Return the interval of the fraction of pairs, of which ``count`` match, where about ``rate`` is asked for."""
        return self._interval(count, self._effect_at(rate))

    def quantile_interval(self, rate: float) -> tuple[float, float]:
        """Return the distances between which a fraction of ``rate`` of all pairs lies: where that share is not refuted."""
        counts, effect = range(len(self) + 1), self._effect_at(rate)
        least = bisect_left(counts, True, key=lambda count: self._interval(count, effect)[1] >= rate)
        most = bisect_left(counts, True, key=lambda count: self._interval(count, effect)[0] > rate) - 1
        low = float(self.distances[least - 1]) if least else 0.0
        return low, float(self.distances[most]) if most < len(self) else 2.0

    def _effect_at(self, rate: float) -> float:
        return max(self.effect(round(times * rate * len(self))) for times in (1, LOOSER))

    def _interval(self, count: int, effect: float) -> tuple[float, float]:
        """Return the interval of a share whose variance is at least ``effect`` times that of independent pairs."""
        from scipy.special import stdtrit

        groups, pairs = len(self.sizes), len(self)
        if groups < FEWEST:
            return 0.0, 1.0
        effect = max(effect, self.effect(count) if count else 1.0)
        effective = pairs / effect / (float(stdtrit(groups - 1, 0.975)) / NORMAL) ** 2
        return share_interval(count / pairs * effective, effective)


MOST = 4096
"""Images of either half whose pairs count, at most: eight million pairs."""
LEAST = 8
"""Fewer images, or groups of them, make no pairs worth a rate."""
POINTS = 41


@dataclass(frozen=True)
class Cut:
    """A threshold: two images match if their cosine divergence, one minus their similarity, is at most ``distance``."""

    rate: float
    """The fraction of pairs of different images that was to match at most."""
    distance: float
    """nan where there are too few pairs for such a rate."""
    estimate: Estimate

    @property
    def conditions(self) -> Conditions:
        return {"rate": number(self.rate)}

    def beyond(self, distances: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Return 1 where two images do not match, else 0; nan where either is unknown."""
        missed = (distances * (1 - TIE) > self.distance).double()
        return missed.masked_fill(distances.isnan() | isnan(self.distance), torch.nan)


def halves(population: Population) -> tuple[list[int], list[int]]:
    """Return the rows of images that say what thresholds are worth, and of those that choose them, both in random order.

    No group of images is in both. The first of both are pairs of different images, and so on.
    """
    groups, sides = groups_of(population), (list[int](), list[int]())
    side = dict[str, int]()
    for image in population.random_order.tolist():
        sides[side.setdefault(groups[image], len(side) % 2)].append(image)
    return sides


def groups_of(population: Population) -> list[str]:
    """Return the group of each image: what belongs together never counts as a false match."""
    images = population.images
    return list(images.ids if images.groups is None else map(str, images.groups))


def pairs_of_halves(population: Population) -> tuple[Pairs, Pairs]:
    """Return the pairs of images that say what thresholds are worth, and of those that choose them; of copies one each.

    Raises:
        HoldfastError: there are too few images, or groups of them.
    """
    originals, groups = set(population.first_copies.tolist()), groups_of(population)
    parts = [[image for image in part if image in originals] for part in halves(population)]
    counts = [len({groups[image] for image in part}) for part in parts]
    if min(counts) < LEAST // 2:
        kind = "different images" if population.images.groups is None else "groups of different images"
        raise HoldfastError(
            f"a threshold needs at least {LEAST} {kind}, half of them to choose it, and {population.images.name} "
            f"has {sum(counts)}; add images"
        )
    codes = population.codes.cpu()
    measuring, choosing = (Pairs.of(codes[part[:MOST]], [groups[image] for image in part[:MOST]]) for part in parts)
    return measuring, choosing


def chosen_cuts(pairs: Pairs, rates: Sequence[float]) -> list[Cut]:
    """Return the threshold of each rate: the smallest similarity at which no more than that fraction of pairs match."""
    return [_cut(pairs, rate) for rate in rates]


def _cut(pairs: Pairs, rate: float) -> Cut:
    allowed = int(rate * len(pairs))
    value = float(pairs.distances[allowed - 1]) if allowed else nan
    near, far = pairs.quantile_interval(rate) if allowed else (nan, nan)
    ends = (1 - value, max(-1.0, 1 - max(far, value)), min(1.0, 1 - min(near, value)))
    method = f"similarities at which the rate is not refuted: {METHOD}" if allowed else "undefined"
    unit, of = "cosine similarity", "similarity above which no more than this rate of pairs of different images lie"
    n, case = int(pairs.sizes.sum()), {"rate": number(rate)}
    why = None if allowed else f"a rate of {rate:g} needs at least {round(1 / rate)} pairs of images"
    threshold = estimate_of("threshold", ends, n, method, unit, of, "neither", case, statistic="whole", reason=why)
    return Cut(rate, value, threshold)


def false_match_rate(cut: Cut, pairs: Pairs) -> Estimate:
    """Return the fraction of ``pairs`` that match, with the interval of a mean over pairs that share images."""
    value = low = high = nan
    if not isnan(cut.distance) and len(pairs):
        count = pairs.within(cut.distance)
        value = count / len(pairs)
        low, high = pairs.interval(count, cut.rate)
    n, method, unit = int(pairs.sizes.sum()), METHOD if value == value else "undefined", "fraction of pairs"
    name, of = "false_match_rate", "pairs of different images at least as similar as the threshold"
    case, ends, why = cut.conditions, (value, low, high), cut.estimate.reason
    return estimate_of(name, ends, n, method, unit, of, "lower", case, statistic="whole", reason=why)


def supported(cut: Cut, measured: Estimate) -> Verdict:
    """Return whether the recommended threshold keeps its rate on held-out images."""
    if isnan(cut.distance):
        return Verdict(
            question=f"Is there a threshold that keeps false matches at {cut.rate:g}?",
            status="unknown",
            reason=f"{cut.estimate.reason}; add images, or ask for a larger rate",
        )
    status: Literal["refuted", "no violation found", "unknown"] = "unknown"
    if measured.low > cut.rate:
        status = "refuted"
    elif measured.high <= cut.rate:
        status = "no violation found"
    return Verdict(
        question=f"Does the threshold {1 - cut.distance:.4f} keep false matches at {cut.rate:g}?",
        status=status,
        reason=f"{measured.value:.2g} of the pairs of {measured.n} other images match, with 95% confidence between "
        f"{measured.low:.2g} and {measured.high:.2g}",
    )


def curves(copies: Float[Tensor, "n edits"], pairs: Pairs) -> tuple[Curve, ...]:
    """Return the fractions of copies missed and of other images matched at thresholds from that of any pair to 1."""
    similarities = np.linspace(0.0, 1.0, POINTS)
    cuts = torch.tensor(1 - similarities, dtype=torch.float64)
    known = copies[~copies.isnan()]
    missed = [float((known * (1 - TIE) > cut).double().mean()) if len(known) else nan for cut in cuts.tolist()]
    matched = [pairs.within(cut) / len(pairs) if len(pairs) else nan for cut in cuts.tolist()]
    across, matching = "threshold: cosine similarity", "fraction of pairs of different images that match"
    return (
        line_of("missed_copies", {}, across, "fraction of everyday copies missed", similarities, missed),
        line_of("false_match_rate", {}, across, matching, similarities, matched),
    )
