"""Which images lie outside what the bank covers, and a test of them that may be looked at after every image."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, log, nan
from typing import Literal

import numpy as np
import torch

from holdfast.core.noise import Noise
from holdfast.core.records import Claim, Curve, Estimate, Series, Verdict
from holdfast.core.statistics import summarise
from holdfast.core.statistics.series import series_of
from holdfast.evaluations.deployed.two_sets import TwoSets
from holdfast.twosample.betting import log_capital, ranks_among_earlier
from holdfast.twosample.support import conformal_p_values, discovered, share_beyond, support_distances

LARGEST = 700.0
"""The largest logarithm whose exponential a float holds."""


def beyond_support(
    sets: TwoSets, alpha: float, rate: float
) -> tuple[tuple[Estimate, ...], tuple[Series, Series, Series]]:
    """Return the shares of images that are farther from the bank than its own are, and what was measured of each."""
    scores, reference = _scores(sets)
    chances = conformal_p_values(scores, reference)
    new = discovered(chances, rate)
    distance = series_of(
        "support_distance", {}, torch.from_numpy(scores / (np.median(reference) or nan)),
        "median distance of images before", Claim.ESTIMATE, "distance to the nearest image before",
        "all images before have one code",
    )  # fmt: skip
    usual = series_of(
        "novelty_p_value", {}, torch.from_numpy(chances), "probability", Claim.ESTIMATE,
        "chance that an image like those before is as far from them", "",
    )  # fmt: skip
    new_images = series_of(
        "new_image", {}, torch.from_numpy(new).double(), "yes or no", Claim.ESTIMATE,
        f"images declared new, of which at most {rate:.0%} falsely in expectation", "",
    )  # fmt: skip
    fewest = ceil(1 / alpha) - 1
    enough = len(reference) >= fewest
    value, low, high = share_beyond(scores, reference, alpha) if enough else (nan, nan, nan)
    outside = Estimate(
        quantity="outside_share",
        value=value,
        low=low,
        high=high,
        n=len(scores),
        method=f"share of images, and the quantile of {len(reference)} images before; added in squares",
        unit="share of samples",
        claim=Claim.ESTIMATE,
        of=f"images farther from those before than all but {alpha:.0%} of these are",
        better="lower",
        series="novelty_p_value",
        statistic="whole",
        reason=None
        if enough
        else f"{len(reference)} images before say how far usual ones are, and {fewest} are needed",
    )
    return (outside, _share_of_new(new_images, len(reference), rate)), (distance, usual, new_images)


def _share_of_new(new_images: Series, reference: int, rate: float) -> Estimate:
    """Return the share of images declared new; undefined where no image could be, however far it were."""
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
    """What a bet against *nothing has changed* has won."""

    evidence: Estimate
    curve: Curve
    verdict: Verdict


def sequential(sets: TwoSets, alpha: float, seed: int) -> Bet:
    """Return what a bet against *nothing has changed* has won, in the order of the images' names, and what follows."""
    scores, reference = _scores(sets)
    order = sorted(range(len(scores)), key=lambda k: sets.after_ids[k])
    ids = [sets.after_ids[k] for k in order]
    draws = Noise.of(seed, ids).fork("ties").uniform((), torch.float64).numpy()
    path = log_capital(ranks_among_earlier(reference, scores[order], draws))
    largest, threshold = float(path.max()), log(1 / alpha)
    # The most that so few bets win, each on the most unusual rank there is.
    reachable = float(log_capital(np.zeros(len(path))).max())
    reached = int(np.argmax(path >= threshold)) if largest >= threshold else None
    evidence = Estimate(
        quantity="sequential_evidence",
        value=exp(min(largest, LARGEST)),
        low=nan,
        high=nan,
        n=len(path),
        method="capital of a test martingale at its highest, images in the order of their names; no interval",
        unit="times the stake",
        claim=Claim.ESTIMATE,
        of="evidence that images have moved away from those before, or towards them",
        better="lower",
        statistic="whole",
        most=exp(min(reachable, LARGEST)),
    )
    curve = Curve(
        quantity="sequential_evidence",
        x_label="images, in the order of their names",
        y_label="logarithm to base 10 of the capital",
        x=tuple(range(1, len(path) + 1)),
        y=tuple((path / log(10)).tolist()),
    )
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
