"""Anchors with their negatives, and attacks on such pairs.

A linear function of the embedding decides whether an anchor matches a negative. Negatives can also be made by RVCL's attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.pair_attacks import on_unit_ball
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.size import check_size, nonlinear_entries
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.relaxations import Rule
from holdfast.bounds.rounding.arithmetic import rigorous
from holdfast.bounds.rounding.executed import ExecutedEncoder, executed_encoder, executes
from holdfast.core.balls import BALLS, Ball, column
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.noise import Noise
from holdfast.measure.population import Population
from holdfast.transforms.augmentations.views import RvclCifarView, RvclMnistView
from holdfast.transforms.base import View

# Anchors with their negatives, and the linear function of the code that decides whether one is mistaken for the
# other.
#
# With unit codes ``u``, an image ``x'`` near the anchor ``x+`` is more similar (in cosine) to ``x+`` than to the
# negative ``x-`` exactly if ``W f(x') > 0`` for ``W = u(x+) - u(x-)`` (Wang and Liu 2022, section 4).

UNDEFINED = "no negative whose embedding points elsewhere than the image's own, or a zero embedding"
ALIKE = 1e-6
"""Norm of ``W``, the difference of two unit embeddings, up to which both count as equal."""


@dataclass(frozen=True)
class Pairs:
    """``b`` anchors with ``k`` negatives each, in float64."""

    encoder: Encoder
    graph: Graph
    ids: tuple[tuple[str, ...], ...]
    """Names of each anchor and its negatives."""
    anchors: Pixels
    negatives: Float[Tensor, "b k *pixels"]
    specifications: Float[Tensor, "b k d"]
    """``W``, linear functions of the embedding; zero where undefined."""
    noise: Noise
    """Noise streams, one per pair, anchors outermost."""
    executed: ExecutedEncoder | None = None
    """Encoder as executed, if certificates are about it; ``encoder`` is its exact counterpart."""

    @property
    def shape(self) -> torch.Size:
        """(b, k)."""
        return self.specifications.shape[:2]

    @property
    def defined(self) -> Tensor:
        """Pairs with two different directions, (b, k)."""
        return self.specifications.norm(dim=2) > ALIKE

    @property
    def images(self) -> Pixels:
        """The anchor of each pair, (b * k, *pixels)."""
        return self.anchors.repeat_interleave(self.shape[1], 0)

    def objective(self, codes: Codes) -> Float[Tensor, "p"]:
        """Return ``-W f(x')`` for one moved embedding per pair: the objective of attacks on a certificate."""
        return -(self.specifications.flatten(0, 1) * codes).sum(1)

    def values(self, points: Pixels) -> Float[Tensor, "p"]:
        """Return ``W f(x')`` by the module itself, one point per pair; negative: the anchor matches the negative."""
        with torch.no_grad():
            return -self.objective((self.executed or self.encoder).forward(points))

    def distances(self, ball: Ball) -> Float[Tensor, "b k"]:
        """Return the distance of each negative from its anchor in the norm of ``ball``."""
        return ball.norm(self.negatives.flatten(0, 1) - self.images).reshape(self.shape)


def image_pairs(
    population: Population,
    rows: Sequence[int],
    count: int,
    neurons: int,
    negatives: Pixels | None = None,
    arithmetic: str = "real",
) -> Pairs:
    """Return pairs of the images at ``rows`` with ``count`` random other images each, or with given ``negatives``.

    Args:
        population: the images and their encoder.
        rows: the anchors.
        count: negatives of each anchor.
        neurons: largest number of nonlinear entries of the encoder.
        negatives: (b, k, *pixels), instead of other images.
        arithmetic: ``real`` or ``executed`` in the run's precision; always ``executed`` in half precision. Embeddings of
            anchors and negatives are then those that this machine computes in that precision.

    Raises:
        HoldfastError: the encoder cannot be bounded, or has more entries than ``neurons``.
    """
    names, anchors = population.images.ids, population.pixels(rows).double()
    certified = certified_encoder(population, neurons, arithmetic, anchors)
    if negatives is None:
        chosen = population.random_others(rows, count)
        ids = [[names[other] for other in line] for line in chosen.tolist()]
        negatives = population.pixels(chosen.flatten().tolist()).unflatten(0, tuple(chosen.shape))
    else:
        ids = [[f"generated {k}" for k in range(negatives.shape[1])] for _ in rows]
    negatives = negatives.double()
    anchor_codes, other = (directions(certified.codes(pixels)) for pixels in (anchors, negatives.flatten(0, 1)))
    difference = anchor_codes[:, None] - other.unflatten(0, tuple(negatives.shape[:2]))
    keys = [f"{names[row]}\x1f{name}" for row, line in zip(rows, ids, strict=True) for name in line]
    return Pairs(
        encoder=certified.encoder,
        graph=certified.graph,
        ids=tuple((names[row], *line) for row, line in zip(rows, ids, strict=True)),
        anchors=anchors,
        negatives=negatives,
        specifications=difference.nan_to_num(nan=0.0),
        noise=population.run.noise(keys),
        executed=certified.executed,
    )


def directions(codes: Codes) -> Codes:
    """Return unit embeddings; nan for a zero one."""
    return codes / codes.norm(dim=1, keepdim=True)


@dataclass(frozen=True)
class CertifiedEncoder:
    """Function that certificates are about: exact, or as ``executed``."""

    encoder: Encoder
    """Encoder in float64, which attacks use."""
    graph: Graph
    executed: ExecutedEncoder | None = None

    def codes(self, pixels: Pixels) -> Codes:
        """Return the embeddings that certificates are about, as float64."""
        with torch.no_grad():
            return (self.executed or self.encoder).forward(pixels)


def certified_encoder(population: Population, neurons: int, arithmetic: str, pixels: Pixels) -> CertifiedEncoder:
    """Return the traced encoder for certificates around ``pixels`` in this arithmetic; half precision is always executed.

    Raises:
        HoldfastError: it cannot be bounded, or on one of the images a value may exceed the largest number of its type.
    """
    if not executes(arithmetic, population.run.dtype):
        return CertifiedEncoder(population.double, traced(population.encoder, neurons, population.run.device))
    check_few_neurons(population.encoder, neurons)
    executed = executed_encoder(population.encoder, population.run.dtype, population.run.device)
    _check_entries(population.encoder, executed.graph, neurons)
    executed.check_finite(pixels)
    return CertifiedEncoder(population.double, executed.graph, executed)


def traced(encoder: Encoder, neurons: int, device: str) -> Graph:
    """Return the graph of an encoder, in float64, unless it has more than ``neurons`` nonlinear entries."""
    check_few_neurons(encoder, neurons)
    graph = rigorous(trace(encoder, torch.float64, device))
    _check_entries(encoder, graph, neurons)
    return graph


def _check_entries(encoder: Encoder, graph: Graph, neurons: int) -> None:
    entries = sum(prod(node.shape) for node in graph.nodes if isinstance(node.operation, Rule))
    check_size(encoder.name, entries, neurons)


def check_few_neurons(encoder: Encoder, neurons: int) -> None:
    """Raise if one call on one image shows more than ``neurons`` nonlinear entries."""
    check_size(encoder.name, nonlinear_entries(encoder), neurons, "at least ")


def unit_ball(name: str) -> Ball:
    """Return the unit ball of the norm called ``name``."""
    if name not in BALLS:
        raise UnknownName("norm", name, BALLS)
    return BALLS[name](1.0)


@dataclass(frozen=True)
class AttackResult:
    """Best point of a search for each pair, with ``W f`` there."""

    points: Pixels
    values: Float[Tensor, "p"]

    def replaced(self, where: Bool[Tensor, "p"], other: AttackResult) -> AttackResult:
        """Return this result with the points and values of ``other`` at the pairs ``where``."""
        points = torch.where(column(where, self.points), other.points, self.points)
        return AttackResult(points, torch.where(where, other.values, self.values))

    def or_better(self, other: AttackResult) -> AttackResult:
        """Return the point with the lower value for each pair; nan never wins."""
        return self.replaced((other.values < self.values) | self.values.isnan(), other)


@dataclass(frozen=True)
class PairAttack:
    """Attack on the certified objective of ``pairs``, each pair at its own radius."""

    pairs: Pairs
    ball: Ball
    """Unit ball of the norm."""
    attack: Attack

    def __call__(self, radii: Float[Tensor, "p"], purpose: str) -> AttackResult:
        """Return the worst points that the attack finds within ``radii`` of the anchors."""
        encoder, module = on_unit_ball(self.pairs.encoder, self.pairs.images, radii)
        noise = self.pairs.noise.fork(purpose)
        start = torch.zeros_like(self.pairs.images)
        delta = self.attack(encoder, start, self.pairs.objective, self.ball, noise)
        return self.evaluate(module.pixels(delta))

    def evaluate(self, points: Pixels) -> AttackResult:
        """Return ``points`` with their values."""
        return AttackResult(points, self.pairs.values(points))

    def sizes(self, points: Pixels) -> Float[Tensor, "p"]:
        """Return the distances of ``points`` from their anchors."""
        return self.ball.norm(points - self.pairs.images)


# RVCL's attack on instances, and the negatives that it makes from the anchor itself (Wang and Liu 2022, appendix E.1).
#
# The program of the authors (https://github.com/wzekai99/RVCL, ``unsupervised_verification.py``) makes a negative
# ``x-`` of an image ``x`` and then attacks ``x`` with it, both by 200 sign steps of one length from a random start:
#
#     x- = argmax |f(z) - f(view(x))|^2 over z within eps_neg of x,    x' = argmin |f(z) - f(x-)|^2 over z within eps of
#     x
#
# The view is random: the one that the authors train with. Negatives near their anchor make certificates hard to prove.

GRAY = GradientAttack(steps=200, step=0.005, keep="last")
"""Attack of RVCL's authors on MNIST."""
COLOR = GradientAttack(steps=200, step=0.000225, keep="last")
"""Their attack on CIFAR-10: steps of 0.001 in units of normalised inputs, whose standard deviation is 0.225 of a pixel."""


def published_attack(domain: Domain) -> GradientAttack:
    """Return the authors' attack: that on CIFAR-10 for images of three channels, that on MNIST for all other inputs."""
    return COLOR if domain.shape[0] == 3 else GRAY


def published_view(domain: Domain) -> View:
    """Return the view in the authors' attack: CIFAR-10's for three channels, MNIST's for one.

    Raises:
        HoldfastError: inputs are not images, so they have no such view.
    """
    views: dict[int, View] = {1: RvclMnistView(), 3: RvclCifarView()}
    if len(domain.shape) != 3 or domain.shape[0] not in views or (domain.low, domain.high) != (0, 1):
        raise HoldfastError(
            "generate: negatives are made of views of images of 1 or 3 channels in [0, 1], got inputs of shape "
            f"{domain.shape} in [{domain.low:g}, {domain.high:g}]. Leave generate out: negatives are then other images."
        )
    return views[domain.shape[0]]


def generated(population: Population, rows: Sequence[int], ball: Ball, attack: Attack) -> Pixels:
    """Return for each image one in ``ball`` around it, by ``attack`` away from the embedding of a view of the image."""
    context = population.context(rows)
    noise = context.noise.fork("negative")
    view = context.code(published_view(context.encoder.domain)(context.pixels, noise.fork("view")))

    return attack(context.encoder, context.pixels, lambda codes: (codes - view).square().mean(1), ball, noise)
