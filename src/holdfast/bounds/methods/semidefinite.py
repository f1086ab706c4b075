"""Semidefinite bounds: the multipliers of a quadratic Lagrangian, found by ascent, proved by a Cholesky factorisation.

For given multipliers the best ``kappa`` belongs to the least ``v' M v / 2`` over matrices ``V V'`` with unit rows, which
descent on ``V`` of low rank finds (Burer and Monteiro 2003, https://doi.org/10.1007/s10107-002-0352-8), and the gradient
of the multipliers is what each constraint is worth there. Descent and ascent take turns, beginning where alpha-CROWN
ends. Nothing of that needs to converge: what counts is whether the matrix they end with is positive definite.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.bounds.methods.alpha import ascend_rows
from holdfast.bounds.methods.base import RadiusResult, RadiusSearch, RegionAt
from holdfast.bounds.methods.crown import Relaxed, Slopes, minimise
from holdfast.bounds.methods.lagrangian import KINDS, Duals, Lagrangian, positive
from holdfast.bounds.network.forms import Form, chosen
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.regions import Region, require_box
from holdfast.bounds.relaxations.rules import Box, LinearRelaxation
from holdfast.bounds.seeking import bisected
from holdfast.bounds.subdomains.receptive_fields import refine
from holdfast.bounds.subdomains.subdomains import Tasks
from holdfast.core.errors import HoldfastError

DESCENTS = 2  # of the vectors, for each ascent of the multipliers
LAST = 60  # descents before a proof is tried
STRIDE, MOMENTUM = 0.3, 0.8
FLOOR = 0.02  # of kappa, as a share of its mean
HALVINGS = 14
HOPE = 0.005
"""Share by which a diagonal must be raisable before a proof is worth its time."""
SLOPES = 0.25  # steps of alpha-CROWN, and twice those of branch and bound
PARTS, BATCH = 1000, 32  # of branch and bound
BOXES, SPLITS = 0.15, 0.4  # shares of the time for inner layers, and for rows near zero
NEAR = 0.25  # of a row's clean value: how far below zero its bound may be
LARGEST = 15_000
"""The most variables of which a dense matrix is made: two gigabytes."""


@dataclass
class RecordedSlopes(Slopes):
    """Applies given slopes, and remembers the coefficients that met each ReLU and the slopes used."""

    slopes: dict[int, Tensor]
    coefs: dict[int, Tensor] = field(default_factory=dict)
    used: dict[int, Tensor] = field(default_factory=dict)

    def choose(self, node: int, form: Form, planes: LinearRelaxation) -> LinearRelaxation:
        slope = planes.lower[0][:, None]
        if planes.free is not None and node in self.slopes:
            slope = torch.where(planes.free[:, None], self.slopes[node], slope)
        self.coefs[node], self.used[node] = form.coef, slope
        return replace(planes, lower=(slope,))


@dataclass
class Ascent:
    """The state of the search for each of ``b`` rows: vectors, multipliers, and running means of their gradients."""

    exact: Lagrangian
    duals: Duals
    scales: Duals
    vectors: Float[Tensor, "b r n1"]
    rate: float
    problem: Lagrangian = field(init=False)
    """The same in single precision, for the search."""
    velocity: Tensor = field(init=False)
    sizes: Tensor = field(init=False)
    means: Duals = field(init=False)
    squares: Duals = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.problem = self.exact.cast(torch.float32)
        self.velocity = torch.zeros_like(self.vectors)
        self.sizes = lengths(self.problem.slope(self.vectors, self.duals)[1])
        self.means = {key: torch.zeros_like(value) for key, value in self.duals.items()}
        self.squares = {key: torch.zeros_like(value) for key, value in self.duals.items()}

    def pick(self, places: Int[Tensor, "a"]) -> Ascent:
        """Return that of some places, with new running means."""
        boxes = [Box(*(end[places] for end in box)) for box in self.exact.boxes]
        return Ascent(
            Lagrangian(self.exact.graph, boxes, self.exact.rows[places]),
            {key: value[places] for key, value in self.duals.items()},
            {key: value[places] for key, value in self.scales.items()},
            self.vectors[places],
            self.rate,
        )

    def resume(self, last: Ascent) -> None:
        """Take on what an ascent of the same rows over other regions ended with."""
        for key, value in last.duals.items():
            both = last.problem.free[key[0]] & self.problem.free[key[0]]
            self.duals[key] = torch.where(both, value, self.duals[key])
        self.vectors = last.vectors.clone()

    def descend(self, steps: int) -> None:
        """Move the vectors against their slope, each variable by its own scale, with unit length or less."""
        for _ in range(steps):
            _, slope = self.problem.slope(self.vectors, self.duals)
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
            leaves = {key: value.requires_grad_() for key, value in self.duals.items()}
            points = self.vectors.detach().requires_grad_()
            value = self.problem.value(points, leaves)
            slope, *gains = torch.autograd.grad(value.sum(), [points, *leaves.values()])
        self._move(slope)
        self.steps += 1
        step = self.rate * max(1 - share, 0.01)
        for (key, dual), gain in zip(self.duals.items(), gains, strict=True):
            scaled = gain * self.scales[key]
            self.means[key] = 0.9 * self.means[key] + 0.1 * scaled
            self.squares[key] = 0.99 * self.squares[key] + 0.01 * scaled * scaled
            mean, square = self.means[key] / (1 - 0.9**self.steps), self.squares[key] / (1 - 0.99**self.steps)
            moved = dual.detach() + step * self.scales[key] * mean / (square.sqrt() + 1e-12)
            self.duals[key] = moved if key[1] == "square" else moved.clamp_min(0)

    def kappa(self) -> Float[Tensor, "b n1"]:
        """Return what the vectors say of the best diagonal; its own bound is minus half its sum."""
        slope = self.problem.slope(self.vectors, self.duals)[1]
        kappa = -(self.vectors * slope).sum(1)
        return torch.cat([kappa[:, :1], kappa[:, 1:].clamp_min(0)], 1)

    def proved(self, place: int, kappa: Float[Tensor, "n1"], halvings: int) -> float:
        """Return a bound of one row that is proved; with no ``halvings``, 0 or nothing.

        The diagonal is raised in proportion to itself, as far as a positive bound allows, or by bisection.
        """
        problem = self.exact.pick(place)
        kappa = kappa[problem.kept].to(problem.rows.dtype)
        raised = torch.maximum(kappa.abs(), FLOOR * kappa[1:].mean())
        room = -float(kappa.sum() / raised.sum()) * (1 - 1e-6)
        if not halvings and room < HOPE:
            return -torch.inf
        dtype, one = problem.rows.dtype, slice(place, place + 1)
        matrix = problem.matrix({key: value[one].to(dtype) for key, value in self.duals.items()})
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
class Eased:
    """What is known of rows before the ascent: for each the relaxation over its own region, and a bound."""

    relaxed: Relaxed
    rows: Float[Tensor, "s d"]
    bounds: Float[Tensor, "s"]


@final
@dataclass(frozen=True)
class Semidefinite(RadiusSearch):
    """The bound of all neurons together, given ``seconds`` for an image and at most ``steps`` of ascent for a radius.

    Boxes and the first multipliers are those of alpha-CROWN after ``inner`` steps; branch and bound tightens the boxes,
    and tries rows whose bound is not far below zero. ``rank`` vectors stand for a matrix. A search for radii leaves time
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
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        found = torch.empty_like(rows[..., 0])
        for image in range(len(rows)):
            where = torch.zeros(len(rows[image]), dtype=torch.int64, device=rows.device)
            end = time.monotonic() + self.seconds
            eased = self._eased(graph, region.pick(image), where, rows[image], end, torch.inf)
            found[image] = eased.bounds
            if ascent := self._climbed(eased, torch.arange(len(where), device=rows.device), end, None):
                for row, kappa in enumerate(ascent.kappa()):
                    found[image, row] = max(float(found[image, row]), ascent.proved(row, kappa, HALVINGS))
        return found

    @torch.no_grad()
    def reach(
        self,
        graph: Graph,
        place: RegionAt,
        rows: Float[Tensor, "s d"],
        low: Float[Tensor, "s"],
        high: Float[Tensor, "s"],
    ) -> RadiusResult:
        require_box("semidefinite", place(low))
        last: tuple[Tensor, Ascent] | None = None

        def trial(region: Region, tried: Int[Tensor, "o"], where: Int[Tensor, "o"], end: float) -> Bool[Tensor, "o"]:
            nonlocal last  # multipliers serve the next radius too
            eased = self._eased(graph, region, where, rows[tried], end, 0.0)
            won = eased.bounds > 0
            hard = (~won).nonzero()[:, 0]
            ascent = self._climbed(eased, hard, end, _of(last, tried[hard])) if len(hard) else None
            if ascent:
                last = tried[hard], ascent
                for row, kappa in enumerate(ascent.kappa()):
                    won[hard[row]] = bool(kappa.sum() < 0) and ascent.proved(row, kappa, 0) >= 0
            return won

        return bisected(trial, place, low, high, self.rounds, self.seconds)

    def _eased(
        self,
        graph: Graph,
        region: Region,
        where: Int[Tensor, "s"],
        rows: Float[Tensor, "s d"],
        end: float,
        target: float,
    ) -> Eased:
        """Return what branch and bound says of rows, each over the region that ``where`` names."""
        require_box("semidefinite", region)
        relaxed = refine(graph, region, self.inner, SLOPES, BOXES * (end - time.monotonic()))
        tasks, per_row = Tasks(relaxed, where, rows, SLOPES / 2), relaxed.take(where)
        root = tasks.root(self.inner)
        clean = (rows * graph(per_row.region.centre[:, 0])).sum(1)
        near, bounds = (root.bounds > -NEAR * clean).nonzero()[:, 0], root.bounds
        if len(near):
            tasks, now = Tasks(relaxed, where[near], rows[near], SLOPES / 2), time.monotonic()
            parts = replace(root.pick(near), owner=torch.arange(len(near), device=near.device))
            bounds[near] = tasks.explored(parts, self.inner, PARTS, BATCH, now + SPLITS * (end - now), target)
        return Eased(per_row, rows, bounds)

    def _climbed(self, eased: Eased, which: Int[Tensor, "h"], end: float, last: Ascent | None) -> Ascent | None:
        """Return where the ascent ended, from the multipliers of ``last`` wherever they were free there."""
        begun = time.monotonic()
        relaxed, rows = eased.relaxed.take(which), eased.rows[which]
        _, best = ascend_rows(relaxed, rows[:, None], self.inner, SLOPES)
        problem = Lagrangian(relaxed.graph, relaxed.boxes, rows)
        if not any(bool(free.any()) for free in problem.free.values()):
            return None
        if (size := int((problem.widths > 0).sum(1).max())) > LARGEST:
            raise HoldfastError(f"semidefinite bounds are for up to {LARGEST:,} variables, got {size:,}; use alpha")
        ascent = self._begin(problem, relaxed, best)
        if last:
            ascent.resume(last)
        else:
            ascent.descend(LAST)
        # Proofs take their share of the time: about as long as one row's setting up.
        end -= 0.2 * (end - begun)
        for step in range(self.steps):
            share = max(step / self.steps, (time.monotonic() - begun) / max(end - begun, 1e-3))
            if share >= 1:
                break
            ascent.descend(DESCENTS - 1)
            ascent.ascend(share)
        ascent.descend(LAST)
        return ascent

    def _begin(self, problem: Lagrangian, relaxed: Relaxed, slopes: dict[int, Tensor]) -> Ascent:
        """Return the multipliers that make the Lagrangian's bound that of alpha-CROWN, and random vectors."""
        output, met = problem.graph.nodes[-1], RecordedSlopes(slopes)
        minimise(relaxed, output.index, chosen(problem.rows[:, None], output.shape), met)
        duals, scales = {}, {}
        for node, free in problem.free.items():
            zero = torch.zeros_like(problem.spans[node][0])
            # A ReLU that the rows do not depend on has met no coefficient.
            coef = met.coefs[node][:, 0] if node in met.coefs else zero
            slope = met.used[node][:, 0] if node in met.used else zero
            values = (zero, coef.clamp_min(0) * slope, coef.clamp_min(0) * (1 - slope), (-coef).clamp_min(0))
            scale = (coef.abs() * free).flatten(1).sum(1) / free.flatten(1).sum(1).clamp_min(1)
            scale = scale.reshape(-1, *(1,) * (zero.ndim - 1)).expand_as(zero)
            low, high = relaxed.boxes[problem.graph.nodes[node].inputs[0]]
            for kind, value in zip(KINDS, values, strict=True):
                duals[node, kind] = torch.where(free, value, 0.0).float()
                scaled = scale / (high - low) if kind == "square" else scale
                scales[node, kind] = torch.where(free, scaled, 0.0).float()
        shape = len(problem.rows), self.rank, problem.widths.shape[1] + 1
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        vectors = (noise / noise.norm(dim=1, keepdim=True)).to(problem.rows.device)
        return Ascent(problem, duals, scales, vectors, self.rate)


def lengths(vectors: Float[Tensor, "b r n1"]) -> Float[Tensor, "b 1 n1"]:
    """Return their norms over the r vectors, faster than torch's own."""
    return (vectors * vectors).sum(1, keepdim=True).sqrt()


def _of(last: tuple[Tensor, Ascent] | None, rows: Int[Tensor, "h"]) -> Ascent | None:
    """Return the last ascent of these rows, if there was one of all of them."""
    if last is None or not torch.isin(rows, last[0]).all():
        return None
    return last[1].pick((last[0][None] == rows[:, None]).int().argmax(1))
