"""Branch and bound on many rows at once: each has parts of its region, of which the worst are split in every round.

A part is a choice of half for some unstable ReLUs. A half is an inequality on the ReLU's input, which enters the bound
with a multiplier ``beta >= 0``, ascended together with the slopes (Wang et al. 2021, https://arxiv.org/abs/2103.06624).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.bounds.methods.crown import Relaxed, Slopes, minimise, per_turn
from holdfast.bounds.network.forms import Form, chosen
from holdfast.bounds.network.graph import RULES, Graph, Node
from holdfast.bounds.proved import known
from holdfast.bounds.relaxations.rules import Box, LinearRelaxation, Rule

Choices = dict[int, Float[Tensor, "p ..."]]
CONVEX = 1e-3
"""What a ReLU that is met by a positive coefficient counts beside others: its best slope already costs nothing."""
COPIES = 8
"""How many times the coefficients of a part are held at once."""


@dataclass
class Subdomains:
    """``p`` parts: the row that ``owner`` names, ``signs`` of split ReLUs (0: not split), slopes and multipliers.

    Choices are kept in less space than they are computed in: whatever they are, they are sound.
    """

    owner: Int[Tensor, "p"]
    signs: dict[int, Int[Tensor, "p ..."]]
    slopes: Choices
    betas: Choices
    bounds: Float[Tensor, "p"]
    where: Int[Tensor, "p"]
    """The ReLU whose relaxation costs most, as a position among all; -1 where none costs anything."""

    def __len__(self) -> int:
        return len(self.owner)

    def pick(self, which: Tensor) -> Subdomains:
        """Return the named parts."""
        signs, slopes, betas = (
            {node: values[which] for node, values in kind.items()} for kind in (self.signs, self.slopes, self.betas)
        )
        return Subdomains(self.owner[which], signs, slopes, betas, self.bounds[which], self.where[which])

    @classmethod
    def join(cls, several: Sequence[Subdomains]) -> Subdomains:
        """Return all parts of several batches."""
        signs, slopes, betas = (
            {node: torch.cat([kind[node] for kind in kinds]) for node in kinds[0]}
            for kinds in zip(*((part.signs, part.slopes, part.betas) for part in several), strict=True)
        )
        owner, bounds, where = (
            torch.cat(values)
            for values in zip(*((part.owner, part.bounds, part.where) for part in several), strict=True)
        )
        return cls(owner, signs, slopes, betas, bounds, where)

    def halved(self) -> Subdomains:
        """Return both halves of each part, split at its costliest ReLU: first all positive ones, then all negative."""
        both = Subdomains.join([self, self])
        sign = torch.ones_like(both.where, dtype=torch.int8)
        sign[len(self) :] = -1
        start = 0
        for signs in both.signs.values():
            flat, mine = signs.flatten(1), both.where - start
            inside = ((mine >= 0) & (mine < flat.shape[1])).nonzero()[:, 0]
            flat[inside, mine[inside]] = sign[inside]
            start += flat.shape[1]
        return both


@dataclass
class SubdomainSlopes(Slopes):
    """Slopes and multipliers of a batch of parts; remembers the coefficients that met each ReLU."""

    slopes: Choices
    betas: Choices
    signs: Choices
    seen: Choices = field(default_factory=dict)

    def choose(self, node: int, form: Form, planes: LinearRelaxation) -> LinearRelaxation:
        if node not in self.slopes or planes.free is None:
            return planes
        self.seen[node] = form.coef.detach()[:, 0]
        free, own = planes.free[:, None], self.slopes[node][:, None]
        return replace(planes, lower=(torch.where(free, own, planes.lower[0][:, None]),))

    def constrain(self, node: int, parts: Sequence[Form]) -> Sequence[Form]:
        if node not in self.betas:
            return parts
        (form,) = parts
        # sign * z >= 0 on this part, so a multiple of it may be taken from what is minimised.
        return [form.like(form.coef - (self.betas[node] * self.signs[node])[:, None])]


@dataclass(frozen=True)
class Tasks:
    """Rows to be bounded from below, each over the region and in the boxes of its ``place`` of those of ``relaxed``."""

    relaxed: Relaxed
    place: Int[Tensor, "t"]
    rows: Float[Tensor, "t d"]
    rate: float

    @property
    def graph(self) -> Graph:
        return self.relaxed.graph

    def relus(self) -> list[Node]:
        """Return the nodes that can be split."""
        return [node for node in self.graph.nodes if node.operation is RULES["relu"]]

    def root(self, steps: int) -> Subdomains:
        """Return the whole region of each row as one part, after ``steps`` of ascent."""
        slopes = {node.index: self.relaxed.planes[node.index].lower[0][self.place].float() for node in self.relus()}
        signs = {node: torch.zeros_like(slope, dtype=torch.int8) for node, slope in slopes.items()}
        betas = {node: torch.zeros_like(slope) for node, slope in slopes.items()}
        owner = torch.arange(len(self.rows), device=self.rows.device)
        least = torch.full_like(self.rows[:, 0], -torch.inf)
        return self.solved(Subdomains(owner, signs, slopes, betas, least, owner), steps)

    def solved(self, parts: Subdomains, steps: int) -> Subdomains:
        """Return the parts with what ``steps`` of ascent reach, a few at a time."""
        turns = torch.arange(len(parts)).split(per_turn(self.graph, self.graph.nodes[-1].index, COPIES))
        return Subdomains.join([self._solved(parts.pick(turn), steps) for turn in turns])

    def _solved(self, parts: Subdomains, steps: int) -> Subdomains:
        relaxed, output, dtype = self.split(parts), self.graph.nodes[-1], self.rows.dtype
        form = chosen(self.rows[parts.owner][:, None], output.shape)
        slopes, betas, signs = (
            {node: values.to(dtype, copy=True) for node, values in kind.items()}
            for kind in (parts.slopes, parts.betas, parts.signs)
        )
        halves, leaves = SubdomainSlopes(slopes, betas, signs), [*slopes.values(), *betas.values()]
        for leaf in leaves:
            leaf.requires_grad_()
        bounds = parts.bounds
        optimiser: torch.optim.Optimizer | None = None
        for step in range(steps + 1):
            with torch.set_grad_enabled(step < steps):
                bound = minimise(relaxed, output.index, form, halves)[:, 0]
            bounds = torch.maximum(bounds, known(bound.detach()))
            if not bound.requires_grad:  # the last step, or there is nothing to choose
                break
            optimiser = optimiser or self._optimiser(halves)
            optimiser.zero_grad()
            bound.backward(-torch.ones_like(bound))
            optimiser.step()
            for slope in slopes.values():
                slope.clamp_(0, 1)
            for beta in betas.values():
                beta.clamp_(min=0)
        slopes, betas = ({node: values.detach().float() for node, values in kind.items()} for kind in (slopes, betas))
        return Subdomains(parts.owner, parts.signs, slopes, betas, bounds, self._costliest(relaxed, halves))

    def _optimiser(self, halves: SubdomainSlopes) -> torch.optim.Optimizer:
        # A multiplier acts on the scale of the coefficients it is taken from.
        scales = {node: coef.abs().sum() / (coef != 0).sum().clamp_min(1) for node, coef in halves.seen.items()}
        groups = [{"params": [halves.betas[node]], "lr": self.rate * float(scale)} for node, scale in scales.items()]
        return torch.optim.Adam([{"params": list(halves.slopes.values()), "lr": self.rate}, *groups])

    def _costliest(self, relaxed: Relaxed, halves: SubdomainSlopes) -> Int[Tensor, "p"]:
        """Return the ReLU whose plane is farthest off at the tip of its triangle, times the coefficient that meets it."""
        costs = []
        for node, slope in halves.slopes.items():
            planes, coef = relaxed.planes[node], halves.seen.get(node, torch.zeros_like(slope))
            low, high = relaxed.boxes[self.graph.nodes[node].inputs[0]]
            assert planes.free is not None
            assert planes.ceiling is not None
            gap = torch.maximum(slope.detach() * -low, (1 - slope.detach()) * high)
            cost = torch.where(coef < 0, -coef * planes.ceiling, CONVEX * coef * gap)
            costs.append(torch.where(planes.free, cost, 0.0).flatten(1))
        if not costs:
            return torch.full_like(self.place[:1], -1).expand(len(relaxed.region.centre))
        most = torch.cat(costs, 1).max(1)
        return torch.where(most.values > 0, most.indices, -1)

    def split(self, parts: Subdomains) -> Relaxed:
        """Return the relaxation of each part, with the split inputs cut to their halves."""
        place, whole = self.place[parts.owner], self.relaxed
        boxes = [Box(*(end[place] for end in box)) for box in whole.boxes]
        relaxed = Relaxed(self.graph, whole.region.take(place), boxes)
        for node in self.graph.nodes:
            if not isinstance(node.operation, Rule):
                continue
            inputs = [boxes[i] for i in node.inputs]
            if node.index in parts.signs:
                (low, high), sign = inputs[0], parts.signs[node.index]
                inputs = [
                    Box(
                        torch.where(sign > 0, low.clamp_min(0), low),
                        torch.where(sign < 0, high.clamp_max(0), high),
                    )
                ]
            relaxed.planes[node.index] = node.operation.relax(*inputs)
        return relaxed

    def explored(
        self, parts: Subdomains, steps: int, most: int, batch: int, end: float, target: float = 0.0
    ) -> Float[Tensor, "t"]:
        """Return bounds by splitting the worst parts of rows that are not yet above ``target``, until nothing helps.

        Args:
            parts: that there are to begin with.
            steps: of ascent for each part.
            most: parts that a row may have.
            batch: parts to be split in a round, at least one of each row.
            end: of the time, by the monotonic clock.
            target: a bound that is enough.
        """
        closed, made = torch.full_like(self.rows[:, 0], torch.inf), 1
        while True:
            done = parts.bounds > target
            closed = _least(closed, parts.pick(done))
            parts = parts.pick(~done)
            share = max(1, batch // max(len(parts.owner.unique()), 1))
            worst = _worst(parts, share)
            made += share
            if made > most or not worst.any() or time.monotonic() > end:
                return _least(closed, parts)
            parts = Subdomains.join([parts.pick(~worst), self.solved(parts.pick(worst).halved(), steps)])


def _least(closed: Float[Tensor, "t"], parts: Subdomains) -> Float[Tensor, "t"]:
    """Return the least bound over all parts of each row."""
    return closed.scatter_reduce(0, parts.owner, parts.bounds, "amin")


def _worst(parts: Subdomains, share: int) -> Tensor:
    """Return which parts to split: of each row those with the least bounds, unless the very least cannot be split."""
    order = parts.bounds.argsort()
    order = order[parts.owner[order].argsort(stable=True)]
    _, row, counts = parts.owner[order].unique_consecutive(return_inverse=True, return_counts=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[row]
    stuck = parts.owner[(parts.where < 0) & (rank == 0)]
    return (rank < share) & (parts.where >= 0) & ~torch.isin(parts.owner, stuck)
