"""Thresholds of stated rates of false matches: chosen on pairs of one half of the images, judged on pairs of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.points.counting import TIE
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Verdict
from holdfast.core.settings import number
from holdfast.evaluations.deployed.pairs import METHOD, Pairs
from holdfast.protocol.population import Population

MOST = 4096
"""Images of either half whose pairs count, at most: eight million pairs."""
LEAST = 8
"""Fewer images, or groups of them, make no pairs worth a rate."""
POINTS = 41


@dataclass(frozen=True)
class Cut:
    """A threshold: two images match if their cosine divergence, one minus their similarity, is at most ``distance``."""

    rate: float
    """The share of pairs of different images that was to match at most."""
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
    for image in population.shuffled.tolist():
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
    originals, groups = set(population.originals.tolist()), groups_of(population)
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
    """Return the threshold of each rate: the smallest similarity at which no more than that share of pairs match."""
    return [_cut(pairs, rate) for rate in rates]


def _cut(pairs: Pairs, rate: float) -> Cut:
    allowed = int(rate * len(pairs))
    value = float(pairs.distances[allowed - 1]) if allowed else nan
    near, far = pairs.quantile_interval(rate) if allowed else (nan, nan)
    estimate = Estimate(
        quantity="threshold",
        conditions={"rate": number(rate)},
        value=1 - value,
        low=max(-1.0, 1 - max(far, value)),
        high=min(1.0, 1 - min(near, value)),
        n=int(pairs.sizes.sum()),
        method=f"similarities at which the rate is not refuted: {METHOD}" if allowed else "undefined",
        unit="cosine similarity",
        claim=Claim.ESTIMATE,
        of="similarity above which no more than this rate of pairs of different images lie",
        better="neither",
        statistic="whole",
        reason=None if allowed else f"a rate of {rate:g} needs at least {round(1 / rate)} pairs of images",
    )
    return Cut(rate, value, estimate)


def false_match_rate(cut: Cut, pairs: Pairs) -> Estimate:
    """Return the share of ``pairs`` that match, with the interval of a mean over pairs that share images."""
    value = low = high = nan
    if not isnan(cut.distance) and len(pairs):
        count = pairs.within(cut.distance)
        value = count / len(pairs)
        low, high = pairs.interval(count, cut.rate)
    return Estimate(
        quantity="false_match_rate",
        conditions=cut.conditions,
        value=value,
        low=low,
        high=high,
        n=int(pairs.sizes.sum()),
        method=METHOD if value == value else "undefined",
        unit="share of pairs",
        claim=Claim.ESTIMATE,
        of="pairs of different images at least as similar as the threshold",
        better="lower",
        statistic="whole",
        reason=cut.estimate.reason,
    )


def supported(cut: Cut, measured: Estimate) -> Verdict:
    """Return whether the recommended threshold keeps its rate among images that did not choose it."""
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
    """Return the shares of copies missed and of other images matched at thresholds from that of any pair to 1."""
    similarities = np.linspace(0.0, 1.0, POINTS)
    cuts = torch.tensor(1 - similarities, dtype=torch.float64)
    known = copies[~copies.isnan()]
    missed = [float((known * (1 - TIE) > cut).double().mean()) if len(known) else nan for cut in cuts.tolist()]
    matched = [pairs.within(cut) / len(pairs) if len(pairs) else nan for cut in cuts.tolist()]
    return tuple(
        Curve(
            quantity=quantity,
            x_label="threshold: cosine similarity",
            y_label=label,
            x=tuple(similarities.tolist()),
            y=tuple(values),
        )
        for quantity, label, values in (
            ("missed_copies", "share of everyday copies missed", missed),
            ("false_match_rate", "share of pairs of different images that match", matched),
        )
    )
