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
from jaxtyping import Bool, Float

from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.settings import require_not_negative, require_positive
from holdfast.core.statistics import summarise
from holdfast.evaluations.clever.observations import Gradients, positions
from holdfast.evaluations.clever.reverse_weibull import FARTHEST, End, right_end
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.population import Population
from holdfast.protocol.sizes import Sizes
from holdfast.spectral.graphs.base import GraphConstruction
from holdfast.spectral.graphs.knn import KNN

FEW = 10
CAPPED = 0.1
"""Share of scores equal to the radius from which on a warning says that their mean is no estimate of a distance."""
UNFITTED = 0.1
"""Share of images without a fit from which on a warning says that the mean over the others is no estimate for all."""
SAME = "the other sample has the same code, so there is no margin"
NO_FIT = (
    f"the largest gradient norms show no end: the fitted one lies over {FARTHEST:g} standard deviations beyond them all"
)
IN_L1 = (
    " In an l1 ball neither batches nor draws help: random points change every pixel a little, and its steepest places lie "
    "where few pixels change much. Its scores are too large; read l2 or linf, or attack in l1."
)
GUIDED = "no interval: these images were chosen by their scores, they are no sample"
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
    graph: GraphConstruction = KNN()
    samples: int = 10_000
    sizes = Sizes(
        quick={"balls": ["l2:5.0", "linf:0.5"], "batches": 100, "draws": 3, "rivals": 1, "random": 30, "samples": 2000},
        full={"batches": 500, "draws": 1024, "rivals": 10, "samples": 50_000},
        large={"batches": 50, "guided": 2, "samples": 2000},  # each of these samples is encoded once only
        heavy={"balls": ["l2:5.0"], "batches": 20, "draws": 2, "random": 6, "guided": 0},
    )
    name = "clever"
    version = 3
    needs_gradients = True
    title = "Local Lipschitz estimates (CLEVER)"
    meaning = (
        "The CLEVER score estimates how far an image must move before the encoder finds it more similar to another sample "
        "than to itself, from the steepest gradients met around it. It is no bound: an attack may need less, so compare "
        "it with attacks and certificates; the images chosen by SPADE show whether the worst ones were looked at."
    )
    headline = ("clever_score",)
    words = (("clever", "CLEVER"),)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "batches", "draws", "rivals")
        require_not_negative(self, "guided")

    def observation(self) -> Gradients:
        return Gradients(**vars(self))  # the same settings

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        chosen, (worst, why) = population.choose(self.random), self.observation().worst(population)
        everyone, guided = f"{len(chosen)} random", f"{self.guided} by SPADE"
        positions_of = {everyone: positions(rows, chosen), guided: positions(rows, worst)}
        if len(chosen) > FEW:
            positions_of[f"{FEW} random"] = positions(rows, population.choose(FEW))
        series: list[Series] = []
        estimates: list[Estimate] = []
        warnings = [_unguided(self.guided, len(worst), why)] if why else []
        for ball in self.balls:
            ends = [
                [right_end(m) for m in row] for row in self.observation().maxima(ball, observed).double().cpu().numpy()
            ]
            for kind, columns in (("targeted", slice(0, 1)), ("untargeted", slice(1, None))):
                margins = observed["margin"][:, columns].double().cpu().numpy()
                scores = _scores(margins, [row[columns] for row in ends], ball)
                for samples, where in positions_of.items():
                    conditions = {"ball": str(ball), "margin": kind, "samples": samples}
                    part = _series(conditions, scores[where.numpy()], (margins[where.numpy()] > 0).all(axis=1))
                    # The radius limits the scores where they meet it; elsewhere it is no more than far away.
                    most = ball.radius if ball.radius in part.values else None
                    estimate = summarise(part, "mean", "higher", most=most) if len(where) else None
                    if samples == everyone:
                        series.append(part)
                        warnings += _capped(part, ball)
                    elif estimate:
                        # Other samples than those of the series: nothing to compare image by image.
                        estimate = estimate.model_copy(update={"series": None, "statistic": "other"})
                    if estimate and samples == guided:
                        estimate = estimate.model_copy(update={"low": nan, "high": nan, "method": GUIDED})
                    estimates += [estimate] if estimate else []
            series.append(_fits({"ball": str(ball)}, [ends[row] for row in positions_of[everyone].tolist()]))
            estimates.append(summarise(series[-1], "mean", "neither"))
        ids = tuple(population.images.ids[row] for row in chosen)
        warnings += _unfitted(series, self.balls)
        return Findings(ids=ids, series=tuple(series), estimates=tuple(estimates), warnings=tuple(warnings))


def _unguided(count: int, reached: int, why: str) -> str:
    return (
        f"CLEVER wanted the {count} images with the largest SPADE node scores and could use {reached or 'none'}: {why}. "
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


def _unfitted(series: Sequence[Series], balls: Sequence[Ball]) -> list[str]:
    """Return the warning that some images have no score because the gradients around them show no largest norm."""
    sparse = {str(ball): ball.sparse for ball in balls}
    counts = [(part, list(part.reasons.values()).count(NO_FIT)) for part in series]
    counts = [(part, count) for part, count in counts if count]
    if not counts:
        return []
    without = [
        f"{count} of {len(part.values)} {part.conditions['margin']} in {part.conditions['ball']}"
        for part, count in counts
    ]
    many = {sparse[part.conditions["ball"]] for part, count in counts if count >= UNFITTED * len(part.values)}
    advice = " Where it is one in ten or more, the mean over the others is no estimate for all." if many else ""
    advice += " Raise batches." if False in many else ""
    advice += IN_L1 if True in many else ""
    return [f"Images without a CLEVER score, for {NO_FIT}: {', '.join(without)}.{advice}"]


def _scores(margins: Float[np.ndarray, "b j"], ends: Ends, ball: Ball) -> Float[np.ndarray, "b"]:
    """Return for each sample the smallest ``min(g(x) / L, R)``; nan where a margin is not positive or L is not known."""
    slopes = np.array([[end.location for end in row] for row in ends])
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.minimum(margins / slopes, ball.radius)
    scores[~(margins > 0)] = np.nan
    return scores.min(axis=1) if scores.shape[1] else np.full(len(scores), np.nan)


def _series(conditions: Conditions, values: Float[np.ndarray, "b"], distinct: Bool[np.ndarray, "b"]) -> Series:
    return Series(
        quantity="clever_score",
        conditions=conditions,
        values=tuple(values.tolist()),
        unit="radius",
        claim=Claim.ESTIMATE,
        of="smallest change that turns the margin",
        reasons={row: NO_FIT if distinct[row] else SAME for row in np.flatnonzero(np.isnan(values)).tolist()},
    )


def _fits(conditions: Conditions, ends: Ends) -> Series:
    """Return for each sample the share of its fits that the maxima do not contradict; its margins have much in common."""
    return Series(
        quantity="weibull_fits",
        conditions=conditions,
        values=tuple(float(np.mean([end.accepted for end in row])) for row in ends),
        unit="share of fits",
        claim=Claim.ESTIMATE,
        of="share of reverse Weibull fits that a Kolmogorov-Smirnov test accepts",
    )
