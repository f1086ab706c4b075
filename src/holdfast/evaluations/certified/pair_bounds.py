"""Pairs in one ball: what a bound proves of ``W f``, and what attacks make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Method
from holdfast.bounds.proved import known
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball
from holdfast.core.divergences import L2Distance
from holdfast.core.run import Observed
from holdfast.evaluations.certified.negatives import generated
from holdfast.evaluations.certified.pair_attack import AttackResult, PairAttack
from holdfast.evaluations.certified.pairs import Pairs, pairs
from holdfast.evaluations.certified.radius_bounds import cross_check
from holdfast.objectives.base import AttackContext
from holdfast.objectives.toward import Toward
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True)
class PairBounds(Observation):
    """For each anchor and negative, (b, k): the bound of ``W f`` over ``ball``, and what each attack brings it to."""

    ball: Ball
    anchors: int
    negatives: int
    generate: Ball | None
    method: Method
    published: Attack
    attack: Attack
    neurons: int
    name = "told"
    version = 3

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.anchors)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pair_attack = self.pair_attack(population, rows)
        two = pair_attack.pairs
        found = {"published": self.close(pair_attack), "direct": self.worst(pair_attack)}
        seen = {name: worst.values.reshape(two.shape) for name, worst in found.items()}
        seen["bound"] = self.bound(two)
        return {name: values.masked_fill(~two.defined, torch.nan) for name, values in seen.items()}

    def pair_attack(self, population: Population, rows: Sequence[int]) -> PairAttack:
        """Return the attacks on the pairs of the images at ``rows``."""
        made = generated(population, rows, self.generate)[:, None] if self.generate else None
        two = pairs(population, rows, self.negatives, self.neurons, made)
        return PairAttack(two, type(self.ball)(1.0), self.attack)

    def bound(self, two: Pairs) -> Float[Tensor, "b k"]:
        """Return lower bounds of ``W f`` over the ball around each anchor."""
        eps = torch.full_like(two.rows[:, 0, 0], self.ball.radius)
        around = region(two.anchors, type(self.ball), eps, two.encoder.domain)
        return known(self.method(two.graph, around, two.rows))

    def worst(self, pair_attack: PairAttack) -> AttackResult:
        """Return the lowest values in the ball that the attack on ``W f`` and every simpler one find."""
        return cross_check(pair_attack, torch.full_like(pair_attack.pairs.rows[..., 0], self.ball.radius))

    def close(self, pair_attack: PairAttack) -> AttackResult:
        """Return what the published attack finds, which comes as close to the negative's code as it can."""
        two = pair_attack.pairs
        context = AttackContext(two.encoder, two.images, two.noise.fork("published"), two.negatives.flatten(0, 1))
        return pair_attack.at(
            self.published(two.encoder, two.images, Toward(L2Distance())(context), self.ball, context.noise)
        )
