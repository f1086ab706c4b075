"""Instance accuracy: the fraction of pairs that are not confused within ε, certified and attacked.

For an anchor ``x+``, a negative ``x-`` and ``W = u(x+) - u(x-)`` of unit embeddings ``u``, a pair is right at ``eps`` if
``W f(x') > 0`` for all ``x'`` within ``eps`` of ``x+``. A positive bound certifies it; an attack that makes ``W f(x')``
negative falsifies it. Wang and Liu 2022 (RVCL, https://proceedings.mlr.press/v162/wang22q.html), definition 4.4, table E.2.

Two attacks are reported. The paper's attack minimises the mean squared error to ``f(x-)``, which is a different objective.
The stronger one maximises ``-W f``. Negatives are other images, or made by the paper's attack (``generate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.bound_findings import (
    SIZES,
    CertifiedEvaluation,
    CrossCheck,
    ball_curves,
    findings,
    label_share,
    pair_witness,
    series,
)
from holdfast.bounds.certified_pairs import UNDEFINED
from holdfast.bounds.methods.base import Crown, Method
from holdfast.bounds.pair_bounds import PairBounds
from holdfast.core.balls import Ball, Linf
from holdfast.core.records import Claim, Conditions, Curve, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import Joint
from holdfast.measure.population import Population

OF = "instance accuracy under the worst perturbation"
SERIES = (
    ("bound", "certified_pairs", Claim.LOWER),
    ("published", "robust_pairs", Claim.UPPER),
    ("direct", "robust_pairs", Claim.UPPER),
)
MARGINS = (("bound", "certified_margin", Claim.LOWER), ("direct", "attacked_margin", Claim.UPPER))
"""What is observed, the name of its series, and the bound type."""
NAMES = {"certified_pairs": "certified_instance_accuracy", "robust_pairs": "robust_instance_accuracy"}
MARGIN = "smallest W f over the image's negatives, under the worst perturbation"
UNPROVED = f"the bound is no finite number, or {UNDEFINED}"


@final
@dataclass(frozen=True)
class InstanceAccuracy(CertifiedEvaluation):
    """Fraction of image pairs that are not confused within ε: proved and attacked.

    The fraction is at least as large as proved (lower bound) and at most as large as attacked (upper bound). Paper:
    Wang and Liu 2022 (RVCL), https://proceedings.mlr.press/v162/wang22q.html, definition 4.4.
    """

    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    """Perturbation sets."""
    samples: int = 100
    """Number of certified images."""
    negatives: int = 9
    """Random other images per image."""
    generate: Ball | None = None
    """Ball in which the published attack makes a negative from each image; none: negatives are other images."""
    method: Method = Crown()
    """Bounding method."""
    published: Attack | None = None
    """Published attack, which also makes negatives; none: the authors' 200 steps, of 0.005 for grey and 0.000225 for
    colour images."""
    attack: Attack = AdaptiveAttack()
    """Attack on the certified margin."""
    neurons: int = 50_000
    """Largest number of nonlinear units; larger encoders are refused."""
    arithmetic: str = "real"
    """`real` for exact arithmetic, `executed` for floating-point arithmetic; half precision is always executed."""
    sizes = Sizes(
        quick={"samples": 50, "negatives": 3},
        full=SIZES.full,
        large={"balls": ["linf:0.05"], "published": "pgd:steps=40,keep=last"},
        heavy={**SIZES.heavy, "published": "pgd:steps=20,keep=last"},
    )
    name = "instance-accuracy"
    version = 7
    uses_labels = True
    title = "Instance accuracy"
    meaning = (
        "Of pairs of an image and another one, the share in which no allowed change makes the first more similar to the "
        "second than to its clean self. The certified accuracy is proved and can only be too low; the robust accuracy is "
        "what attacks left and can only be too high."
    )
    headline = ("certified_instance_accuracy", "robust_instance_accuracy")
    aims = (("the negative", "the negative's embedding, as published"), ("the difference", "the certified margin"))

    positive = ("negatives",)

    def observation(self) -> Joint:
        return Joint(tuple(self.pair_bounds(ball) for ball in self.balls))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        shares: list[Series] = []
        margins: list[Series] = []
        pairs: list[Curve] = []
        checks: list[CrossCheck] = []
        for ball in self.balls:
            values = self.observation().of(self.pair_bounds(ball), observed)
            cases = self._cases(population, ball)
            margins += [
                series(name, cases[key], smallest(values[key]), "margin", claim, MARGIN, UNPROVED)
                for key, name, claim in MARGINS
            ]
            # Fractions of each image's negatives that it is not mistaken for.
            shares += [
                series(name, cases[key], right(values[key]), "fraction of negatives", claim, OF, UNDEFINED)
                for key, name, claim in SERIES
            ]
            pairs += [] if (curve := self._pairs(ball, values)) is None else [curve]
            certified = values["bound"] > 0
            refuted = certified & ((values["published"] <= 0) | (values["direct"] <= 0))
            witness = partial(self._witness, population, rows, ball, certified)
            checks.append(CrossCheck(refuted, certified, cases["bound"], witness))
        estimates = [summarise(each, "mean", "higher", NAMES[each.quantity]) for each in shares]
        curves = (*ball_curves(estimates), *pairs)
        estimates += [summarise(each, "mean", "higher") for each in margins]
        labelled = () if self.generate else label_share(population, rows, self.negatives)
        return findings(population, rows, [*shares, *margins], (*estimates, *labelled), checks, curves)

    def pair_bounds(self, ball: Ball) -> PairBounds:
        """Return the observation of pairs in ``ball``."""
        return PairBounds(self.certification, ball, self.negatives, self.generate, self.published)

    def _cases(self, population: Population, ball: Ball) -> dict[str, Conditions]:
        """Return the conditions of everything observed in ``ball``."""
        published = self.pair_bounds(ball).at_negative(population.encoder.domain)
        by_bounds, by_attack = self.certification.cases(population, str(ball))
        return {
            "bound": by_bounds,
            "published": {**by_attack, "attack": f"{published} at the negative"},
            "direct": {**by_attack, "attack": f"{self.attack} at the difference"},
        }

    def _pairs(self, ball: Ball, values: Observed) -> Curve | None:
        """Return bound and attack pair by pair, as figure 6 of the paper: what is true of a pair lies between the two."""
        attacked, bound = (values[name].flatten().double().cpu() for name in ("direct", "bound"))
        known = attacked.isfinite() & bound.isfinite()
        if not bool(known.any()):
            return None
        order = attacked[known].argsort()
        low, high = (tuple(part[known][order].tolist()) for part in (bound, attacked))
        return Curve(
            quantity="pair_margins",
            conditions={"ball": str(ball), "method": str(self.method)},
            x_label="pair, in the order of what attacks reached",
            y_label="W f: attacked above, proved below",
            x=tuple(range(1, len(high) + 1)),
            y=high,
            low=low,
            high=high,
        )

    def _witness(
        self, population: Population, rows: Sequence[int], ball: Ball, certified: Bool[Tensor, "b k"], image: int
    ) -> dict[str, str]:
        observation = self.pair_bounds(ball)
        pair_attack = observation.pair_attack(population, [rows[image]])
        result = observation.close(pair_attack).or_better(observation.worst(pair_attack))
        radii = torch.full_like(result.values, ball.radius)
        return pair_witness(population, rows[image], pair_attack, result, certified[image].to(radii.device), radii)


def right(values: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """Return 1 where ``W f`` is positive, 0 where it is not, nan for pairs without ``W``."""
    return (values > 0).double().masked_fill(values.isnan(), torch.nan)


def smallest(values: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
    """Return the smallest of each row, leaving out pairs without ``W``; nan where there is none, or no finite one."""
    least = values.double().nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amin(1)
    return least.masked_fill(~least.isfinite(), torch.nan)
