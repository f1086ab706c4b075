"""Pairs of different images: which share of them matches, and how far chance moves that share.

``U = #{i < j: d(i, j) <= t} / N`` is a U-statistic: pairs that share an image depend on each other. With ``z_gh`` the
matches between the groups ``g`` and ``h`` less ``U`` times their pairs, its variance is estimated by

    V = (sum_g (sum_h z_gh)^2 - sum_{g<h} z_gh^2) / N^2,

the variance robust to dyads (Aronow, Samii and Assenova 2015, https://arxiv.org/abs/1312.3398). An image alone is a group of
its own; pairs within a group are no pairs of different things and count nowhere. ``N`` pairs are worth ``N / e`` independent
ones, ``e = V / (U (1 - U) / N)``, of which the interval is that of a share (Korn and Graubard 1998).

``e`` grows with the share, and few matches say little of it. So it is taken as the largest of those at the matches seen, at
the rate in question and at ``LOOSER`` times that rate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int

from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Codes
from holdfast.core.points.counting import TIE
from holdfast.core.statistics.clusters import GROUPED, numbered
from holdfast.core.statistics.intervals import share_interval

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
        """Return how many pairs match at ``distance``."""
        return int(np.searchsorted(self.distances * (1 - TIE), distance, side="right"))

    @cached_property
    def _each(self) -> Float[np.ndarray, "g"]:
        """The pairs that each group has a part in."""
        return self.sizes * float(self.sizes.sum()) - self.sizes.astype(float) ** 2

    def effect(self, count: int) -> float:
        """Return how many times the variance of the share is that of independent pairs, if the nearest ``count`` match."""
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
        """Return the interval of the share of pairs, of which ``count`` match, where about ``rate`` is asked for."""
        return self._interval(count, self._effect_at(rate))

    def quantile_interval(self, rate: float) -> tuple[float, float]:
        """Return the distances between which a share of ``rate`` of all pairs lies: where that share is not refuted."""
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
