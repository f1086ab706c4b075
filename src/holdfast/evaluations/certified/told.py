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
from holdfast.evaluations.certified.around import Found, Hunter
from holdfast.evaluations.certified.bracket import cross_check
from holdfast.evaluations.certified.negatives import generated
from holdfast.evaluations.certified.pairs import Pairs, pairs
from holdfast.objectives.base import Scene
from holdfast.objectives.toward import Toward
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True)
class Told(Observation):
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
    version = 2

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.anchors)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        hunter = self.hunter(population, rows)
        two = hunter.pairs
        found = {"published": self.close(hunter), "direct": self.worst(hunter)}
        seen = {name: worst.values.reshape(two.shape) for name, worst in found.items()}
        seen["bound"] = self.bound(two)
        return {name: values.masked_fill(~two.defined, torch.nan) for name, values in seen.items()}

    def hunter(self, population: Population, rows: Sequence[int]) -> Hunter:
        """Return the attacks on the pairs of the images at ``rows``."""
        made = generated(population, rows, self.generate)[:, None] if self.generate else None
        two = pairs(population, rows, self.negatives, self.neurons, made)
        return Hunter(two, type(self.ball)(1.0), self.attack)

    def bound(self, two: Pairs) -> Float[Tensor, "b k"]:
        """Return lower bounds of ``W f`` over the ball around each anchor."""
        eps = torch.full_like(two.rows[:, 0, 0], self.ball.radius)
        around = region(two.anchors, type(self.ball), eps, two.encoder.domain)
        return known(self.method(two.graph, around, two.rows))

    def worst(self, hunter: Hunter) -> Found:
        """Return the lowest values in the ball that the attack on ``W f`` and every simpler one find."""
        return cross_check(hunter, torch.full_like(hunter.pairs.rows[..., 0], self.ball.radius))

    def close(self, hunter: Hunter) -> Found:
        """Return what the published attack finds, which comes as close to the negative's code as it can."""
        two = hunter.pairs
        scene = Scene(two.encoder, two.images, two.noise.fork("published"), two.negatives.flatten(0, 1))
        return hunter.at(self.published(two.encoder, two.images, Toward(L2Distance())(scene), self.ball, scene.noise))
