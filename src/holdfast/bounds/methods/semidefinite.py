"""Semidefinite bounds: the multipliers of a quadratic Lagrangian, found by ascent, proved by a Cholesky factorisation.

For given multipliers the best ``kappa`` belongs to the least ``v' M v / 2`` over matrices ``V V'`` with unit specifications, which
descent on ``V`` of low rank finds (Burer and Monteiro 2003, https://doi.org/10.1007/s10107-002-0352-8), and the gradient
of the multipliers is what each constraint is worth there. Descent and ascent take turns, beginning region_index alpha-CROWN
ends. Nothing of that needs to converge: what counts is whether the matrix they end with is positive definite.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.bounds.bisection import bisect_radii
from holdfast.bounds.methods.alpha import ascend_specifications
from holdfast.bounds.methods.base import RadiusResult, RadiusSearch, RegionAtRadius
from holdfast.bounds.methods.crown import NetworkRelaxation, RelaxationParameters, minimise
from holdfast.bounds.methods.lagrangian import KINDS, Lagrangian, Multipliers, positive
from holdfast.bounds.network.forms import Form, dense_form
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region, require_box
from holdfast.bounds.relaxations.rules import Box, LinearRelaxation
from holdfast.bounds.subdomains.branch_and_bound import BranchAndBound
from holdfast.bounds.subdomains.receptive_fields import relax_and_refine
from holdfast.core.errors import HoldfastError

DESCENTS = 2  # of the vectors, for each ascent of the multipliers
LAST = 60  # descents before a proof is tried
STRIDE, MOMENTUM = 0.3, 0.8
FLOOR = 0.02  # of kappa, as a share of its mean
HALVINGS = 14
HOPE = 0.005
"""Share by which a diagonal must be raisable before a proof is worth its time."""
ALPHA_RATE = 0.25  # steps of alpha-CROWN, and twice those of branch and bound
PARTS, BATCH = 1000, 32  # of branch and bound
BOXES, SPLITS = 0.15, 0.4  # shares of the time for inner layers, and for specifications near zero
NEAR = 0.25  # of a row's clean value: how far below zero its bound may be
LARGEST = 15_000
"""The most variables of which a dense matrix is made: two gigabytes."""


@dataclass
class CoefficientRecorder(RelaxationParameters):
    """Applies given slopes, and remembers the coefficients that met each ReLU and the slopes slopes_used."""

    slopes: dict[int, Tensor]
    coefficients: dict[int, Tensor] = field(default_factory=dict)
    slopes_used: dict[int, Tensor] = field(default_factory=dict)

    def choose(self, node: int, form: Form, relaxation: LinearRelaxation) -> LinearRelaxation:
        slope = relaxation.lower[0][:, None]
        if relaxation.unstable is not None and node in self.slopes:
            slope = torch.where(relaxation.unstable[:, None], self.slopes[node], slope)
        self.coefficients[node], self.slopes_used[node] = form.coef, slope
        return replace(relaxation, lower=(slope,))


@dataclass
class Ascent:
    """The state of the search for each of ``b`` specifications: vectors, multipliers, and running means of their gradients."""

    exact: Lagrangian
    multipliers: Multipliers
    scales: Multipliers
    vectors: Float[Tensor, "b r n1"]
    rate: float
    problem: Lagrangian = field(init=False)
    """The same in single precision, for the search."""
    velocity: Tensor = field(init=False)
    sizes: Tensor = field(init=False)
    means: Multipliers = field(init=False)
    squares: Multipliers = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.problem = self.exact.cast(torch.float32)
        self.velocity = torch.zeros_like(self.vectors)
        self.sizes = lengths(self.problem.slope(self.vectors, self.multipliers)[1])
        self.means = {key: torch.zeros_like(value) for key, value in self.multipliers.items()}
        self.squares = {key: torch.zeros_like(value) for key, value in self.multipliers.items()}

    def pick(self, which: Int[Tensor, "a"]) -> Ascent:
        """Return that of some specifications, with new running means."""
        boxes = [Box(*(end[which] for end in box)) for box in self.exact.intermediate_bounds]
        return Ascent(
            Lagrangian(self.exact.graph, boxes, self.exact.specifications[which]),
            {key: value[which] for key, value in self.multipliers.items()},
            {key: value[which] for key, value in self.scales.items()},
            self.vectors[which],
            self.rate,
        )

    def resume(self, last: Ascent) -> None:
        """Take on what an ascent of the same specifications over other regions ended with."""
        for key, value in last.multipliers.items():
            both = last.problem.unstable[key[0]] & self.problem.unstable[key[0]]
            self.multipliers[key] = torch.where(both, value, self.multipliers[key])
        self.vectors = last.vectors.clone()

    def descend(self, steps: int) -> None:
        """Move the vectors against their slope, each variable by its own scale, with unit length or less."""
        for _ in range(steps):
            _, slope = self.problem.slope(self.vectors, self.multipliers)
            self._move(slope)

    def _move(self, slope: Tensor) -> None:
        self.sizes = 0.9 * self.sizes + 0.1 * lengths(slope)
        scale = self.sizes + FLOOR * self.sizes[..., 1:].mean(2, keepdim=True) + torch.finfo(slope.dtype).tiny
        moved = self.vectors + MOMENTUM * self.velocity - STRIDE * slope / scale
        moved = moved / lengths(moved).clamp_min(1)
        moved[..., 0] = self.vectors[..., 0]  # only angles between vectors matter
        self.velocity, self.vectors = moved - self.vectors, moved

    def ascend(self, share: float) -> None:
        """Move the multipliers along the worth of their constraints, by Adam; ``share`` of the steps is done."""
        with torch.enable_grad():
            leaves = {key: value.requires_grad_() for key, value in self.multipliers.items()}
            points = self.vectors.detach().requires_grad_()
            value = self.problem.value(points, leaves)
            slope, *gains = torch.autograd.grad(value.sum(), [points, *leaves.values()])
        self._move(slope)
        self.steps += 1
        step = self.rate * max(1 - share, 0.01)
        for (key, multiplier), gain in zip(self.multipliers.items(), gains, strict=True):
            scaled = gain * self.scales[key]
            self.means[key] = 0.9 * self.means[key] + 0.1 * scaled
            self.squares[key] = 0.99 * self.squares[key] + 0.01 * scaled * scaled
            mean, square = self.means[key] / (1 - 0.9**self.steps), self.squares[key] / (1 - 0.99**self.steps)
            moved = multiplier.detach() + step * self.scales[key] * mean / (square.sqrt() + 1e-12)
            self.multipliers[key] = moved if key[1] == "square" else moved.clamp_min(0)

    def kappa(self) -> Float[Tensor, "b n1"]:
        """Return what the vectors say of the best diagonal; its own bound is minus half its sum."""
        slope = self.problem.slope(self.vectors, self.multipliers)[1]
        kappa = -(self.vectors * slope).sum(1)
        return torch.cat([kappa[:, :1], kappa[:, 1:].clamp_min(0)], 1)

    def proved(self, index: int, kappa: Float[Tensor, "n1"], halvings: int) -> float:
        """Return a bound of one row that is proved; with no ``halvings``, 0 or nothing.

        The diagonal is raised in proportion to itself, as far as a positive bound allows, or by bisection.
        """
        problem = self.exact.pick(index)
        kappa = kappa[problem.kept].to(problem.specifications.dtype)
        raised = torch.maximum(kappa.abs(), FLOOR * kappa[1:].mean())
        room = -float(kappa.sum() / raised.sum()) * (1 - 1e-6)
        if not halvings and room < HOPE:
            return -torch.inf
        dtype, one = problem.specifications.dtype, slice(index, index + 1)
        matrix = problem.matrix({key: value[one].to(dtype) for key, value in self.multipliers.items()})
        pixels = int((problem.spans[0][1] > 0).sum())
        if not halvings:
            return 0.0 if positive(matrix, kappa + room * raised, pixels) else -torch.inf
        low, high = 0.0, 1.0
        if not positive(matrix, kappa + high * raised, pixels):
            return -torch.inf
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (low, middle) if positive(matrix, kappa + middle * raised, pixels) else (middle, high)
        return -float((kappa + high * raised).sum()) / 2


@dataclass(frozen=True)
class InitialBounds:
    """What is known of specifications before the ascent: for each the relaxation over its own region, and a bound."""

    network: NetworkRelaxation
    specifications: Float[Tensor, "s d"]
    bounds: Float[Tensor, "s"]


@final
@dataclass(frozen=True)
class Semidefinite(RadiusSearch):
    """The bound of all neurons together, given ``seconds`` for an image and at most ``steps`` of ascent for a radius.

    Boxes and the first multipliers are those of alpha-CROWN after ``inner`` steps; branch and bound tightens the boxes,
    and tries specifications whose bound is not far below zero. ``rank`` vectors stand for a matrix. A search for radii leaves time
    for ``rounds`` that fail.
    """

    seconds: float = 60.0
    rounds: int = 4
    steps: int = 2000
    rank: int = 6
    rate: float = 0.03
    inner: int = 10
    name = "semidefinite"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        found = torch.empty_like(specifications[..., 0])
        for image in range(len(specifications)):
            region_index = torch.zeros(len(specifications[image]), dtype=torch.int64, device=specifications.device)
            end = time.monotonic() + self.seconds
            initial = self._initial_bounds(
                graph, region.pick(image), region_index, specifications[image], end, torch.inf
            )
            found[image] = initial.bounds
            if ascent := self._ascend(
                initial, torch.arange(len(region_index), device=specifications.device), end, None
            ):
                for index, kappa in enumerate(ascent.kappa()):
                    found[image, index] = max(float(found[image, index]), ascent.proved(index, kappa, HALVINGS))
        return found

    @torch.no_grad()
    def search_radii(
        self,
        graph: Graph,
        region_at: RegionAtRadius,
        specifications: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        require_box("semidefinite", region_at(low))
        last: tuple[Tensor, Ascent] | None = None

        def prove(
            region: Region, indices: Int[Tensor, "o"], region_index: Int[Tensor, "o"], end: float
        ) -> Bool[Tensor, "o"]:
            nonlocal last  # multipliers serve the next radius too
            initial = self._initial_bounds(graph, region, region_index, specifications[indices], end, 0.0)
            won = initial.bounds > 0
            hard = (~won).nonzero()[:, 0]
            ascent = self._ascend(initial, hard, end, _of(last, indices[hard])) if len(hard) else None
            if ascent:
                last = indices[hard], ascent
                for index, kappa in enumerate(ascent.kappa()):
                    won[hard[index]] = bool(kappa.sum() < 0) and ascent.proved(index, kappa, 0) >= 0
            return won

        return bisect_radii(prove, region_at, low, high, self.rounds, self.seconds)

    def _initial_bounds(
        self,
        graph: Graph,
        region: Region,
        region_index: Int[Tensor, "s"],
        specifications: Float[Tensor, "s d"],
        end: float,
        target: float,
    ) -> InitialBounds:
        """Return what branch and bound says of specifications, each over the region that ``region_index`` names."""
        require_box("semidefinite", region)
        network = relax_and_refine(graph, region, self.inner, ALPHA_RATE, BOXES * (end - time.monotonic()))
        problem, per_row = (
            BranchAndBound(network, region_index, specifications, ALPHA_RATE / 2),
            network.take(region_index),
        )
        root = problem.root(self.inner)
        clean = (specifications * graph(per_row.region.centre[:, 0])).sum(1)
        near, bounds = (root.bounds > -NEAR * clean).nonzero()[:, 0], root.bounds
        if len(near):
            problem, now = (
                BranchAndBound(network, region_index[near], specifications[near], ALPHA_RATE / 2),
                time.monotonic(),
            )
            parts = replace(root.pick(near), owner=torch.arange(len(near), device=near.device))
            bounds[near] = problem.solve(parts, self.inner, PARTS, BATCH, now + SPLITS * (end - now), target)
        return InitialBounds(per_row, specifications, bounds)

    def _ascend(
        self, initial: InitialBounds, which: Int[Tensor, "h"], end: float, last: Ascent | None
    ) -> Ascent | None:
        """Return region_index the ascent ended, from the multipliers of ``last`` wherever they were unstable there."""
        started = time.monotonic()
        network, specifications = initial.network.take(which), initial.specifications[which]
        _, best = ascend_specifications(network, specifications[:, None], self.inner, ALPHA_RATE)
        problem = Lagrangian(network.graph, network.intermediate_bounds, specifications)
        if not any(bool(unstable.any()) for unstable in problem.unstable.values()):
            return None
        if (size := int((problem.widths > 0).sum(1).max())) > LARGEST:
            raise HoldfastError(f"semidefinite bounds are for up to {LARGEST:,} variables, got {size:,}; use alpha")
        ascent = self._start(problem, network, best)
        if last:
            ascent.resume(last)
        else:
            ascent.descend(LAST)
        # Proofs take their share of the time: about as long as one row's setting up.
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
        """Return the multipliers that make the Lagrangian's bound that of alpha-CROWN, and random vectors."""
        output, recorder = problem.graph.nodes[-1], CoefficientRecorder(slopes)
        minimise(network, output.index, dense_form(problem.specifications[:, None], output.shape), recorder)
        multipliers, scales = {}, {}
        for node, unstable in problem.unstable.items():
            zero = torch.zeros_like(problem.spans[node][0])
            # A ReLU that the specifications do not depend on has met no coefficient.
            coef = recorder.coefficients[node][:, 0] if node in recorder.coefficients else zero
            slope = recorder.slopes_used[node][:, 0] if node in recorder.slopes_used else zero
            values = (zero, coef.clamp_min(0) * slope, coef.clamp_min(0) * (1 - slope), (-coef).clamp_min(0))
            scale = (coef.abs() * unstable).flatten(1).sum(1) / unstable.flatten(1).sum(1).clamp_min(1)
            scale = scale.reshape(-1, *(1,) * (zero.ndim - 1)).expand_as(zero)
            low, high = network.intermediate_bounds[problem.graph.nodes[node].inputs[0]]
            for kind, value in zip(KINDS, values, strict=True):
                multipliers[node, kind] = torch.where(unstable, value, 0.0).float()
                scaled = scale / (high - low) if kind == "square" else scale
                scales[node, kind] = torch.where(unstable, scaled, 0.0).float()
        shape = len(problem.specifications), self.rank, problem.widths.shape[1] + 1
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        vectors = (noise / noise.norm(dim=1, keepdim=True)).to(problem.specifications.device)
        return Ascent(problem, multipliers, scales, vectors, self.rate)


def lengths(vectors: Float[Tensor, "b r n1"]) -> Float[Tensor, "b 1 n1"]:
    """Return their norms over the r vectors, faster than torch's own."""
    return (vectors * vectors).sum(1, keepdim=True).sqrt()


def _of(last: tuple[Tensor, Ascent] | None, specifications: Int[Tensor, "h"]) -> Ascent | None:
    """Return the last ascent of these specifications, if there was one of all of them."""
    if last is None or not torch.isin(specifications, last[0]).all():
        return None
    return last[1].pick((last[0][None] == specifications[:, None]).int().argmax(1))
