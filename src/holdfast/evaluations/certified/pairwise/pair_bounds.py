"""Pairs in one ball: a lower bound of ``W f``, and the lowest values that attacks reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import vacuous_unless_finite
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain
from holdfast.core.run_settings import Observed
from holdfast.evaluations.certified.certification import Certification
from holdfast.evaluations.certified.pairwise.negatives import generated, published_attack
from holdfast.evaluations.certified.pairwise.pair_attack import AttackResult, PairAttack
from holdfast.evaluations.certified.pairwise.pairs import Pairs, image_pairs
from holdfast.evaluations.certified.pairwise.radius_bounds import cross_check
from holdfast.objectives.base import AttackContext
from holdfast.objectives.toward import Toward
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True)
class PairBounds(Observation):
    """For each anchor and negative, (b, k): the bound of ``W f`` over ``ball``, and ``W f`` where each attack ends."""

    certification: Certification
    ball: Ball
    negatives: int
    generate: Ball | None
    published: Attack | None
    """None for the one of RVCL's authors, whose steps depend on the kind of images."""
    name = "told"
    version = 6
    uses_groups = True

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.certification.samples)

    def forwards(self, population: Population) -> int:
        published = self.at_negative(population.encoder.domain).forwards
        if self.generate:  # one negative, made by one more attack
            return self.certification.attack.forwards + 2 * published
        return self.negatives * (self.certification.attack.forwards + published)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pair_attack = self.pair_attack(population, rows)
        pairs = pair_attack.pairs
        published = self.close(pair_attack)
        observed = {
            "published": published.values.reshape(pairs.shape),
            # The direct attack is never weaker, though the published one climbs something else.
            "direct": self.worst(pair_attack).or_better(published).values.reshape(pairs.shape),
            "bound": self.bound(pairs),
        }
        return {name: values.masked_fill(~pairs.defined, torch.nan) for name, values in observed.items()}

    def pair_attack(self, population: Population, rows: Sequence[int]) -> PairAttack:
        """Return the attacks on the pairs of the images at ``rows``."""
        negatives = None
        if self.generate:
            # The attack at the negative makes it, too: the authors' program has one length and number of steps.
            attack = self.at_negative(population.encoder.domain)
            negatives = generated(population, rows, self.generate, attack)[:, None]
        pairs = image_pairs(
            population, rows, self.negatives, self.certification.neurons, negatives, self.certification.arithmetic
        )
        return PairAttack(pairs, type(self.ball)(1.0), self.certification.attack)

    def bound(self, pairs: Pairs) -> Float[Tensor, "b k"]:
        """Return lower bounds of ``W f`` over the ball around each anchor."""
        eps = torch.full_like(pairs.specifications[:, 0, 0], self.ball.radius)
        balls = region(pairs.anchors, type(self.ball), eps, pairs.encoder.domain, inputs=pairs.graph.inputs)
        return vacuous_unless_finite(self.certification.method(pairs.graph, balls, pairs.specifications))

    def worst(self, pair_attack: PairAttack) -> AttackResult:
        """Return the lowest values in the ball that the attack on ``W f`` and every simpler one find."""
        return cross_check(pair_attack, torch.full_like(pair_attack.pairs.specifications[..., 0], self.ball.radius))

    def at_negative(self, domain: Domain) -> Attack:
        """Return the attack at the negative: the one that is asked for, or that of RVCL's authors."""
        return self.published or published_attack(domain)

    def close(self, pair_attack: PairAttack) -> AttackResult:
        """Return what the published attack finds, which comes as close to the negative's embedding as it can."""
        pairs = pair_attack.pairs
        noise = pairs.noise.fork("published")
        context = AttackContext(pairs.encoder, pairs.images, noise, pairs.negatives.flatten(0, 1))
        objective = Toward(L2Distance())(context)
        attack = self.at_negative(pairs.encoder.domain)
        return pair_attack.evaluate(attack(pairs.encoder, pairs.images, objective, self.ball, noise))
