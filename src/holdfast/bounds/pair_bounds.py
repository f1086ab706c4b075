"""Bounds and attacks on pairs of images: one radius for all pairs, or the radius of each pair.

Also here: the settings that all certificates of pairs share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.base import Attack, gain_and_gradient
from holdfast.attacks.objectives.simple import Toward
from holdfast.bounds.certified_pairs import (
    AttackResult,
    CertifiedEncoder,
    PairAttack,
    Pairs,
    certified_encoder,
    generated,
    image_pairs,
    published_attack,
    unit_ball,
)
from holdfast.bounds.certified_search import quick_method, search_radii
from holdfast.bounds.methods.base import Crown, Method, RadiusResult, RadiusSearch, vacuous_unless_finite
from holdfast.bounds.regions import region
from holdfast.bounds.rounding.arithmetic import rigorous
from holdfast.bounds.rounding.executed import check_arithmetic, executes, stated
from holdfast.core.balls import Ball, column
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.objective import AttackContext
from holdfast.core.records import Conditions
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation, SharedSettings
from holdfast.measure.population import Population


def arithmetic_of(population: Population, arithmetic: str) -> Conditions:
    """Return the conditions of a certificate of an encoder as executed; none in exact arithmetic."""
    precision = population.run.dtype
    return {"arithmetic": stated(precision)} if executes(arithmetic, precision) else {}


@final
@dataclass(frozen=True)
class Certification(SharedSettings):
    """Settings of certificates: number of images, bounds, and the attack against them."""

    samples: int
    method: Method
    attack: Attack
    neurons: int
    """Largest number of nonlinear entries of an encoder."""
    arithmetic: str = "real"
    """``real``: exact arithmetic; ``executed``: floating-point arithmetic in the run's precision."""

    def __post_init__(self) -> None:
        check_arithmetic(self.arithmetic)

    def encoder(self, population: Population, pixels: Pixels) -> CertifiedEncoder:
        """Return the certified encoder around ``pixels``."""
        return certified_encoder(population, self.neurons, self.arithmetic, pixels)

    def pairs(self, population: Population, rows: Sequence[int], count: int, negatives: Pixels | None = None) -> Pairs:
        """Return pairs of images with ``count`` others each, as ``image_pairs`` does."""
        return image_pairs(population, rows, count, self.neurons, negatives, self.arithmetic)

    def cases(self, population: Population, ball: str) -> tuple[Conditions, Conditions]:
        """Return the conditions of proofs in a ball or norm, and those of attacks."""
        also = arithmetic_of(population, self.arithmetic)
        return {"ball": ball, "method": str(self.method), **also}, {"ball": ball, "attack": str(self.attack), **also}


@dataclass(frozen=True)
class CertifiedObservation(Observation):
    """Observation of the images that ``certification`` chooses."""

    certification: Certification

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.certification.samples)

    def forward_passes(self, population: Population) -> int:
        return self.certification.attack.forward_passes


# The robust radius of each pair between a certified and an attacked radius, and attacks on each certificate.
#
# ``certified <= robust radius <= attacked``: below the first a bound proves that no perturbation is mistaken for the
# negative; at the second a perturbation that is has been found.

HALVINGS = 12
CLOSE = 0.01
"""Relative gap between a failed and a successful attack at which the search ends."""
GROWTH = 1.5
FIRST = 2.0**-6
"""First radius without a certificate, as a fraction of the distance to the negative."""
INSIDE = 1 - 1e-9
"""Fraction of a certified radius that is attacked, so that rounding cannot leave the certificate."""


@dataclass(frozen=True)
class PairRadii(CertifiedObservation):
    """Per anchor and negative (b, k): certified and attacked radius, and the lowest ``W f`` inside the certificate."""

    norm: str
    negatives: int
    tolerance: float
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        return self.negatives * self.certification.attack.forward_passes

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return radius_bounds(self.pair_attack(population, rows), self.certification.method, self.tolerance)

    @abstractmethod
    def pair_attack(self, population: Population, rows: Sequence[int]) -> PairAttack:
        """Return the attacks on the pairs of the images at ``rows``."""


def refuted(observed: Observed) -> Bool[Tensor, "b k"]:
    """Return which certificates an attack refutes by a point inside that is mistaken for the negative."""
    certified = observed["certified"]
    return (certified > 0) & ((observed["lowest"] <= 0) | (observed["attacked"] <= certified * INSIDE))


@final
@dataclass(frozen=True)
class RadiusBounds(PairRadii):
    """Radii of each image against random others of its own."""

    name = "bracket"
    version = 7

    def pair_attack(self, population: Population, rows: Sequence[int]) -> PairAttack:
        pairs = self.certification.pairs(population, rows, self.negatives)
        return PairAttack(pairs, unit_ball(self.norm), self.certification.attack)


def radius_bounds(pair_attack: PairAttack, method: Method, tolerance: float) -> Observed:
    """Return ``certified`` and ``attacked`` radii and the ``lowest`` value found inside each certificate.

    For an encoder as executed, also ``rounded``, the radius lost to rounding. Values are nan for undefined pairs.
    """
    pairs = pair_attack.pairs
    certified, nearest = certify_and_attack(pair_attack, method, tolerance)
    attacked = pair_attack.sizes(nearest.points).reshape(pairs.shape)
    lowest = cross_check(pair_attack, certified).values.reshape(pairs.shape)
    observed = {"certified": certified, "attacked": attacked, "lowest": lowest}
    if pairs.executed:
        observed["rounded"] = radii_lost_to_rounding(pair_attack, method, tolerance, certified)
    return {name: values.masked_fill(~pairs.defined, torch.nan) for name, values in observed.items()}


def radii_lost_to_rounding(
    pair_attack: PairAttack, method: Method, tolerance: float, certified: Float[Tensor, "b k"]
) -> Float[Tensor, "b k"]:
    """Return the radii lost to rounding, by CROWN if ``method`` searches itself."""
    pairs, ball = pair_attack.pairs, pair_attack.ball
    if isinstance(method, RadiusSearch):
        method, certified = Crown(), certified_radii(pairs, ball, Crown(), tolerance)
    real = replace(pairs, graph=rigorous(replace(pairs.graph, steps=())))
    return certified_radii(real, ball, method, tolerance) - certified


def certified_radii(pairs: Pairs, ball: Ball, method: Method, tolerance: float) -> Float[Tensor, "b k"]:
    """Return the largest radius at which ``method`` proved each pair; 0 without a proof.

    The search runs in fractions of the distance to the farthest negative; ``tolerance`` is such a fraction.
    """
    return _search_radii(pairs, ball, method, tolerance, None).radii


def _search_radii(
    pairs: Pairs, ball: Ball, method: Method, tolerance: float, high: Float[Tensor, "b k"] | None
) -> RadiusResult:
    limits = (type(ball), pairs.encoder.domain, pairs.distances(ball).amax(1), tolerance, high)
    return search_radii(method, pairs.graph, pairs.anchors, pairs.specifications, *limits)


def certify_cheaply_and_attack(
    pair_attack: PairAttack, method: Method, tolerance: float
) -> tuple[Float[Tensor, "b k"], AttackResult]:
    """Return certified radii (by a cheap method if ``method`` searches itself) and the nearest confusions."""
    cheap = quick_method(method, type(pair_attack.ball))
    certified = certified_radii(pair_attack.pairs, pair_attack.ball, cheap, tolerance)
    return certified, nearest_confusion(pair_attack, certified)


def certify_and_attack(
    pair_attack: PairAttack, method: Method, tolerance: float
) -> tuple[Float[Tensor, "b k"], AttackResult]:
    """Return certified radii and the nearest confusions.

    A method that searches radii itself looks between the cheap ones and the attacks, and may find nearer confusions.
    """
    certified, nearest = certify_cheaply_and_attack(pair_attack, method, tolerance)
    if not isinstance(method, RadiusSearch):
        return certified, nearest
    pairs = pair_attack.pairs
    attacked = pair_attack.sizes(nearest.points).reshape(pairs.shape)
    certified, points = _search_radii(pairs, pair_attack.ball, method, tolerance, attacked)
    assert points is not None
    points = points.flatten(0, 1)
    searched = shorten(pair_attack, pair_attack.evaluate(torch.where(points.isnan(), nearest.points, points)))
    nearer = (searched.values < 0) & (pair_attack.sizes(searched.points) < pair_attack.sizes(nearest.points))
    return certified, nearest.replaced(nearer, searched)


def nearest_confusion(pair_attack: PairAttack, certified: Float[Tensor, "b k"]) -> AttackResult:
    """Return for each pair the nearest point found that is more similar to the negative than to the anchor.

    The negative itself is such a point, so there always is one; where attacks at smaller radii succeed, theirs. Radii
    grow from the certified one until an attack succeeds, and are then bisected; every success moves along the segment
    to its anchor for as long as it remains one.
    """
    best = shorten(pair_attack, pair_attack.evaluate(pair_attack.pairs.negatives.flatten(0, 1)))
    failed = torch.maximum(certified.flatten() * INSIDE, pair_attack.sizes(best.points) * FIRST)
    succeeded_once = torch.zeros_like(failed, dtype=torch.bool)
    trial = 0
    while bool((unfinished := pair_attack.sizes(best.points) > failed * (1 + CLOSE)).any()):
        size = pair_attack.sizes(best.points)
        between = (failed * size).sqrt()
        eps = torch.where(succeeded_once, between, torch.minimum(failed * GROWTH, between))
        attacked = pair_attack(eps, f"radius {trial}")
        succeeded = unfinished & (attacked.values < 0)
        points = torch.where(column(succeeded, attacked.points), attacked.points, best.points)
        shortened = shorten(pair_attack, AttackResult(points, attacked.values))
        best = best.replaced(succeeded & (pair_attack.sizes(shortened.points) < size), shortened)
        succeeded_once |= succeeded
        failed = torch.where(unfinished & ~succeeded, eps, failed)
        trial += 1
    return best


def shorten(pair_attack: PairAttack, result: AttackResult) -> AttackResult:
    """Return points moved towards their anchors while they still match the negative."""
    centres = pair_attack.pairs.images
    low = torch.zeros_like(result.values)
    high = torch.ones_like(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        mistaken = pair_attack.evaluate(centres + column(middle, centres) * (result.points - centres)).values < 0
        low, high = torch.where(mistaken, low, middle), torch.where(mistaken, middle, high)
    shortened = centres + column(high, centres) * (result.points - centres)
    return pair_attack.evaluate(torch.where(column(high == 1, centres), result.points, shortened))


def cross_check(pair_attack: PairAttack, certified: Float[Tensor, "b k"]) -> AttackResult:
    """Return the lowest value of all attacks inside the certified balls, and its point.

    The attack itself, the corner against the gradient at the anchor, a random corner, the midpoint of the clipped ball,
    and a random point.
    """
    eps = certified.flatten() * INSIDE
    pairs, ball = pair_attack.pairs, pair_attack.ball
    centres, domain, reach = pairs.images, pairs.encoder.domain, column(eps, pairs.images)
    noise, shape = pairs.noise.fork("cross-check"), pairs.images.shape[1:]
    _, gradient = gain_and_gradient(pairs.encoder, centres, pairs.objective)
    middle = (domain.clip(centres - reach) + domain.clip(centres + reach)) / 2 - centres
    steps = [
        ball.steepest(gradient),
        ball.steepest(noise.fork("corner").normal(shape, centres.dtype)),
        ball.sample(noise.fork("point"), shape, centres.dtype),
        ball.project(middle / reach.clamp_min(torch.finfo(reach.dtype).tiny)),
    ]
    worst = pair_attack(eps, "cross-check")
    for step in steps:
        worst = worst.or_better(pair_attack.evaluate(domain.clip(centres + reach * step)))
    return worst


@final
@dataclass(frozen=True)
class PairBounds(CertifiedObservation):
    """Per anchor and negative (b, k): the bound of ``W f`` over ``ball``, and ``W f`` at the end of each attack."""

    ball: Ball
    negatives: int
    generate: Ball | None
    published: Attack | None
    """Attack at the negative; None: that of RVCL's authors, whose steps depend on the images."""
    name = "told"
    version = 6
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        published = self.at_negative(population.encoder.domain).forward_passes
        if self.generate:  # one negative, made by one more attack
            return self.certification.attack.forward_passes + 2 * published
        return self.negatives * (self.certification.attack.forward_passes + published)

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
        pairs = self.certification.pairs(population, rows, self.negatives, negatives)
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
        """Return the attack at the negative: the given one, or that of RVCL's authors."""
        return self.published or published_attack(domain)

    def close(self, pair_attack: PairAttack) -> AttackResult:
        """Return the points of the published attack, which approaches the negative's embedding."""
        pairs = pair_attack.pairs
        noise = pairs.noise.fork("published")
        context = AttackContext(pairs.encoder, pairs.images, noise, pairs.negatives.flatten(0, 1))
        objective = Toward(L2Distance())(context)
        attack = self.at_negative(pairs.encoder.domain)
        return pair_attack.evaluate(attack(pairs.encoder, pairs.images, objective, self.ball, noise))
