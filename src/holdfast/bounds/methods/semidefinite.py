"""Semidefinite bounds: multipliers found by ascent, proved by a Cholesky factorisation.

In l2 balls the multipliers start from those that prove what SDP-CROWN proves.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from holdfast.bounds.certified_search import bisect_radii
from holdfast.bounds.methods.alpha import (
    ALPHA_RATE,
    RATE,
    BallSlopes,
    ascend_in_balls,
    ascend_slopes,
    ascend_specifications,
)
from holdfast.bounds.methods.base import RadiusProblem, RadiusResult, RadiusSearch
from holdfast.bounds.methods.branch import relax_and_refine
from holdfast.bounds.methods.branch_and_bound import BranchAndBound, SubdomainParameters
from holdfast.bounds.methods.crown import NetworkRelaxation, minimise, propagate_backward, relax
from holdfast.bounds.methods.lagrangian import KINDS, RANGE, Ascent, Lagrangian, Multipliers
from holdfast.bounds.methods.lipschitz import EnclosingBall, enclosing_balls
from holdfast.bounds.network.forms import dense_form
from holdfast.bounds.network.network_graph import RULES, Affine, Graph, Node
from holdfast.bounds.network.norms import spectral_norms
from holdfast.bounds.regions import Region, l2_multiplier
from holdfast.bounds.relaxations import ReluForm
from holdfast.core.balls import L2, Linf, column
from holdfast.core.errors import HoldfastError

# The multipliers that make the Lagrangian of a network in an l2 ball prove what SDP-CROWN proves of it.
#
# Let ``u = y = relu(z)`` and ``v = relu(-z)``, so that ``z = u - v`` and ``u v = y (y - z) = 0``. With slopes ``g``, a
# multiplier ``t`` and the centre ``c``, SDP-CROWN adds ``t/2 |z - c|^2`` to ``a . u - g . z``, which leaves
#
#     p . u + q . v + t/2 (|u|^2 + |v|^2) - t u . v,        p = a - g - t c,   q = g + t c,
#
# up to constants: the product has the multiplier ``t``, ``y >= 0`` the positive part of ``p`` and ``y >= z`` that of
# ``q``.
#
# What was added has to be taken from the layer before. There ``d = y - relu(c)`` and ``e = z - c`` satisfy ``d (d -
# e) <= 0``, which is ``u v - relu(-c) u - relu(c) v``, a sum of the same constraints: ``s`` times it leaves ``s/2
# |d|^2`` and takes ``s/2 |e|^2`` from the layer before that, and so on to the pixels. Each affine map multiplies by
# its squared norm.


def ball_multipliers(
    network: NetworkRelaxation, specifications: Float[Tensor, "b d"], steps: int
) -> tuple[Multipliers, Float[Tensor, "b ..."]]:
    """Return multipliers of all constraints after ``steps`` of SDP-CROWN, and the slopes of the pixels.

    Args:
        network: the relaxation over the region of each specification.
        specifications: one for each region.
        steps: of ascent.
    """
    graph, output = network.graph, network.graph.nodes[-1]
    recorder = BallSlopes(balls=enclosing_balls(network))
    form = dense_form(specifications[:, None], output.shape)
    ascend_slopes(network, output.index, form, steps, RATE, recorder)
    pixels = propagate_backward(network, output.index, form, recorder)[0].dense().coef.detach()[:, 0]
    multipliers: Multipliers = {}
    taken = {node.index: torch.zeros_like(specifications[:, 0]) for node in graph.nodes}
    for node in reversed(graph.nodes):
        if isinstance(node.operation, Affine):
            for source, norm in zip(node.inputs, spectral_norms(graph, node), strict=True):
                taken[source] = taken[source] + norm * norm * taken[node.index]
        elif node.operation is RULES["relu"]:
            (source,) = node.inputs
            t, own = _relu_multipliers(network, recorder, node, taken[node.index])
            multipliers |= own
            taken[source] = taken[source] + t + taken[node.index]
    multipliers[RANGE] = _range_multipliers(network, pixels)
    return multipliers, pixels


def _relu_multipliers(
    network: NetworkRelaxation, recorder: BallSlopes, node: Node, taken: Float[Tensor, "b"]
) -> tuple[Float[Tensor, "b"], Multipliers]:
    """Return the multiplier of a ReLU's own ball, and all of the ReLU, of which later layers have ``taken`` some."""
    box, (centre, radius) = network.intermediate_bounds[node.inputs[0]], recorder.balls[node.inputs[0]]
    zero = torch.zeros_like(box.lower)
    nothing = (zero[:, None], zero[:, None])
    a, g = (values[:, 0].expand_as(zero) for values in recorder.replaced.get(node.index, nothing))
    t = tree_map_only(Tensor, lambda values: values.flatten(1), ReluForm(a, g, box, centre)).best_multiplier(radius)
    t_own, later = column(t, zero), column(taken, zero)
    by_kind = {
        "square": (t_own + later).expand_as(zero),
        "positive": (a - g - t_own * centre).clamp_min(0) + later * (-centre).clamp_min(0),
        "above": (g + t_own * centre).clamp_min(0) + later * centre.clamp_min(0),
        "chord": zero,
    }
    return t, {(node.index, kind): values for kind, values in by_kind.items()}


def _range_multipliers(network: NetworkRelaxation, pixels: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
    """Return the multipliers of the pixels' range for a linear function of them."""
    region, (low, high) = network.region, network.intermediate_bounds[0]
    room = torch.where(pixels > 0, region.centre - low, high - region.centre).clamp_min(0)
    t = l2_multiplier(pixels.abs().flatten(1), room.flatten(1), region.eps)
    width = (high - low).clamp_min(torch.finfo(low.dtype).tiny)
    return torch.where(high > low, (pixels.abs() - column(t, room) * room).clamp_min(0) / width, 0.0)


# Semidefinite bounds: the multipliers of a quadratic Lagrangian, found by ascent, proved by a Cholesky factorisation.
#
# Descent of the vectors and ascent of the multipliers alternate, starting from the multipliers of alpha-CROWN. Neither
# needs to converge: the proof is that the final matrix is positive definite.

DESCENTS = 2  # of the vectors, for each ascent of the multipliers
LAST = 60  # descents before a proof is attempted
HALVINGS = 14
BALL_STEPS = 20  # of SDP-CROWN, whose multipliers the ascent in an l2 ball starts from
BALL_FASTER = 8  # by how much the ascent is faster in l2 balls, whose first multipliers are farther from the best
BALL_INNER = 2  # steps of SDP-CROWN for inner layers, whose boxes matter less there than the time they take
PARTS, BATCH = 1000, 32  # of branch and bound
BOXES, SPLITS = 0.15, 0.4  # shares of the time for intermediate bounds, and for specifications near zero
NEAR = 0.25  # a bound is near zero if at most this far below, as a share of the clean value
LARGEST = 15_000
"""The most variables of which a dense matrix is made: two gigabytes."""


@final
@dataclass(frozen=True)
class Semidefinite(RadiusSearch):
    """Semidefinite relaxation of all neurons together, in ``seconds`` for an image and ``steps`` of ascent for a radius.

    Intermediate bounds and the first multipliers are those of alpha-CROWN after ``inner`` steps; branch and bound tightens
    them, and is tried on specifications whose bound is not far below zero. The matrix is searched at low ``rank``. A
    search for radii leaves time for ``rounds`` that fail.
    """

    seconds: float = 60.0
    """Time per image."""
    rounds: int = 4
    """Largest number of radii per specification that may fail."""
    steps: int = 2000
    """Largest number of ascent steps per radius."""
    rank: int = 6
    """Number of vectors that factor the matrix in the search."""
    rate: float = 0.03
    """Learning rate of the ascent."""
    inner: int = 10
    """Ascent steps for the bounds of inner layers, as in `alpha`."""
    name = "semidefinite"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        bounds = torch.empty_like(specifications[..., 0])
        for image in range(len(specifications)):
            region_index = torch.zeros(len(specifications[image]), dtype=torch.int64, device=specifications.device)
            end = time.monotonic() + self.seconds
            alone = (graph, region.pick(image), region_index, specifications[image])
            network, bounds[image] = self._initial_bounds(*alone, end, torch.inf)
            if ascent := self._ascend(network, specifications[image], end, None):
                for index, kappa in enumerate(ascent.kappa()):
                    bounds[image, index] = max(float(bounds[image, index]), ascent.proved(index, kappa, HALVINGS))
        return bounds

    @torch.no_grad()
    def search_radii(self, problem: RadiusProblem) -> RadiusResult:
        graph, specifications = problem.graph, problem.specifications
        _check_ball(problem.region_at(problem.low))
        last: tuple[Tensor, Ascent] | None = None

        def prove(
            region: Region, indices: Int[Tensor, "o"], region_index: Int[Tensor, "o"], end: float
        ) -> Bool[Tensor, "o"]:
            nonlocal last  # the next radius starts from the multipliers of this one
            network, bounds = self._initial_bounds(graph, region, region_index, specifications[indices], end, 0.0)
            won = bounds > 0
            if not len(hard := (~won).nonzero()[:, 0]):
                return won
            open_ = indices[hard]
            if ascent := self._ascend(network.take(hard), specifications[open_], end, _of(last, open_)):
                last = open_, ascent
                for index, kappa in enumerate(ascent.kappa()):
                    won[hard[index]] = ascent.total(kappa) < 0 and ascent.proved(index, kappa, 0) >= 0
            return won

        return bisect_radii(prove, problem, self.rounds, self.seconds)

    def _initial_bounds(
        self,
        graph: Graph,
        region: Region,
        region_index: Int[Tensor, "s"],
        specifications: Float[Tensor, "s d"],
        end: float,
        target: float,
    ) -> tuple[NetworkRelaxation, Float[Tensor, "s"]]:
        """Return the relaxation over the region that ``region_index`` names, and bounds by branch and bound."""
        _check_ball(region)
        if graph.steps:
            raise HoldfastError("semidefinite bounds are those of real arithmetic; use crown, alpha, branch or exact")
        if region.ball is L2:
            network = relax(graph, region, bounder=partial(ascend_in_balls, steps=BALL_INNER))
        else:
            network = relax_and_refine(graph, region, self.inner, ALPHA_RATE, BOXES * (end - time.monotonic()))
        picked = network.take(region_index)
        root = BranchAndBound(network, region_index, specifications, ALPHA_RATE / 2).root(self.inner)
        clean = (specifications * graph(picked.region.centre[:, 0])).sum(1)
        near, bounds = (root.bounds > -NEAR * clean).nonzero()[:, 0], root.bounds
        if len(near):
            now = time.monotonic()
            problem = BranchAndBound(network, region_index[near], specifications[near], ALPHA_RATE / 2)
            subdomains = replace(root.pick(near), owner=torch.arange(len(near), device=near.device))
            bounds[near] = problem.solve(subdomains, self.inner, PARTS, BATCH, now + SPLITS * (end - now), target)
        return picked, bounds

    def _ascend(
        self, network: NetworkRelaxation, specifications: Float[Tensor, "h d"], end: float, last: Ascent | None
    ) -> Ascent | None:
        """Return the final ascent; it starts from the multipliers of ``last`` for neurons that were unstable there too."""
        started = time.monotonic()
        _, best = ascend_specifications(network, specifications[:, None], self.inner, ALPHA_RATE)
        ball = EnclosingBall(network.region.centre, network.region.eps) if network.region.ball is L2 else None
        problem = Lagrangian(network.graph, network.intermediate_bounds, specifications, ball)
        if not any(bool(unstable.any()) for unstable in problem.unstable.values()):
            return None
        if (size := int((problem.widths > 0).sum(1).max())) > LARGEST:
            raise HoldfastError(f"semidefinite bounds are for up to {LARGEST:,} variables, got {size:,}; use alpha")
        ascent = self._start(problem, network, best)
        if last:
            ascent.resume(last)
        else:
            ascent.descend(LAST)
        # A proof takes about as long as the setup of one specification: time is kept back for it.
        end -= 0.2 * (end - started)
        for step in range(self.steps):
            share = max(step / self.steps, (time.monotonic() - started) / max(end - started, 1e-3))
            if share >= 1:
                break
            ascent.descend(DESCENTS - 1)
            ascent.ascend(share)
        ascent.descend(LAST)
        return ascent

    def _start(self, problem: Lagrangian, network: NetworkRelaxation, slopes: dict[int, Tensor]) -> Ascent:
        """Return the multipliers of alpha-CROWN's bound, in l2 balls of SDP-CROWN's, and random vectors."""
        chosen = {node: values[:, 0] for node, values in slopes.items()}
        output, recorder = problem.graph.nodes[-1], SubdomainParameters(chosen, {}, {})
        minimise(network, output.index, dense_form(problem.specifications[:, None], output.shape), recorder)
        multipliers, scales = {}, {}
        for node, unstable in problem.unstable.items():
            zero = torch.zeros_like(problem.spans[node][0])
            # A ReLU that the specifications do not depend on has no coefficients.
            coef, slope = recorder.coefficients.get(node, zero), chosen.get(node, zero)
            values = (zero, coef.clamp_min(0) * slope, coef.clamp_min(0) * (1 - slope), (-coef).clamp_min(0))
            scale = (coef.abs() * unstable).flatten(1).sum(1) / unstable.flatten(1).sum(1).clamp_min(1)
            scale = scale.reshape(-1, *(1,) * (zero.ndim - 1)).expand_as(zero)
            low, high = network.intermediate_bounds[problem.graph.nodes[node].inputs[0]]
            for kind, value in zip(KINDS, values, strict=True):
                multipliers[node, kind] = torch.where(unstable, value, 0.0).float()
                scaled = scale / (high - low) if kind == "square" else scale
                scales[node, kind] = torch.where(unstable, scaled, 0.0).float()
        if problem.ball is not None:
            by_balls, pixels = ball_multipliers(network, problem.specifications, BALL_STEPS)
            for key, value in by_balls.items():
                multipliers[key] = torch.where(problem.unstable.get(key[0], pixels == pixels), value, 0.0).float()
            size = pixels.flatten(1).norm(dim=1) / (2 * problem.ball.radius)
            scales[RANGE] = column(size, pixels).expand_as(pixels).float()
        shape = len(problem.specifications), self.rank, problem.widths.shape[1] + 1
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        noise = noise.to(problem.specifications.device)
        rate = self.rate if problem.ball is None else BALL_FASTER * self.rate
        return Ascent(problem, multipliers, scales, noise / problem.lengths(noise), rate)


def _check_ball(region: Region) -> None:
    """Raise HoldfastError unless the region is that of a ball whose pixels have quadratic constraints."""
    if region.ball not in (Linf, L2):
        raise HoldfastError(
            f"semidefinite bounds are for linf and l2 balls, got {region.ball.name}; use alpha or branch"
        )


def _of(last: tuple[Tensor, Ascent] | None, indices: Int[Tensor, "h"]) -> Ascent | None:
    """Return the last ascent of these specifications, None unless it had all of them."""
    if last is None or not torch.isin(indices, last[0]).all():
        return None
    return last[1].pick((last[0][None] == indices[:, None]).int().argmax(1))
