"""Margin distribution: distances of the nearest other images, with a Weibull tail fit.

Two theorems about these margins are tested with the same bounds and attacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, isnan, nan
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import shifted
from holdfast.bounds.bound_findings import SIZES, CertifiedEvaluation, CrossCheck, findings, radius_witness, series
from holdfast.bounds.certified_pairs import PairAttack, unit_ball
from holdfast.bounds.evaluations.linear_radius import HeadRadii
from holdfast.bounds.methods.base import Crown, Method
from holdfast.bounds.pair_bounds import PairRadii, refuted
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series, Verdict
from holdfast.core.run_settings import Observed
from holdfast.core.statistics import intervals as weibull
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import Joint
from holdfast.measure.population import Population


@dataclass(frozen=True)
class WeibullTail:
    """A Weibull law of small values; ``misfit`` is the Kolmogorov-Smirnov distance to the values it was fitted to."""

    shape: float
    scale: float
    misfit: float

    def inclusion(self, distance: float) -> float:
        """Return ``Psi`` at ``1 - rho = distance``."""
        return float(np.exp(-((distance / self.scale) ** self.shape)))


def fit(values: Float[np.ndarray, "k"]) -> WeibullTail | None:
    """Return the law of largest likelihood of positive ``values``; None if they are all the same.

    Example:
        >>> law = fit(np.array([0.1, 0.2, 0.3, 0.4]))
        >>> round(law.shape, 2), round(law.scale, 2)
        (2.45, 0.28)
    """
    shape, scale = (float(part[0]) for part in weibull.fit(values[None]))
    return WeibullTail(shape, scale, weibull.misfit(values, shape, scale)[0]) if isfinite(shape) else None


# Whether radii obey two theorems (Wang and Liu 2022, theorems 5.3 and 5.5), as far as bounds and attacks can tell.
#
# ``R1 >= R2`` provably holds if the certified ``R1`` is no smaller than the attacked ``R2``, and provably fails if
# the attacked ``R1`` is smaller than the certified ``R2``. Anything else is open.


@dataclass(frozen=True)
class TheoremCounts:
    """For each image: comparisons, and how many provably obey a theorem, and provably do not."""

    count: Int[Tensor, "b"]
    holds: Int[Tensor, "b"]
    fails: Int[Tensor, "b"]


def by_similarity(shared: Observed, similar: Float[Tensor, "b k"]) -> TheoremCounts:
    """Return whether the less similar of two images to a third has the larger radius, over all triples of images."""
    certified, attacked = shared["certified"], shared["attacked"]
    known = ~certified.isnan()
    less = (similar[:, None] < similar[None]) & known[:, None] & known[None]
    holds = less & (certified[:, None] >= attacked[None])
    fails = less & (attacked[:, None] < certified[None])
    # An image takes part in comparisons on either side.
    return TheoremCounts(*(flags.sum((1, 2)) + flags.sum((0, 2)) for flags in (less, holds, fails)))


def by_head(shared: Observed, linear: Observed, foreign: Bool[Tensor, "b k"]) -> TheoremCounts:
    """Return whether radii against images of other classes are larger than that of the head."""
    known = foreign & ~shared["certified"].isnan() & (linear["right"] == 1)[:, None]
    holds = known & (shared["certified"] >= linear["attacked"][:, None])
    fails = known & (shared["attacked"] < linear["certified"][:, None])
    return TheoremCounts(*(flags.sum(1) for flags in (known, holds, fails)))


def theorem_verdict(theorem: str, counts: TheoremCounts, sides: int = 1) -> Verdict:
    """Return what the comparisons, each counted for as many images as it has ``sides``, say of a theorem."""
    fails, holds, count = (int(part.sum()) // sides for part in (counts.fails, counts.holds, counts.count))
    return Verdict(
        question=f"Does theorem {theorem} hold for all of them?",
        status="refuted" if fails else "proved" if count and holds == count else "unknown",
        reason=f"of {count} comparisons {holds} provably obey and {fails} provably do not",
    )


# Margin distribution: how near other images come in code space, as a Weibull tail, and two theorems put to the test.
#
# With ``rho`` the cosine and the margin distances ``D_i = (1 - rho(f(x+), f(x_i-))) / 2`` of an image from others,
# the ``tail`` smallest are fitted by a Weibull law of shape ``alpha`` and scale ``sigma`` (of ``-D``: a reverse
# Weibull law), which gives the probability that ``x`` is still a positive sample of ``x+``:
#
#     Psi(x) = exp(-((1 - rho(f(x), f(x+))) / sigma)^alpha)
#
# Wang and Liu 2022 (RVCL, https://proceedings.mlr.press/v162/wang22q.html), section 5. From it they derive that a
# robust radius against another image is no smaller than that of a linear head (theorem 5.3), and no smaller for the
# less similar of two images to a third (theorem 5.5). Whether images obey is reported here as far as bounds and
# attacks can tell.

OTHERS = 10_000
"""Other images that margin distances are taken from, at most."""
NO_FIT = "fewer distinct margin distances than the tail, or a zero embedding"
NO_PAIR = "no two images of which both have radii against one other image"
NO_LABEL = "no labels, the head is wrong, or all others looked at are of the image's own class"


@final
@dataclass(frozen=True)
class SharedNegatives(PairRadii):
    """Radii of all anchors against the same negatives, (b, k), for comparison; and each image's similarity to a view."""

    name = "shared"
    version = 7

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        radii = super().observe(population, rows)
        context = population.context(rows)
        view = context.code(shifted(context.pixels, context.noise.fork("view"))).double()
        return {**radii, "view": 1 - torch.cosine_similarity(view, context.codes.double(), eps=0)}

    def pair_attack(self, population: Population, rows: Sequence[int]) -> PairAttack:
        shared = negatives(population, self.negatives).tolist()
        others = population.pixels(shared)
        others = others[None].expand(len(rows), *others.shape)
        pairs = self.certification.pairs(population, rows, len(shared), others)
        names = tuple(population.images.ids[other] for other in shared)
        pairs = replace(pairs, ids=tuple((anchor, *names) for anchor, *_ in pairs.ids))
        if (kin := population.kin(rows, population)) is not None:  # an image of the own group is no negative
            own = kin.mine[:, None] == kin.theirs[shared]
            pairs = replace(pairs, specifications=pairs.specifications.masked_fill(own[..., None], 0.0))
        return PairAttack(pairs, unit_ball(self.norm), self.certification.attack)


def negatives(population: Population, count: int) -> Int[Tensor, "k"]:
    """Return the last images of the run's random order, whose first ones are the anchors."""
    return population.random_order[-min(count, len(population.images)) :]


@final
@dataclass(frozen=True)
class MarginDistribution(CertifiedEvaluation):
    """Distribution of the distances to other images, and a check of two theorems on radii."""

    tail: int = 20
    """Number of smallest margin distances that are fitted (the paper's λ, which it does not state)."""
    norm: str = "linf"
    """Norm of perturbations: `linf`, `l2` or `l1`."""
    samples: int = 100
    """Number of images."""
    negatives: int = 5
    """Other images that all images are compared with."""
    rivals: int = 3
    """Classes that attacks on the head aim at."""
    method: Method = Crown()
    """Bounding method."""
    tolerance: float = 1e-4
    """Precision of the search for certified radii, as a fraction of the widest possible ε."""
    attack: Attack = AdaptiveAttack(restarts=2, steps=50)
    """Attack on both kinds of radius."""
    neurons: int = 50_000
    """Largest number of nonlinear units; larger encoders are refused."""
    arithmetic: str = "real"
    """`real` for exact arithmetic, `executed` for floating-point arithmetic; the head is always float64."""
    sizes = Sizes(quick={**SIZES.quick, "negatives": 2, "rivals": 1}, full=SIZES.full, heavy=SIZES.heavy)
    name = "margin-distribution"
    version = 6
    uses_labels = True
    title = "Margin distribution"
    meaning = (
        "The distances of an image's nearest others in embedding space follow a Weibull law, if the theory of extreme "
        "values "
        "applies; shape and scale say how abruptly and how far away its neighbourhood ends. Two theorems say that certified "
        "radii follow from it: reported is the fraction of comparisons that provably obey, and that which may still obey."
    )
    headline = ("margin_scale", "order_obeyed")

    positive = ("tail", "negatives", "rivals")

    def observation(self) -> Joint:
        return Joint((self._shared(), self._head()))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        shared, linear = (
            {name: values.double().cpu() for name, values in self.observation().of(part, observed).items()}
            for part in (self._shared(), self._head())
        )
        similar = similarity(population, rows, negatives(population, self.negatives))
        order, head = by_similarity(shared, similar), by_head(shared, linear, foreign(population, rows, self.negatives))
        laws = self._laws(population, rows, shared["view"])
        case, by_attack = self.certification.cases(population, self.norm)
        where = {"ball": self.norm, "method": case["method"], **by_attack}
        shares = [*self._shares("order", order, where, NO_PAIR), *self._shares("head", head, where, NO_LABEL)]
        estimates = [summarise(law, "median", "neither") for law in laws[:3]]
        estimates += [summarise(laws[3], "mean", "higher")]
        estimates += [without_interval(summarise(share, "mean", "neither")) for share in shares[:2]]
        estimates += [summarise(share, "mean", "neither") for share in shares[2:]]
        witness = partial(radius_witness, self._shared(), shared, population, rows)
        # The contradictions of heads have their witness in ``linear-radius``.
        checks = [
            CrossCheck(refuted(shared), shared["certified"] > 0, {**case, "against": "another image"}, witness),
            CrossCheck(linear["refuted"] == 1, linear["certified"] > 0, {**case, "against": "another class"}),
        ]
        verdicts = [
            theorem_verdict("5.5 (the less similar image has the larger radius)", order, sides=2),
            theorem_verdict("5.3 (another image is farther than another class)", head),
        ]
        return findings(population, rows, [*laws, *shares], estimates, checks, verdicts=verdicts)

    def _shared(self) -> SharedNegatives:
        return SharedNegatives(self.certification, self.norm, self.negatives, self.tolerance)

    def _head(self) -> HeadRadii:
        return HeadRadii(self.certification, self.norm, self.rivals, self.tolerance)

    def _laws(self, population: Population, rows: Sequence[int], view: Float[Tensor, "b"]) -> list[Series]:
        """Return the laws of each image's nearest margin distances, and what they say of its view."""
        laws = [self._tail(population, row) for row in rows]
        values = {
            "margin_shape": [law.shape if law else nan for law in laws],
            "margin_scale": [law.scale if law else nan for law in laws],
            "margin_misfit": [law.misfit if law else nan for law in laws],
            "view_inclusion": [
                law.inclusion(max(0.0, at)) if law and not isnan(at) else nan
                for law, at in zip(laws, view.tolist(), strict=True)
            ],
        }
        units = ["exponent", "cosine distance / 2", "Kolmogorov-Smirnov distance", "probability"]
        of = f"Weibull law of the {self.tail} nearest margin distances"
        return [
            series(name, {"tail": str(self.tail)}, torch.tensor(v), unit, Claim.ESTIMATE, of, NO_FIT)
            for (name, v), unit in zip(values.items(), units, strict=True)
        ]

    def _tail(self, population: Population, row: int) -> WeibullTail | None:
        others = population.random_others([row], OTHERS)[0]
        margins = (1 - similarity(population, [row], others)[0]) / 2
        # Copies of the image are at no distance, and no law of positive values has a place for them.
        near = margins[margins > 1e-12].sort().values[: self.tail]
        return fit(near.numpy()) if len(near) == self.tail else None

    @staticmethod
    def _shares(name: str, counts: TheoremCounts, where: Conditions, reason: str) -> list[Series]:
        of, unit = f"fraction of comparisons that obey theorem {THEOREMS[name]}", "fraction of comparisons"
        n = counts.count.double().masked_fill(counts.count == 0, torch.nan)
        least, most = counts.holds / n, 1 - counts.fails / n
        return [
            series(f"{name}_obeyed", where, least, unit, Claim.LOWER, of, reason),
            series(f"{name}_not_refuted", where, most, unit, Claim.UPPER, of, reason),
        ]


THEOREMS = {"order": "5.5", "head": "5.3"}


def without_interval(share: Estimate) -> Estimate:
    """Return a share over all pairs of images against the same few others: these are too few for an interval."""
    method = "all pairs of images, against the same few others: no interval"
    return share.model_copy(update={"low": nan, "high": nan, "method": method, "statistic": "whole"})


def similarity(population: Population, rows: Sequence[int], others: Int[Tensor, "k"]) -> Float[Tensor, "b k"]:
    """Return the cosines of the embeddings of ``rows`` with those of ``others``; nan for zero embeddings."""
    chosen = (population.codes[list(each)].double().cpu() for each in (rows, others.tolist()))
    anchors, theirs = (part / part.norm(dim=1, keepdim=True) for part in chosen)
    return anchors @ theirs.T


def foreign(population: Population, rows: Sequence[int], count: int) -> Bool[Tensor, "b k"]:
    """Return which of the shared negatives are of another class; none, if labels are not known."""
    others, labels = negatives(population, count), population.images.labels
    if labels is None:
        return torch.zeros(len(rows), len(others), dtype=torch.bool)
    labels = torch.as_tensor(labels).cpu()
    return labels[list(rows)][:, None] != labels[others.cpu()]
