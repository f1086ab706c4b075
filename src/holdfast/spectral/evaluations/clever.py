"""CLEVER: estimated robust radii from sampled gradients and a reverse Weibull fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import nan
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from holdfast.attacks.base import GRADIENT, gain_and_gradient, gains_and_gradients
from holdfast.attacks.gradient import random_start, stepped
from holdfast.attacks.objectives.simple import margin_of_logits
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_not_negative, check_positive
from holdfast.core.statistics.intervals import fit, log_likelihood, misfit
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import LATER, Evaluation, Sizes
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.spectral.fits import SpectralFit
from holdfast.spectral.graph_pair import KNN, GraphConstruction, TooFewSamplesError

# Gradients of margins at random points near images.
#
# A margin is linear in the codes, ``g(x') = w . f(x')``. Without labels ``w = f~(x) - f~(x_j)`` with normalised clean
# codes: while it is positive, x' is more similar to x than to the other sample x_j. With logits ``w = e_c - e_j``:
# while it is positive, class c, the one predicted for x, wins over class j.

PGD_STEPS, PGD_STRIDE = 10, 0.007 / 0.031
"""Steps of the attack behind GAIRAT weights, and their size relative to ε, as in its authors' program."""
COPY = 1e-10
"""Squared distance of two normalised embeddings below which they are one."""


@final
@dataclass(frozen=True)
class Gradients(Observation):
    """Largest gradient norms of ``1 + rivals`` margins in ``batches`` batches of ``draws`` points of each ball.

    Of ``random`` images chosen at random, and of the ``guided`` ones with the largest SPADE node scores and the ``least``
    ones with the smallest. Margin 0 is that
    against a random other sample (or class), the others are those against the nearest.
    """

    balls: tuple[Ball, ...]
    batches: int
    draws: int
    rivals: int
    random: int
    guided: int
    least: int
    logits: bool
    k: int
    graph: GraphConstruction
    samples: int
    gairat: tuple[Ball, ...] = field(default=(), metadata=LATER)
    name = "gradients"
    version = 1
    uses_groups = True

    def fits(self) -> tuple[SpectralFit, ...]:
        return (SpectralFit(self.k, self.graph, "none", self.samples),) if self.guided or self.least else ()

    def rows(self, population: Population) -> list[int]:
        return sorted({*population.choose(self.random), *self.worst(population)[0], *self.best(population)[0]})

    def worst(self, population: Population) -> tuple[list[int], str]:
        """Return the rows of the images with the largest node scores, largest first, and why they are too few."""
        return self._by_score(population, self.guided, True)

    def best(self, population: Population) -> tuple[list[int], str]:
        """Return the rows of the images with the smallest node scores, smallest first, and why they are too few."""
        return self._by_score(population, self.least, False)

    def _by_score(self, population: Population, count: int, largest: bool) -> tuple[list[int], str]:
        if not count:
            return [], ""
        try:
            scores = population.learned(*self.fits())
        except TooFewSamplesError as error:
            return [], str(error)
        nodes = torch.from_numpy(scores.spade.node_scores())
        # An infinite score leaves unknown who has the smallest.
        known = ~nodes.isnan() if largest else nodes.isfinite() & (scores.spade.split is None)
        order = nodes.nan_to_num(nan=-torch.inf if largest else torch.inf).argsort(descending=largest, stable=True)
        chosen = [scores.rows[node] for node in order.tolist() if known[node]][:count]
        why = "the SPADE score is infinite" if scores.spade.split else "no more images have one"
        return chosen, "" if len(chosen) == count else why

    def forward_passes(self, population: Population) -> int:
        attacks = len(self.gairat) * PGD_STEPS
        margins = 1 + (GRADIENT - 1) * (1 + self.rivals)  # share a forward pass
        return len(self.balls) * self.batches * self.draws * margins + GRADIENT * attacks

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        weights = self.weights(population, rows)
        clean = population.codes[list(rows)]
        observed: Observed = {"margin": torch.einsum("bkd,bd->bk", weights, clean)}
        for index, ball in enumerate(self.balls):
            observed[f"maxima{index}"] = self._maxima(population, rows, weights, ball)
        for index, ball in enumerate(self.gairat):
            observed[f"kept{index}"] = self._kept(population, rows, weights, ball)
        return observed

    def maxima(self, ball: Ball, observed: Observed) -> Float[Tensor, "b k s"]:
        """Return the largest gradient norms in ``ball``, from what was ``observed``."""
        return observed[f"maxima{self.balls.index(ball)}"]

    def weights(self, population: Population, rows: Sequence[int]) -> Float[Tensor, "b k d"]:
        """Return the margins' ``w``, the random one first."""
        return self._logits(population, rows) if self.logits else self._codes(population, rows)

    def _codes(self, population: Population, rows: Sequence[int]) -> Float[Tensor, "b k d"]:
        unit = normalize(population.codes.double(), dim=1)
        anchors = unit[list(rows)]
        similarity = anchors @ unit.T
        similarity[torch.arange(len(rows)), list(rows)] = -torch.inf
        if (kin := population.kin(rows, population)) is not None:
            similarity[kin.mine[:, None] == kin.theirs] = -torch.inf
        near = similarity.topk(min(self.rivals, population.fewest_others), dim=1).indices
        others = torch.cat([population.partners[list(rows)][:, None].to(near.device), near], dim=1)
        weights = anchors[:, None] - unit[others]
        # What rounding leaves of the difference of two equal codes is no direction.
        weights[weights.square().sum(2) < COPY] = 0
        return weights.to(population.codes.dtype)

    def _logits(self, population: Population, rows: Sequence[int]) -> Float[Tensor, "b k d"]:
        logits = population.codes[list(rows)]
        classes = logits.shape[1]
        if classes < 2:
            raise HoldfastError("clever with logits=true needs an encoder that returns at least 2 logits per image")
        order = logits.argsort(dim=1, descending=True, stable=True)
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("clever class")
        position = 1 + (noise.uniform((1,), torch.float64) * (classes - 1)).long()
        others = torch.cat([order.gather(1, position), order[:, 1 : 1 + self.rivals]], dim=1)
        return (one_hot(order[:, :1], classes) - one_hot(others, classes)).to(logits.dtype)

    def _kept(
        self, population: Population, rows: Sequence[int], weights: Float[Tensor, "b k d"], ball: Ball
    ) -> Float[Tensor, "b"]:
        """Count the points of PGD, the random start first, at which all margins are positive: GAIRAT's kappa."""
        pixels, domain = population.pixels(rows), population.encoder.domain
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("gairat", str(ball))
        moved, kept = random_start(pixels, ball, noise, 1.0, domain), torch.zeros(len(rows), device=weights.device)

        def nearer(codes: Codes) -> Float[Tensor, "b"]:
            return -torch.einsum("bkd,bd->bk", weights, codes).amin(1)

        # Of logits all classes count, not the likeliest alone.
        classes = population.codes[list(rows)].argmax(1)
        lost = margin_of_logits(lambda codes: codes, classes) if self.logits else nearer
        for _ in range(PGD_STEPS):
            gain, gradient = gain_and_gradient(population.optimised, moved, lost)
            kept += gain < 0
            moved = stepped(pixels, moved, gradient, PGD_STRIDE * ball.radius, ball, domain)
        return kept

    def _maxima(
        self, population: Population, rows: Sequence[int], weights: Float[Tensor, "b k d"], ball: Ball
    ) -> Float[Tensor, "b k s"]:
        """Return the largest dual norm of each margin's gradient in each batch of points."""
        pixels = population.pixels(rows)
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("clever", ball.name)
        maxima = torch.zeros(*weights.shape[:2], self.batches, dtype=weights.dtype, device=weights.device)
        together = max(1, population.run.batch_size // len(rows))
        for batch in range(self.batches):
            for start in range(0, self.draws, together):
                parts = [noise.fork(batch, draw).keys for draw in range(start, min(start + together, self.draws))]
                delta = ball.sample(Noise(torch.cat(parts)), pixels.shape[1:], pixels.dtype)
                # Clipped: the encoder is evaluated nowhere outside its domain.
                points = population.encoder.domain.clip(pixels.repeat(len(parts), *(1,) * (pixels.ndim - 1)) + delta)
                norms = _slopes(population, points, weights.repeat(len(parts), 1, 1), ball)
                largest = norms.unflatten(0, (len(parts), len(rows))).amax(0)
                maxima[:, :, batch] = torch.maximum(maxima[:, :, batch], largest)
        return maxima


def _slopes(
    population: Population, points: Tensor, weights: Float[Tensor, "b k d"], ball: Ball
) -> Float[Tensor, "b k"]:
    """Return the dual norms of the gradients of all margins, with one forward pass for all of them."""
    margins = [partial(_margin, each) for each in weights.unbind(1)]
    found = gains_and_gradients(population.optimised, points, margins)
    return torch.stack([ball.dual_norm(gradient) for _, gradient in found], 1)


def _margin(weights: Codes, codes: Codes) -> Float[Tensor, "b"]:
    return (codes * weights).sum(1)


def gairat_weight(kept: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return the weight of the training loss of an image that keeps its answer at ``kept`` points of PGD.

    Zhang et al. 2021, https://arxiv.org/abs/2010.01736, equation 6 with lambda = -1.

    Example:
        >>> gairat_weight(torch.tensor([0.0, 5.0]))
        tensor([0.9997, 0.1192])
    """
    return (1 + torch.tanh(-1 + 5 * (1 - 2 * kept / PGD_STEPS))) / 2


def positions(rows: Sequence[int], chosen: Sequence[int]) -> Int[Tensor, "c"]:
    """Return the position of each of ``chosen`` in ``rows``."""
    position_of = {row: position for position, row in enumerate(rows)}
    return torch.tensor([position_of[row] for row in chosen], dtype=torch.int64)


# The right end of a distribution of maxima, by a reverse Weibull fit (Weng et al. 2018, section 3).
#
# Maxima of many independent bounded values follow, in the limit, ``F(y) = exp(-((a - y) / s)^c)`` for ``y < a``:
# their largest possible value is the location ``a``. Without limits the likelihood has no maximum: it grows forever
# as ``a`` nears the largest value with ``c < 1``, and often as ``a`` goes to infinity, where the law turns into
# Gumbel's, which has no end. So for each ``a`` on a line the other two are fitted with ``c >= 1``, and the best of a
# bounded range of ``a`` is taken; if that is the far end of the range, the values give no end. The published program
# leaves this to an optimiser, which ends anywhere between.

ACCEPTED = 0.05
SAME_NORMS = 1e-6
"""Relative spread of maxima below which the function is linear for all one can see, and the largest is the end."""
NEAREST, FARTHEST = 1e-4, 10.0
"""Search range of the end beyond the largest value, in standard deviations of the values."""
STEPS, ROUNDS = 12, 4
"""Ends tried in each round; the next round looks between the neighbours of the best one."""


@dataclass(frozen=True)
class End:
    """The estimated right end, nan where the values give none, and how well the fit describes the maxima."""

    location: float
    p_value: float
    """p of the Kolmogorov-Smirnov test of the maxima against the fit; large means no contradiction."""

    @property
    def accepted(self) -> bool:
        """Return whether there is a fit without contradiction."""
        return self.p_value > ACCEPTED


def right_end(maxima: Float[np.ndarray, "s"]) -> End:
    """Return the right end of the distribution of ``maxima``: at least the largest of them, nan if they show none.

    Example:
        >>> right_end(np.full(20, 3.0)).location
        3.0
    """
    top, spread = float(maxima.max()), float(maxima.std())
    if not spread > SAME_NORMS * abs(top):
        return End(top, 1.0)
    below = (top - maxima) / spread
    line = np.linspace(np.log(NEAREST), np.log(FARTHEST), STEPS)
    for _ in range(ROUNDS):
        values = below + np.exp(line)[:, None]
        shape, scale = fit(values, flattest=1.0)
        best = int(log_likelihood(values, shape, scale).argmax())
        beyond = float(np.exp(line[best]))
        line = np.linspace(line[max(best - 1, 0)], line[min(best + 1, STEPS - 1)], STEPS)
    if beyond > 0.99 * FARTHEST:
        return End(nan, 0.0)
    return End(top + beyond * spread, misfit(values[best], float(shape[best]), float(scale[best]))[1])


# CLEVER: how far an image must move before its answer changes, if its neighbourhood is as steep as it looks.
#
# With ``g`` a margin that is positive at x and L the largest dual norm of its gradient in a ball of radius R, no
# change shorter than ``min(g(x) / L, R)`` makes g negative. L is unknown; CLEVER estimates it as the right end of a
# reverse Weibull distribution fitted to the largest gradient norms of many batches of random points (Weng et al.
# 2018, https://arxiv.org/abs/1801.10578). So the score is an estimate, neither a certificate nor an attack. Which
# images are looked at matters: random ones, or those with the largest SPADE node scores (Cheng et al. 2021, 4.2).

FEW = 10
CAPPED = 0.1
"""Fraction of scores equal to ε above which a warning says that their mean does not estimate a distance."""
UNFITTED = 0.1
"""Fraction of images without a fit above which a warning says that the mean is not valid for all images."""
SAME = "the other sample has the same embedding, so there is no margin"
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
    """Estimated perturbation at which another image or class takes over (CLEVER).

    The number is an estimate from sampled gradients, no bound.
    """

    balls: tuple[Ball, ...] = (L1(5.0), L2(5.0), Linf(0.5))
    """Balls in which gradients are sampled; the radius is also the largest score."""
    batches: int = 50
    """Number of maxima to fit; 500 in the paper."""
    draws: int = 64
    """Points per maximum; 1024 in the paper."""
    rivals: int = 3
    """Most similar images, or likeliest other classes, of the untargeted score."""
    random: int = 100
    """Number of random images."""
    guided: int = 10
    """Number of images with the largest node scores; 0: none."""
    least: int = 0
    """Number of images with the smallest node scores (table 9 of the SPADE paper)."""
    logits: bool = False
    """Whether the encoder returns the logits of a classifier."""
    k: int = 10
    """Neighbours in the graphs of node scores."""
    graph: GraphConstruction = KNN()
    """Kind of these graphs, as in `spade`."""
    samples: int = 10_000
    """Images in these graphs; if `spade` has equal settings, node scores are computed once."""
    gairat: tuple[Ball, ...] = field(default=(), metadata=LATER)
    """Balls of the PGD behind GAIRAT weights of the same images, as in `linf:8/255`."""
    sizes = Sizes(
        quick={"balls": ["l2:5.0", "linf:0.5"], "batches": 100, "draws": 3, "rivals": 1, "random": 30, "samples": 2000},
        full={"batches": 500, "draws": 1024, "rivals": 10, "least": 10, "samples": 50_000},
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
        check_positive(self, "batches", "draws", "rivals")
        check_not_negative(self, "guided", "least")

    def observation(self) -> Gradients:
        return Gradients(**vars(self))  # the same settings

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        chosen, (worst, why) = population.choose(self.random), self.observation().worst(population)
        everyone, guided = f"{len(chosen)} random", f"{self.guided} by SPADE"
        positions_of = {everyone: positions(rows, chosen), guided: positions(rows, worst)}
        least = f"{self.least} least by SPADE"
        if self.least:
            positions_of[least] = positions(rows, self.observation().best(population)[0])
        if len(chosen) > FEW:
            positions_of[f"{FEW} random"] = positions(rows, population.choose(FEW))
        series, estimates = list[Series](), list[Estimate]()
        warnings = [_unguided(self.guided, len(worst), why)] if why else []
        for ball in self.balls:
            maxima = self.observation().maxima(ball, observed).double().cpu().numpy()
            ends = [[right_end(m) for m in row] for row in maxima]
            for kind, columns in (("targeted", slice(0, 1)), ("untargeted", slice(1, None))):
                margins = observed["margin"][:, columns].double().cpu().numpy()
                scores = _scores(margins, [row[columns] for row in ends], ball)
                for samples, where in positions_of.items():
                    conditions = {"ball": str(ball), "margin": kind, "samples": samples}
                    part = _series(conditions, scores[where.numpy()], (margins[where.numpy()] > 0).all(axis=1))
                    # The radius limits the scores where they meet it; elsewhere it is no more than far away.
                    most = ball.radius if ball.radius in part.values else None
                    if samples == everyone:
                        series.append(part)
                        warnings += _capped(part, ball)
                    if len(where):
                        estimates.append(_of_samples(part, samples, everyone, (guided, least), most))
            series.append(_fits({"ball": str(ball)}, [ends[row] for row in positions_of[everyone].tolist()]))
            estimates.append(summarise(series[-1], "mean", "neither"))
        copies = ~(observed["margin"] > 0).all(1)
        for index, ball in enumerate(self.gairat):
            values = gairat_weight(observed[f"kept{index}"].double()).masked_fill(copies, nan).cpu().numpy()
            for samples, where in positions_of.items():
                if len(where):
                    part = _weights({"ball": str(ball), "samples": samples}, values[where.numpy()])
                    series += [part] if samples == everyone else []
                    estimates.append(_of_samples(part, samples, everyone, (guided, least)))
        ids = tuple(population.images.ids[row] for row in chosen)
        warnings += _unfitted(series, self.balls)
        return Findings(ids=ids, series=tuple(series), estimates=tuple(estimates), warnings=tuple(warnings))


def _of_samples(
    part: Series, samples: str, everyone: str, by_score: Sequence[str], most: float | None = None
) -> Estimate:
    """Return the mean over ``samples``; only ``everyone``, the random ones, is compared image by image."""
    estimate = summarise(part, "mean", "higher" if part.quantity == "clever_score" else "neither", most=most)
    if samples != everyone:
        estimate = estimate.model_copy(update={"series": None, "statistic": "other"})
    return estimate.model_copy(update={"low": nan, "high": nan, "method": GUIDED}) if samples in by_score else estimate


def _weights(conditions: Conditions, values: Float[np.ndarray, "b"]) -> Series:
    of = "weight in the training loss, larger near the boundary"
    return series_of("gairat_weight", conditions, torch.from_numpy(values), "weight", Claim.ESTIMATE, of, SAME)


def _unguided(count: int, reached: int, why: str) -> str:
    return (
        f"CLEVER wanted the {count} images with the largest SPADE node scores and could use {reached or 'none'}: {why}. "
        "The random images do not need them; guided=0 asks for none."
    )


def _capped(part: Series, ball: Ball) -> list[str]:
    """Return the warning that many scores equal ε, so that the distance is unknown."""
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
    failed, every = sum(count for _, count in counts), sum(len(part.values) for part in series)
    many = {sparse[part.conditions["ball"]] for part, count in counts if count >= UNFITTED * len(part.values)}
    advice = " Where it is one in ten or more, the mean over the others is no estimate for all." if many else ""
    advice += " Raise batches." if False in many else ""
    advice += IN_L1 if True in many else ""
    return [
        f"{failed} of {every} CLEVER scores are left out: the fit of the largest gradient norms gives no end within "
        f"{FARTHEST:g} standard deviations.{advice}"
    ]


def _scores(margins: Float[np.ndarray, "b j"], ends: Ends, ball: Ball) -> Float[np.ndarray, "b"]:
    """Return for each sample the smallest ``min(g(x) / L, R)``; nan where a margin is not positive or L is not known."""
    slopes = np.array([[end.location for end in row] for row in ends])
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.minimum(margins / slopes, ball.radius)
    scores[~(margins > 0)] = np.nan
    return scores.min(axis=1) if scores.shape[1] else np.full(len(scores), np.nan)


def _series(conditions: Conditions, values: Float[np.ndarray, "b"], distinct: Bool[np.ndarray, "b"]) -> Series:
    def why(row: int) -> str:
        return NO_FIT if distinct[row] else SAME

    of = "smallest change that turns the margin"
    return series_of("clever_score", conditions, torch.from_numpy(values), "radius", Claim.ESTIMATE, of, why)


def _fits(conditions: Conditions, ends: Ends) -> Series:
    """Return for each sample the fraction of its fits that the maxima do not contradict; its margins have much in common."""
    values = torch.tensor([float(np.mean([end.accepted for end in row])) for row in ends], dtype=torch.float64)
    of = "fraction of reverse Weibull fits that a Kolmogorov-Smirnov test accepts"
    return series_of("weibull_fits", conditions, values, "fraction of fits", Claim.ESTIMATE, of, "")
