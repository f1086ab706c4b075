"""Thresholds of stated rates of false matches: chosen on pairs of one half of the images, judged on pairs of the other."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.points.counting import TIE, share_of_pairs_within, shares_within
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Verdict
from holdfast.core.settings import number
from holdfast.core.statistics.intervals import bounded_interval, jackknife
from holdfast.protocol.population import Population

CHOOSING = 4096
"""At most so many images choose the thresholds: eight million pairs."""
LEAST = 8
"""So few images make no pairs worth a rate."""
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


def halves(population: Population) -> tuple[Codes, Codes]:
    """Return the codes of images that say what thresholds are worth, and of those that choose them; of copies one each.

    The first are those that are edited and attacked, and others beside them.

    Raises:
        HoldfastError: there are too few images.
    """
    order = population.shuffled.tolist()
    originals = set(population.originals.tolist())
    measuring, choosing = ([image for image in part if image in originals] for part in (order[::2], order[1::2]))
    if min(len(measuring), len(choosing)) < LEAST // 2:
        raise HoldfastError(
            f"a threshold needs at least {LEAST} different images, half of them to choose it, and {population.images.name} "
            f"has {len(measuring) + len(choosing)}; add images"
        )
    codes = population.codes.cpu().double()
    return codes[measuring], codes[choosing[:CHOOSING]]


def chosen_cuts(codes: Codes, rates: list[float]) -> list[Cut]:
    """Return the threshold of each rate: the smallest similarity at which no more than that share of pairs match."""
    points = Cosine().embed(codes)
    assert points is not None
    points = points[points.isfinite().all(1)]
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square() / 2
    return [_cut(distances, rate) for rate in rates]


def _cut(distances: Float[Tensor, "n n"], rate: float) -> Cut:
    def similarity(rows: list[int]) -> float:
        chosen = distances if len(rows) == len(distances) else distances[rows][:, rows]
        upper = torch.ones_like(chosen, dtype=torch.bool).triu(1)
        pairs = chosen[upper]
        allowed = int(rate * len(pairs))
        return 1 - float(pairs.kthvalue(allowed).values) if allowed else nan

    value = similarity(list(range(len(distances))))
    low, high = jackknife(similarity, len(distances)) if not isnan(value) else (nan, nan)
    known = not (isnan(value) or isnan(low))
    estimate = Estimate(
        quantity="threshold",
        conditions={"rate": number(rate)},
        value=value,
        low=max(-1.0, min(low, value)) if known else nan,
        high=min(1.0, max(high, value)) if known else nan,
        n=len(distances),
        method="delete-a-group jackknife over images, 10 groups" if known else "no interval: too few pairs of images",
        unit="cosine similarity",
        claim=Claim.ESTIMATE,
        of="similarity above which no more than this rate of pairs of different images lie",
        better="neither",
        statistic="whole",
        reason=f"a rate of {rate:g} needs at least {round(1 / rate)} pairs of images" if isnan(value) else None,
    )
    return Cut(rate, 1 - value, estimate)


def false_match_rate(cut: Cut, codes: Codes) -> Estimate:
    """Return the share of pairs of ``codes`` that match, with the interval of a mean over pairs that share images.

    Each image takes part in as many pairs as there are others: hence twice its deviation (Hoeffding 1948).
    """
    value = low = high = nan
    if not isnan(cut.distance):
        near = shares_within(Cosine(), torch.tensor([cut.distance], dtype=torch.float64), codes)[0].numpy()
        value = float(near.mean())
        ends = bounded_interval(2 * near - value, (-value, 2 - value))
        low, high = max(0.0, ends[0]), min(1.0, ends[1])
    return Estimate(
        quantity="false_match_rate",
        conditions=cut.conditions,
        value=value,
        low=low,
        high=high,
        n=len(codes),
        method="Gaffke's bounds of each image's share of the others, twice its deviation"
        if value == value
        else "undefined",
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


def curves(copies: Float[Tensor, "n edits"], codes: Codes) -> tuple[Curve, ...]:
    """Return the shares of copies missed and of other images matched at thresholds from that of any pair to 1."""
    similarities = np.linspace(0.0, 1.0, POINTS)
    cuts = torch.tensor(1 - similarities, dtype=torch.float64)
    known = copies[~copies.isnan()]
    missed = [float((known * (1 - TIE) > cut).double().mean()) if len(known) else nan for cut in cuts.tolist()]
    matched = share_of_pairs_within(Cosine(), cuts, codes[:CHOOSING]).tolist()
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
