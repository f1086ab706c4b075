"""Instance accuracy: the share of pairs that stay told apart at a given radius, certified and attacked.

For an anchor ``x+``, a negative ``x-`` and ``W = u(x+) - u(x-)`` of unit codes ``u``, a pair is right at ``eps`` if
``W f(x') > 0`` for all ``x'`` within ``eps`` of ``x+``. A positive bound certifies it; an attack that makes ``W f(x')``
negative refutes it. Wang and Liu 2022 (RVCL, https://proceedings.mlr.press/v162/wang22q.html), definition 4.4, table E.2.

Two attacks stand side by side: the published one comes as close to ``f(x-)`` as it can in mean squared error, which is
not what is asked; the direct one climbs ``-W f``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.core.balls import Ball, Linf
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Series
from holdfast.core.run import Observed
from holdfast.core.statistics import summarise
from holdfast.evaluations.certified.findings import alarm, contradictions, label_share, over_negatives, verdict, witness
from holdfast.evaluations.certified.pair_bounds import PairBounds
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint
from holdfast.protocol.population import Population

OF = "instance accuracy under the worst perturbation"
SEEN = ("bound", "published", "direct")
NAMES = {"certified_pairs": "certified_instance_accuracy", "robust_pairs": "robust_instance_accuracy"}
PUBLISHED = GradientAttack(steps=20, step=0.007, keep="last")
"""The paper's attack at evaluation: 20 steps, with the 0.007 of its training."""


@final
@dataclass(frozen=True)
class InstanceAccuracy(Evaluation):
    """How many pairs of images stay told apart at a given radius: proved, and attacked."""

    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    anchors: int = 100
    negatives: int = 9
    generate: Ball | None = None
    method: Method = Crown()
    published: Attack = PUBLISHED
    attack: Attack = AdaptiveAttack()
    neurons: int = 50_000
    name = "instance-accuracy"
    version = 3
    needs_gradients = True
    uses_labels = True
    title = "Instance accuracy"
    meaning = (
        "Of pairs of an image and another one, the share in which no allowed change makes the first more similar to the "
        "second than to its clean self. The certified accuracy is proved and can only be too low; the robust accuracy is "
        "what attacks left and can only be too high."
    )
    headline = ("certified_instance_accuracy", "robust_instance_accuracy")

    def observation(self) -> Joint:
        return Joint(tuple(self.told(ball) for ball in self.balls))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        cases = [
            _Case(self, ball, {name: observed[f"{k}.{name}"] for name in SEEN}) for k, ball in enumerate(self.balls)
        ]
        series = [one for case in cases for one in case.series()]
        estimates = [summarise(one, "mean", "higher", NAMES[one.quantity]) for one in series]
        curves = radius_curves(estimates, [case.ball for case in cases for _ in SEEN])
        labelled = () if self.generate else label_share(population, rows, self.negatives)
        counts = [case.contradictions() for case in cases]
        proofs = (case.witness(population, rows) for case in cases if bool(case.wrong.any()))
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=tuple(series),
            estimates=(*estimates, *labelled, *counts),
            curves=curves,
            verdicts=(verdict(counts, next(proofs, {})),),
            warnings=alarm(counts),
        )

    def told(self, ball: Ball) -> PairBounds:
        """Return what is seen of pairs in ``ball``."""
        return PairBounds(
            ball,
            self.anchors,
            self.negatives,
            self.generate,
            self.method,
            self.published,
            self.attack,
            self.neurons,
        )


@dataclass(frozen=True)
class _Case:
    """One ball, and what was seen in it."""

    evaluation: InstanceAccuracy
    ball: Ball
    seen: dict[str, Float[Tensor, "b k"]]

    def series(self) -> list[Series]:
        """Return the share of each image's negatives that it stays apart from, as ``SEEN``."""
        own = self.evaluation
        conditions: list[Conditions] = [
            {"ball": str(self.ball), "method": str(own.method)},
            {"ball": str(self.ball), "attack": f"{own.published} at the negative"},
            {"ball": str(self.ball), "attack": f"{own.attack} at the difference"},
        ]
        kinds = [("certified_pairs", Claim.LOWER), ("robust_pairs", Claim.UPPER), ("robust_pairs", Claim.UPPER)]
        return [
            over_negatives(quantity, condition, right(self.seen[name]), "share of negatives", claim, OF)
            for name, condition, (quantity, claim) in zip(SEEN, conditions, kinds, strict=True)
        ]

    @property
    def wrong(self) -> Bool[Tensor, "b k"]:
        """Which certificates an attack refutes."""
        return (self.seen["bound"] > 0) & ((self.seen["published"] <= 0) | (self.seen["direct"] <= 0))

    def contradictions(self) -> Estimate:
        """Return how many those are."""
        conditions = {"ball": str(self.ball), "method": str(self.evaluation.method)}
        return contradictions(self.wrong, int((self.seen["bound"] > 0).sum()), conditions)

    def witness(self, population: Population, rows: Sequence[int]) -> dict[str, str]:
        """Return the first contradiction, found once more: everything is drawn from the pair's own stream."""
        image = self.wrong.any(1).nonzero()[0, 0]
        told = self.evaluation.told(self.ball)
        pair_attack = told.pair_attack(population, [rows[int(image)]])
        found = told.close(pair_attack).or_better(told.worst(pair_attack))
        return witness(population, pair_attack, found, self.seen["bound"][image] > 0, self.ball.radius)


def right(values: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """Return 1 where ``W f`` is positive, 0 where it is not or nothing is known of it, nan for pairs without ``W``."""
    return (values > 0).double().masked_fill(values.isnan(), torch.nan)


def radius_curves(estimates: Sequence[Estimate], balls: Sequence[Ball]) -> tuple[Curve, ...]:
    """Return instance accuracy by radius, one curve for each way to bound it, where balls of one norm differ."""
    lines: dict[tuple[str, str], list[tuple[float, Estimate]]] = {}
    for estimate, ball in zip(estimates, balls, strict=True):
        method = estimate.conditions.get("method")
        kind = f"certified by {method}" if method else estimate.conditions["attack"]
        lines.setdefault((ball.name, kind), []).append((ball.radius, estimate))
    return tuple(
        Curve(
            quantity="instance_accuracy",
            conditions={"ball": norm, "attack": kind},
            x_label=f"{norm} radius",
            y_label="instance accuracy",
            x=tuple(radius for radius, _ in points),
            y=tuple(estimate.value for _, estimate in points),
            low=tuple(estimate.low for _, estimate in points),
            high=tuple(estimate.high for _, estimate in points),
        )
        for (norm, kind), found in lines.items()
        if len(points := sorted(found, key=lambda point: point[0])) > 1
    )
