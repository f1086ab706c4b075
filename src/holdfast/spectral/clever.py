"""CLEVER: how far an image must move before its answer changes, if its neighbourhood is as steep as it looks.

With ``g`` a margin that is positive at x and L the largest dual norm of its gradient in a ball of radius R, no change
shorter than ``min(g(x) / L, R)`` makes g negative. L is unknown; CLEVER estimates it as the right end of a reverse Weibull
distribution fitted to the largest gradient norms of many batches of random points (Weng et al. 2018,
https://arxiv.org/abs/1801.10578). So the score is an estimate, neither a certificate nor an attack.
Which images are looked at matters: random ones, or those with the largest SPADE node scores (Cheng et al. 2021, 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from holdfast.balls import L1, L2, Ball, Linf
from holdfast.evaluation import Evaluation, Population
from holdfast.result import Claim, Conditions, Estimate, Findings, Series
from holdfast.run import Observed
from holdfast.spectral.graphs.base import Manifold
from holdfast.spectral.graphs.knn import KNN
from holdfast.spectral.margins import Gradients, positions
from holdfast.spectral.weibull import End, right_end
from holdfast.stats import summarise, wilson

FEW = 10
CAPPED = 0.1
"""Share of scores equal to the radius from which on a reader is told: their mean is no estimate of a distance."""
SAME = "the other sample has the same code, so there is no margin"
Ends = list[list[End]]


@final
@dataclass(frozen=True)
class Clever(Evaluation):
    """Estimates, from sampled gradients, how far an image can move before another one or class takes over."""

    balls: tuple[Ball, ...] = (L1(5.0), L2(5.0), Linf(0.5))
    batches: int = 50
    draws: int = 64
    rivals: int = 3
    random: int = 100
    guided: int = 10
    logits: bool = False
    k: int = 10
    graph: Manifold = KNN()
    samples: int = 10_000
    name = "clever"
    version = 2
    title = "Local Lipschitz estimates (CLEVER)"
    meaning = (
        "The CLEVER score estimates how far an image must move before the encoder finds it more similar to another sample "
        "than to itself, from the steepest gradients met around it. It is no bound: an attack may need less, so compare "
        "it with attacks and certificates; the images chosen by SPADE show whether the worst ones were looked at."
    )
    headline = ("clever_score",)

    def observation(self) -> Gradients:
        return Gradients(**vars(self))  # the same settings

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        chosen, (worst, why) = population.choose(self.random), self.observation().worst(population)
        everyone = f"{len(chosen)} random"
        places = {everyone: positions(rows, chosen), f"{self.guided} by SPADE": positions(rows, worst)}
        if len(chosen) > FEW:
            places[f"{FEW} random"] = positions(rows, population.choose(FEW))
        series: list[Series] = []
        estimates: list[Estimate] = []
        warnings = [_unguided(self.guided, len(worst), why)] if why else []
        for index, ball in enumerate(self.balls):
            ends = [[right_end(m) for m in row] for row in observed[f"maxima{index}"].double().cpu().numpy()]
            for kind, columns in (("targeted", slice(0, 1)), ("untargeted", slice(1, None))):
                scores = _scores(observed["margin"][:, columns], [row[columns] for row in ends], ball)
                for samples, where in places.items():
                    given = {"ball": str(ball), "margin": kind, "samples": samples}
                    part = _series(given, scores[where.numpy()], ball)
                    estimate = summarise(part, "mean", "higher", most=ball.radius) if len(where) else None
                    if samples == everyone:
                        series.append(part)
                        warnings += _capped(part, ball)
                    elif estimate:
                        # Other samples than those of the series: nothing to compare image by image.
                        estimate = estimate.model_copy(update={"series": None, "statistic": "other"})
                    estimates += [estimate] if estimate else []
            estimates.append(_fits({"ball": str(ball)}, ends))
        ids = tuple(population.images.ids[row] for row in chosen)
        return Findings(ids=ids, series=tuple(series), estimates=tuple(estimates), warnings=tuple(warnings))


def _unguided(wanted: int, found: int, why: str) -> str:
    return (
        f"CLEVER wanted the {wanted} images with the largest SPADE node scores and could use {found or 'none'}: {why}. "
        "The random images do not need them; guided=0 asks for none."
    )


def _capped(part: Series, ball: Ball) -> list[str]:
    """Return the warning that many scores are the radius of the ball, which says nothing of how far they would go."""
    values = np.array(part.values)
    count, n = int((values == ball.radius).sum()), int((~np.isnan(values)).sum())
    if count < max(1, CAPPED * n):
        return []
    return [
        f"{count} of {n} {part.conditions['margin']} CLEVER scores in {ball} are the radius of the ball, beyond which it "
        "does not look: their mean is no estimate of a distance but at most one; take a larger ball."
    ]


def _scores(margins: Float[Tensor, "b j"], ends: Ends, ball: Ball) -> Float[np.ndarray, "b"]:
    """Return for each sample the smallest ``min(g(x) / L, R)`` over the margins; nan where one is not positive."""
    slopes = np.array([[end.location for end in row] for row in ends])
    values = margins.double().cpu().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.minimum(values / slopes, ball.radius)
    scores[~(values > 0)] = np.nan
    return scores.min(axis=1) if scores.shape[1] else np.full(len(scores), np.nan)


def _series(given: Conditions, values: Float[np.ndarray, "b"], ball: Ball) -> Series:
    return Series(
        quantity="clever_score",
        conditions=given,
        values=tuple(values.tolist()),
        unit="radius",
        claim=Claim.ESTIMATE,
        of="smallest change that turns the margin",
        reasons=dict.fromkeys(np.flatnonzero(np.isnan(values)).tolist(), SAME),
    )


def _fits(given: Conditions, ends: Ends) -> Estimate:
    """Return the share of fits that the maxima do not contradict."""
    accepted = [end.accepted for row in ends for end in row]
    low, high = wilson(sum(accepted), len(accepted)) if accepted else (nan, nan)
    return Estimate(
        quantity="weibull_fits",
        conditions=given,
        value=sum(accepted) / len(accepted) if accepted else nan,
        low=low,
        high=high,
        n=len(accepted),
        method="Wilson",
        unit="share of fits",
        claim=Claim.ESTIMATE,
        of="share of reverse Weibull fits that a Kolmogorov-Smirnov test accepts",
        better="neither",
    )
