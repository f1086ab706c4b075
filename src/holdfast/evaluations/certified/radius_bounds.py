"""The robust radius of each pair between what is certified and what is attacked, and the attacks on each certificate.

``certified <= robust radius <= attacked``: below the first no perturbation is taken for the negative, as a bound proves;
at the second one is, and it is there to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack, climb
from holdfast.bounds.methods.base import Crown, Method, RadiusResult, RadiusSearch
from holdfast.bounds.proved import proved_radii
from holdfast.core.balls import Ball, column
from holdfast.core.run import Observed
from holdfast.evaluations.certified.pair_attack import AttackResult, PairAttack
from holdfast.evaluations.certified.pairs import Pairs, norm, pairs
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population

HALVINGS = 12
CLOSE = 0.01
"""Share of an attacked radius by which a failed attack must be nearer before the search ends."""
GROWTH = 1.5
FIRST = 2.0**-6
"""Share of the way to the negative that is tried first where nothing is certified."""
INSIDE = 1 - 1e-9
"""Share of a certified radius that is attacked, so that rounding cannot leave the certificate."""


@final
@dataclass(frozen=True)
class RadiusBounds(Observation):
    """For each anchor and negative: certified and attacked radius, and the lowest value that attacks on the certificate met.

    All entries are (b, k).
    """

    norm: str
    anchors: int
    negatives: int
    method: Method
    tolerance: float
    attack: Attack
    neurons: int
    name = "bracket"
    version = 5

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.anchors)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return seen(self.pair_attack(population, rows), self.method, self.tolerance)

    def pair_attack(self, population: Population, rows: Sequence[int]) -> PairAttack:
        """Return the attacks on the pairs of the images at ``rows``."""
        return PairAttack(pairs(population, rows, self.negatives, self.neurons), norm(self.norm), self.attack)


def seen(pair_attack: PairAttack, method: Method, tolerance: float) -> Observed:
    """Return certified and attacked radii and the lowest value met inside each certificate, (b, k); nan without a pair."""
    two = pair_attack.pairs
    certified, found = bracketed(pair_attack, method, tolerance)
    attacked = pair_attack.sizes(found.points).reshape(two.shape)
    lowest = cross_check(pair_attack, certified).values.reshape(two.shape)
    every = {"certified": certified, "attacked": attacked, "lowest": lowest}
    return {name: values.masked_fill(~two.defined, torch.nan) for name, values in every.items()}


def certified_radii(two: Pairs, ball: Ball, method: Method, tolerance: float) -> Float[Tensor, "b k"]:
    """Return the largest radius at which ``method`` was found to prove each pair; 0 where it proves none.

    Radii are searched for as shares of the distance to the farthest negative, ``tolerance`` being one.
    """
    return _reached(two, ball, method, tolerance, None).radii


def _reached(
    two: Pairs, ball: Ball, method: Method, tolerance: float, high: Float[Tensor, "b k"] | None
) -> RadiusResult:
    reach, domain = two.distances(ball).amax(1), two.encoder.domain
    return proved_radii(method, two.graph, two.anchors, two.rows, type(ball), domain, reach, tolerance, high)


def attackable(pair_attack: PairAttack, method: Method, tolerance: float) -> tuple[Float[Tensor, "b k"], AttackResult]:
    """Return radii that are cheap to certify, by ``method`` itself if it is cheap, and the attacks from there on."""
    cheap = Crown() if isinstance(method, RadiusSearch) else method
    certified = certified_radii(pair_attack.pairs, pair_attack.ball, cheap, tolerance)
    return certified, nearest_confusion(pair_attack, certified)


def bracketed(pair_attack: PairAttack, method: Method, tolerance: float) -> tuple[Float[Tensor, "b k"], AttackResult]:
    """Return certified radii and the nearest confusions; a seeker looks in between, and may itself meet nearer ones."""
    certified, found = attackable(pair_attack, method, tolerance)
    if not isinstance(method, RadiusSearch):
        return certified, found
    two = pair_attack.pairs
    certified, points = _reached(
        two, pair_attack.ball, method, tolerance, pair_attack.sizes(found.points).reshape(two.shape)
    )
    points = points.flatten(0, 1)
    met = shortened(pair_attack, pair_attack.at(torch.where(points.isnan(), found.points, points)))
    nearer = (met.values < 0) & (pair_attack.sizes(met.points) < pair_attack.sizes(found.points))
    where = column(nearer, met.points)
    return certified, AttackResult(
        torch.where(where, met.points, found.points), torch.where(nearer, met.values, found.values)
    )


def nearest_confusion(pair_attack: PairAttack, certified: Float[Tensor, "b k"]) -> AttackResult:
    """Return for each pair the nearest point found that is more similar to the negative than to the anchor.

    The negative itself is such a point, so there always is one; where attacks at smaller radii succeed, theirs. Radii
    grow from the certified one until an attack succeeds, and are then bisected; every success moves along the segment
    to its anchor for as long as it remains one.
    """
    best = shortened(pair_attack, pair_attack.at(pair_attack.pairs.negatives.flatten(0, 1)))
    failed = torch.maximum(certified.flatten() * INSIDE, pair_attack.sizes(best.points) * FIRST)
    met = torch.zeros_like(failed, dtype=torch.bool)
    trial = 0
    while bool((open_ := pair_attack.sizes(best.points) > failed * (1 + CLOSE)).any()):
        size = pair_attack.sizes(best.points)
        eps = torch.where(met, (failed * size).sqrt(), torch.minimum(failed * GROWTH, (failed * size).sqrt()))
        found = pair_attack(eps, f"radius {trial}")
        won = open_ & (found.values < 0)
        short = shortened(
            pair_attack, AttackResult(torch.where(column(won, found.points), found.points, best.points), found.values)
        )
        nearer = won & (pair_attack.sizes(short.points) < size)
        best = AttackResult(
            torch.where(column(nearer, best.points), short.points, best.points),
            torch.where(nearer, short.values, best.values),
        )
        met |= won
        failed = torch.where(open_ & ~won, eps, failed)
        trial += 1
    return best


def shortened(pair_attack: PairAttack, found: AttackResult) -> AttackResult:
    """Return points moved along the segment to their anchors for as long as they are mistaken."""
    centres = pair_attack.pairs.images
    low = torch.zeros_like(found.values)
    high = torch.ones_like(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        wins = pair_attack.at(centres + column(middle, centres) * (found.points - centres)).values < 0
        low, high = torch.where(wins, low, middle), torch.where(wins, middle, high)
    return pair_attack.at(
        torch.where(
            column(high == 1, centres), found.points, centres + column(high, centres) * (found.points - centres)
        )
    )


def cross_check(pair_attack: PairAttack, certified: Float[Tensor, "b k"]) -> AttackResult:
    """Return the lowest value, and where, that every kind of attack finds inside the certified balls.

    The attack itself, the corner against the gradient at the anchor, a random corner, the midpoint of the clipped ball,
    and a random point.
    """
    eps = certified.flatten() * INSIDE
    two, ball = pair_attack.pairs, pair_attack.ball
    centres, domain, reach = two.images, two.encoder.domain, column(eps, two.images)
    noise, shape = two.noise.fork("cross-check"), two.images.shape[1:]
    _, gradient = climb(two.encoder, centres, two.objective)
    middle = (domain.clip(centres - reach) + domain.clip(centres + reach)) / 2 - centres
    steps = [
        ball.steepest(gradient),
        ball.steepest(noise.fork("corner").normal(shape, centres.dtype)),
        ball.sample(noise.fork("point"), shape, centres.dtype),
        ball.project(middle / reach.clamp_min(torch.finfo(reach.dtype).tiny)),
    ]
    worst = pair_attack(eps, "cross-check")
    for step in steps:
        worst = worst.or_better(pair_attack.at(domain.clip(centres + reach * step)))
    return worst
