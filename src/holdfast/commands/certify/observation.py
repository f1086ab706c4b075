"""The bounds and attacks that a certificate is made of, observed image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import read_attack
from holdfast.bounds import read_method
from holdfast.bounds.methods.base import Method
from holdfast.core.arguments import check_whole
from holdfast.core.balls import Ball
from holdfast.core.run_settings import Observed
from holdfast.evaluations.certified.instance_accuracy import InstanceAccuracy
from holdfast.evaluations.certified.pairwise.pair_attack import AttackResult, PairAttack
from holdfast.evaluations.certified.pairwise.pair_bounds import PairBounds
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True)
class Certificates(Observation):
    """What a certificate is made of, image by image: the bounds and attacks of its pairs, and its weakest pair."""

    pairs: PairBounds
    name = "certificates"
    uses_groups = True
    version = PairBounds.version
    """Bounds and attacks are those of ``pairs``, and change with them."""

    @classmethod
    def of(
        cls,
        ball: Ball,
        limit: int,
        negatives: int,
        method: str | Method,
        attack: str | Attack,
        neurons: int,
        arithmetic: str = "real",
    ) -> Certificates:
        """Return those of ``limit`` images against ``negatives`` others: the pairs are those of instance accuracy."""
        for name, value in (("limit", limit), ("negatives", negatives), ("neurons", neurons)):
            check_whole(value, name)
        evaluation = InstanceAccuracy(
            balls=(ball,),
            samples=limit,
            negatives=negatives,
            method=read_method(method) if isinstance(method, str) else method,
            attack=read_attack(attack) if isinstance(attack, str) else attack,
            neurons=neurons,
            arithmetic=arithmetic,
        )
        return cls(evaluation.pair_bounds(ball))

    def rows(self, population: Population) -> list[int]:
        return self.pairs.rows(population)

    def attack(self, pair_attack: PairAttack) -> AttackResult:
        """Return the lowest values that all attacks on the pairs find; the same whenever they are run."""
        return self.pairs.worst(pair_attack).or_better(self.pairs.close(pair_attack))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pair_attack = self.pairs.pair_attack(population, rows)
        two = pair_attack.pairs
        bound = self.pairs.bound(two)
        result = self.attack(pair_attack)
        attacked, points = result.values.reshape(two.shape), result.points.unflatten(0, two.shape)
        # The negative that the image is taken for, or else the one against which the bound is lowest.
        weakest = torch.where((attacked < 0).any(1), attacked.argmin(1), bound.argmin(1))
        each = torch.arange(len(rows), device=weakest.device)
        return {
            "bound": bound,
            "attacked": attacked,
            "defined": two.defined,
            "weakest": weakest,
            "point": points[each, weakest],
            "specification": two.specifications[each, weakest],
        }
