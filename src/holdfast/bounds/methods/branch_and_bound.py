"""Branch and bound on many specifications at once: in every round, the worst subdomains of each are split.

A subdomain fixes the sign of the input of some unstable ReLUs. Each sign is an inequality, which enters the bound
with a multiplier ``multiplier >= 0``, ascended together with the slopes (Wang et al. 2021, https://arxiv.org/abs/2103.06624).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from holdfast.bounds.methods.base import vacuous_unless_finite
from holdfast.bounds.methods.crown import NetworkRelaxation, RelaxationParameters, chunk_size, minimise, taken
from holdfast.bounds.network.forms import Form, dense_form
from holdfast.bounds.network.network_graph import RULES, Graph, Node
from holdfast.bounds.relaxations import Box, LinearRelaxation
from holdfast.core.balls import column

Choices = dict[int, Float[Tensor, "p ..."]]
CONVEX = 1e-3
"""Weight of ReLUs with positive coefficients in the choice of the next split: with their best slope they lose little."""
COPIES = 8
"""How many copies of a subdomain's coefficients are in memory at once."""


@dataclass
class Subdomains:
    """``p`` subdomains of the specifications ``owner``: ``signs`` of split ReLUs (0: not split), slopes and multipliers.

    Slopes and multipliers are kept in single precision: every choice of them is sound.
    """

    owner: Int[Tensor, "p"]
    signs: dict[int, Int[Tensor, "p ..."]]
    slopes: Choices
    multipliers: Choices
    bounds: Float[Tensor, "p"]
    branching: Int[Tensor, "p"]
    """The ReLU to be split next, as a position among all; -1 where no split would help."""

    def __len__(self) -> int:
        return len(self.owner)

    def pick(self, which: Tensor) -> Subdomains:
        """Return the named subdomains."""
        return Subdomains(*taken([getattr(self, part.name) for part in fields(self)], which))

    def where(self, chosen: Bool[Tensor, "p"], others: Subdomains) -> Subdomains:
        """Return the same subdomains with the slopes and multipliers of ``others`` where ``chosen``."""
        slopes, multipliers = (
            {node: torch.where(column(chosen, values), theirs[node], values) for node, values in mine.items()}
            for mine, theirs in ((self.slopes, others.slopes), (self.multipliers, others.multipliers))
        )
        return replace(self, slopes=slopes, multipliers=multipliers)

    @classmethod
    def join(cls, several: Sequence[Subdomains]) -> Subdomains:
        """Return all subdomains of several batches."""
        parts = [[getattr(part, each.name) for each in fields(cls)] for part in several]
        return cls(*tree_map(lambda *values: torch.cat(values), *parts))

    def split(self) -> Subdomains:
        """Return both halves of each subdomain, split at its ReLU ``branching``: the positive halves first."""
        both = Subdomains.join([self, self])
        sign = torch.ones_like(both.branching, dtype=torch.int8)
        sign[len(self) :] = -1
        start = 0
        for signs in both.signs.values():
            flat, mine = signs.flatten(1), both.branching - start
            inside = ((mine >= 0) & (mine < flat.shape[1])).nonzero()[:, 0]
            flat[inside, mine[inside]] = sign[inside]
            start += flat.shape[1]
        return both


@dataclass
class SubdomainParameters(RelaxationParameters):
    """Slopes and multipliers of a batch of subdomains; records the coefficients of each ReLU's output."""

    slopes: Choices
    multipliers: Choices
    signs: Choices
    coefficients: Choices = field(default_factory=dict)

    def choose(self, node: int, form: Form, relaxation: LinearRelaxation) -> LinearRelaxation:
        if node not in self.slopes or relaxation.unstable is None:
            return relaxation
        self.coefficients[node] = form.coef.detach()[:, 0]
        unstable, slopes = relaxation.unstable[:, None], self.slopes[node][:, None]
        return relaxation._replace(lower=(torch.where(unstable, slopes, relaxation.lower[0][:, None]),))

    def constrain(self, node: int, parts: Sequence[Form]) -> Sequence[Form]:
        if node not in self.multipliers:
            return parts
        (form,) = parts
        # sign * z >= 0 on this subdomain, so a nonnegative multiple of it may be subtracted from what is minimised.
        return [form.like(form.coef - (self.multipliers[node] * self.signs[node])[:, None])]


@dataclass(frozen=True)
class BranchAndBound:
    """Specifications to be bounded from below, each over the region of ``network`` that ``region_index`` names."""

    network: NetworkRelaxation
    region_index: Int[Tensor, "t"]
    specifications: Float[Tensor, "t d"]
    rate: float

    @property
    def graph(self) -> Graph:
        return self.network.graph

    def splittable(self) -> list[Node]:
        """Return the nodes that can be split."""
        return [node for node in self.graph.nodes if node.operation is RULES["relu"]]

    def root(self, steps: int) -> Subdomains:
        """Return the whole region of each specification as one subdomain, after ``steps`` of ascent."""
        slopes = {
            node.index: self.network.linear_relaxations[node.index].lower[0][self.region_index].float()
            for node in self.splittable()
        }
        signs = {node: torch.zeros_like(slope, dtype=torch.int8) for node, slope in slopes.items()}
        multipliers = {node: torch.zeros_like(slope) for node, slope in slopes.items()}
        owner = torch.arange(len(self.specifications), device=self.specifications.device)
        least = torch.full_like(self.specifications[:, 0], -torch.inf)
        return self.bound(Subdomains(owner, signs, slopes, multipliers, least, owner), steps)

    def bound(self, subdomains: Subdomains, steps: int) -> Subdomains:
        """Return the subdomains with bounds after ``steps`` of ascent, computed in chunks."""
        chunks = torch.arange(len(subdomains)).split(chunk_size(self.graph, self.graph.nodes[-1].index, COPIES))
        return Subdomains.join([self._bound_chunk(subdomains.pick(chunk), steps) for chunk in chunks])

    def _bound_chunk(self, subdomains: Subdomains, steps: int) -> Subdomains:
        network, output, dtype = self.relax(subdomains), self.graph.nodes[-1], self.specifications.dtype
        form = dense_form(self.specifications[subdomains.owner][:, None], output.shape)
        free = subdomains.slopes, subdomains.multipliers, subdomains.signs
        slopes, multipliers, signs = tree_map_only(Tensor, lambda values: values.to(dtype, copy=True), free)
        parameters, leaves = SubdomainParameters(slopes, multipliers, signs), [*slopes.values(), *multipliers.values()]
        for leaf in leaves:
            leaf.requires_grad_()
        bounds = subdomains.bounds
        optimiser: torch.optim.Optimizer | None = None
        for step in range(steps + 1):
            with torch.set_grad_enabled(step < steps):
                bound = minimise(network, output.index, form, parameters)[:, 0]
            bounds = torch.maximum(bounds, vacuous_unless_finite(bound.detach()))
            if not bound.requires_grad:  # the last step, or no parameter is free
                break
            optimiser = optimiser or self._optimiser(parameters)
            optimiser.zero_grad()
            bound.backward(-torch.ones_like(bound))
            optimiser.step()
            for slope in slopes.values():
                slope.clamp_(0, 1)
            for multiplier in multipliers.values():
                multiplier.clamp_(min=0)
        branching = self._costliest(network, parameters)
        slopes, multipliers = tree_map_only(Tensor, lambda values: values.detach().float(), (slopes, multipliers))
        return replace(subdomains, slopes=slopes, multipliers=multipliers, bounds=bounds, branching=branching)

    def _optimiser(self, parameters: SubdomainParameters) -> torch.optim.Optimizer:
        # A multiplier acts on the scale of the coefficients it is taken from.
        groups = [{"params": list(parameters.slopes.values()), "lr": self.rate}]
        for node, coef in parameters.coefficients.items():
            scale = float(coef.abs().sum() / (coef != 0).sum().clamp_min(1))
            groups.append({"params": [parameters.multipliers[node]], "lr": self.rate * scale})
        return torch.optim.Adam(groups)

    def _costliest(self, network: NetworkRelaxation, parameters: SubdomainParameters) -> Int[Tensor, "p"]:
        """Return the ReLU whose relaxation is loosest at the tip of its triangle, weighted by its coefficient."""
        costs = []
        for node, slope in parameters.slopes.items():
            relaxation = network.linear_relaxations[node]
            coef = parameters.coefficients.get(node, torch.zeros_like(slope))
            low, high = network.intermediate_bounds[self.graph.nodes[node].inputs[0]]
            assert relaxation.unstable is not None
            assert relaxation.ceiling is not None
            gap = torch.maximum(slope.detach() * -low, (1 - slope.detach()) * high)
            cost = torch.where(coef < 0, -coef * relaxation.ceiling, CONVEX * coef * gap)
            costs.append(torch.where(relaxation.unstable, cost, 0.0).flatten(1))
        if not costs:
            return torch.full_like(self.region_index[:1], -1).expand(len(network.region.centre))
        most = torch.cat(costs, 1).max(1)
        return torch.where(most.values > 0, most.indices, -1)

    def relax(self, subdomains: Subdomains) -> NetworkRelaxation:
        """Return the relaxation over each subdomain, with the inputs of split ReLUs clipped to their sign."""
        regions, whole = self.region_index[subdomains.owner], self.network
        boxes, rounding = taken((whole.intermediate_bounds, whole.rounding), regions)
        network = NetworkRelaxation(self.graph, whole.region.take(regions), boxes, rounding=rounding)
        for node in self.graph.nodes:
            clipped: tuple[Box, ...] = ()
            if node.index in subdomains.signs:
                (low, high), sign = boxes[node.inputs[0]], subdomains.signs[node.index]
                low, high = torch.where(sign > 0, low.clamp_min(0), low), torch.where(sign < 0, high.clamp_max(0), high)
                clipped = (Box(low, high),)
            network.relax_node(node, *clipped)
        return network

    def settled(self, subdomains: Subdomains, steps: int) -> Subdomains:
        """Return the subdomains with slopes and multipliers that give positive bounds by themselves, as far as they are met.

        The search keeps the last ones, and the best bound that any have given; here up to ``steps`` more are tried.
        """
        kept, positive = subdomains, torch.zeros_like(subdomains.bounds, dtype=torch.bool)
        vacuous = torch.full_like(subdomains.bounds, -torch.inf)
        for _ in range(1 + steps):
            alone = self.bound(replace(subdomains, bounds=vacuous), 0)
            fresh = (alone.bounds > 0) & ~positive
            kept, positive = kept.where(fresh, subdomains), positive | fresh
            if bool(positive.all()):
                break
            subdomains = self.bound(subdomains, 1)
        return kept

    def solve(
        self,
        subdomains: Subdomains,
        steps: int,
        most: int,
        batch: int,
        end: float,
        target: float = 0.0,
        keep: Callable[[Subdomains], None] = lambda leaves: None,
    ) -> Float[Tensor, "t"]:
        """Return bounds by splitting the worst subdomains, until all are above ``target`` or nothing helps.

        Args:
            subdomains: the initial ones.
            steps: of ascent for each subdomain.
            most: subdomains of a specification.
            batch: subdomains to be split in a round, at least one of each specification.
            end: deadline, by the monotonic clock.
            target: a bound that is enough.
            keep: called with the subdomains that are proved, and at the end with those that are left.
        """
        closed, created = torch.full_like(self.specifications[:, 0], torch.inf), 1
        while True:
            done = subdomains.bounds > target
            closed = _least_bounds(closed, subdomains.pick(done))
            keep(subdomains.pick(done))
            subdomains = subdomains.pick(~done)
            share = max(1, batch // max(len(subdomains.owner.unique()), 1))
            worst = _to_split(subdomains, share)
            created += share
            if created > most or not worst.any() or time.monotonic() > end:
                keep(subdomains)
                return _least_bounds(closed, subdomains)
            subdomains = Subdomains.join([subdomains.pick(~worst), self.bound(subdomains.pick(worst).split(), steps)])


def _least_bounds(closed: Float[Tensor, "t"], subdomains: Subdomains) -> Float[Tensor, "t"]:
    """Return the least bound over all subdomains of each specification."""
    return closed.scatter_reduce(0, subdomains.owner, subdomains.bounds, "amin")


def _to_split(subdomains: Subdomains, share: int) -> Tensor:
    """Return which subdomains to split: those with the least bounds, unless the very least cannot be split."""
    order = subdomains.bounds.argsort()
    order = order[subdomains.owner[order].argsort(stable=True)]
    _, group, counts = subdomains.owner[order].unique_consecutive(return_inverse=True, return_counts=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[group]
    stuck = subdomains.owner[(subdomains.branching < 0) & (rank == 0)]
    return (rank < share) & (subdomains.branching >= 0) & ~torch.isin(subdomains.owner, stuck)
