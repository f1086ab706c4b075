"""Branch and bound: unstable ReLUs are split into their two halves until every part is certified.

A half is an inequality on the ReLU's input, which enters the bound with a multiplier ``beta >= 0``, ascended together
with the slopes (Wang et al. 2021, https://arxiv.org/abs/2103.06624). The parts of one row are bounded in batches, those
with the lowest bounds first; the least bound over all parts bounds the row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.bounds.alpha import ascend, ascend_rows
from holdfast.bounds.crown import Relaxed, Slopes, minimise, relax
from holdfast.bounds.forms import Form, chosen
from holdfast.bounds.graph import RULES, Graph
from holdfast.bounds.method import Method
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box, Planes


@dataclass
class Parts:
    """Parts of a row's region: for each ReLU node the ``signs`` of its split inputs (0: not split) and multipliers."""

    signs: dict[int, Int[Tensor, "p ..."]]
    betas: dict[int, Float[Tensor, "p ..."]]
    bounds: Float[Tensor, "p"]

    def __len__(self) -> int:
        return len(self.bounds)

    def pick(self, rows: Int[Tensor, "q"]) -> Parts:
        """Return the named parts."""
        return Parts(
            {node: signs[rows] for node, signs in self.signs.items()},
            {node: betas[rows] for node, betas in self.betas.items()},
            self.bounds[rows],
        )

    @classmethod
    def join(cls, parts: list[Parts]) -> Parts:
        """Return all parts of several batches."""
        return cls(
            {node: torch.cat([part.signs[node] for part in parts]) for node in parts[0].signs},
            {node: torch.cat([part.betas[node] for part in parts]) for node in parts[0].betas},
            torch.cat([part.bounds for part in parts]),
        )


@dataclass
class Halves(Slopes):
    """Slopes and multipliers of a batch of parts; remembers the coefficients that met each ReLU."""

    slopes: dict[int, Float[Tensor, "p 1 ..."]]
    betas: dict[int, Float[Tensor, "p 1 ..."]]
    signs: dict[int, Float[Tensor, "p 1 ..."]]
    seen: dict[int, Float[Tensor, "p 1 ..."]] = field(default_factory=dict)

    def choose(self, node: int, form: Form, planes: Planes) -> Planes:
        if node not in self.slopes or planes.free is None:
            return planes
        self.seen[node] = form.coef.detach()
        return replace(planes, lower=(torch.where(planes.free[:, None], self.slopes[node], planes.lower[0][:, None]),))

    def constrain(self, node: int, parts: Sequence[Form]) -> Sequence[Form]:
        if node not in self.betas:
            return parts
        (form,) = parts
        # sign * z >= 0 on this part, so a multiple of it may be taken from what is minimised.
        return [form.like(form.coef - self.betas[node] * self.signs[node])]


@dataclass
class Problem:
    """One row over one image's region, relaxed at the root."""

    relaxed: Relaxed
    row: Float[Tensor, "1 1 d"]
    slopes: dict[int, Float[Tensor, "1 1 ..."]]
    """Those optimised at the root, from which every part starts."""
    rate: float

    def root(self, bound: Float[Tensor, ""]) -> Parts:
        """Return the whole region as one part."""
        shapes = {node: self.relaxed.graph.nodes[node].shape for node in self.slopes}
        return Parts(
            {node: torch.zeros((1, *shape), dtype=torch.int8, device=bound.device) for node, shape in shapes.items()},
            {node: torch.zeros((1, *shape), dtype=bound.dtype, device=bound.device) for node, shape in shapes.items()},
            bound.reshape(1),
        )

    def solve(self, parts: Parts, steps: int) -> tuple[Float[Tensor, "p"], Parts, Halves]:
        """Return the parts' bounds after ``steps`` of ascent, the parts with their multipliers, and what was seen."""
        relaxed, count = self.split(parts), len(parts)
        slopes = {node: start.expand(count, *start.shape[1:]).clone() for node, start in self.slopes.items()}
        halves = Halves(
            slopes,
            {node: betas[:, None].clone() for node, betas in parts.betas.items()},
            {node: signs[:, None].to(self.row.dtype) for node, signs in parts.signs.items()},
        )
        output = self.relaxed.graph.nodes[-1]
        form = chosen(self.row.expand(count, -1, -1), output.shape)
        best = minimise(relaxed, output.index, form, halves)[:, 0]
        if steps:
            best = torch.fmax(best, self._ascend(relaxed, form, halves, steps))
        betas = {node: values.detach()[:, 0] for node, values in halves.betas.items()}
        return torch.fmax(best, parts.bounds), Parts(parts.signs, betas, parts.bounds), halves

    def _ascend(self, relaxed: Relaxed, form: Form, halves: Halves, steps: int) -> Float[Tensor, "p"]:
        leaves = [*halves.slopes.values(), *halves.betas.values()]
        for leaf in leaves:
            leaf.requires_grad_()
        groups = [
            {"params": list(halves.slopes.values()), "lr": self.rate},
            # A multiplier acts on the scale of the coefficients it is taken from.
            *(
                {"params": [beta], "lr": self.rate * float(halves.seen[n].abs().mean())}
                for n, beta in halves.betas.items()
            ),
        ]
        optimiser = torch.optim.Adam(groups)
        best = torch.full_like(form.coef[:, 0].flatten(1)[:, 0], -torch.inf)
        with torch.enable_grad():
            for _ in range(steps):
                optimiser.zero_grad()
                bound = minimise(relaxed, self.relaxed.graph.nodes[-1].index, form, halves)[:, 0]
                best = torch.fmax(best, bound.detach())
                (-bound.sum()).backward()
                optimiser.step()
                with torch.no_grad():
                    for slope in halves.slopes.values():
                        slope.clamp_(0, 1)
                    for beta in halves.betas.values():
                        beta.clamp_(min=0)
        bound = minimise(relaxed, self.relaxed.graph.nodes[-1].index, form, halves)[:, 0].detach()
        return torch.fmax(best, bound)

    def candidates(self, parts: Parts, halves: Halves, count: int) -> Int[Tensor, "p k"]:
        """Return the ReLUs of each part whose relaxation costs most, as positions among all; -1 where none is left.

        The cost is the height of the triangle at its tip, times the coefficient that meets it.
        """
        relaxed, scores = self.split(parts), []
        for node in parts.signs:
            planes, coef, slope = relaxed.planes[node], halves.seen[node][:, 0], halves.slopes[node].detach()[:, 0]
            low, high = relaxed.boxes[self.source(node)]
            assert planes.free is not None
            assert planes.ceiling is not None
            gap = torch.maximum(slope * -low, (1 - slope) * high)
            cost = torch.where(coef < 0, -coef * planes.ceiling, coef * gap)
            scores.append(torch.where(planes.free, cost, -1.0).flatten(1))
        every = torch.cat(scores, 1)
        best = every.topk(min(count, every.shape[1]), 1)
        return torch.where(best.values >= 0, best.indices, -1)

    def source(self, node: int) -> int:
        """Return the node whose values the ReLU takes."""
        return self.relaxed.graph.nodes[node].inputs[0]

    def halve(self, parts: Parts, where: Int[Tensor, "p"]) -> Parts:
        """Return both halves of each part, split at the named ReLU: first all positive ones, then all negative."""
        both = Parts.join([parts, parts])
        sign = torch.cat([torch.ones_like(where), -torch.ones_like(where)]).to(torch.int8)
        start = 0
        for signs in both.signs.values():
            flat = signs.flatten(1)
            mine = torch.cat([where, where]) - start
            inside = ((mine >= 0) & (mine < flat.shape[1])).nonzero()[:, 0]
            flat[inside, mine[inside]] = sign[inside]
            start += flat.shape[1]
        return both

    def split(self, parts: Parts) -> Relaxed:
        """Return the root's relaxation with the split inputs cut to their halves."""
        relaxed = Relaxed(self.relaxed.graph, self.relaxed.region, list(self.relaxed.boxes), dict(self.relaxed.planes))
        for node, signs in parts.signs.items():
            source = relaxed.graph.nodes[node].inputs[0]
            low, high = self.relaxed.boxes[source]
            low = torch.where(signs > 0, low.clamp_min(0), low)
            high = torch.where(signs < 0, high.clamp_max(0), high)
            relaxed.planes[node] = RULES["relu"].relax(Box(low, high))
        return relaxed


@final
@dataclass(frozen=True)
class Branch(Method):
    """Optimised slopes, then branch and bound on each row that is not yet above ``target``.

    ``parts`` limits how many parts a row may have and ``seconds`` the time of an image; ``tries`` splits are compared
    for each part before the best is taken; ``batch`` parts are bounded at a time, by ``ascent`` steps.
    """

    seconds: float = 60.0
    parts: int = 20_000
    target: float = 0.0
    ascent: int = 10
    tries: int = 4
    batch: int = 32
    steps: int = 30
    inner: int = 20
    rate: float = 0.25
    name = "branch"

    @torch.no_grad()
    def __call__(self, graph: Graph, region: Region, rows: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        found = torch.empty_like(rows[..., 0])
        for image in range(len(rows)):
            found[image] = self.bound(graph, region.pick(image), rows[image])
        return found

    def bound(self, graph: Graph, region: Region, rows: Float[Tensor, "s d"]) -> Float[Tensor, "s"]:
        """Return lower bounds for the rows of one image, the most promising first."""
        end = time.monotonic() + self.seconds
        relaxed = relax(graph, region, bounder=partial(ascend, steps=self.inner, rate=self.rate))
        (found,), best = ascend_rows(relaxed, rows[None], self.steps, self.rate)
        left = [row for row in found.argsort(descending=True).tolist() if not found[row] > self.target]
        for position, row in enumerate(left):
            slopes = {node: values[:, row : row + 1] for node, values in best.items()}
            problem = Problem(relaxed, rows[None, row : row + 1], slopes, self.rate / 2)
            now = time.monotonic()
            found[row] = self.explore(problem, found[row], now + (end - now) / (len(left) - position))
        return found

    def explore(self, problem: Problem, start: Float[Tensor, ""], end: float) -> Float[Tensor, ""]:
        """Return the least bound over the parts that were reached by ``end``."""
        if not problem.slopes:  # no ReLU is unstable, so there is nothing to split
            return start
        open_parts, closed = problem.root(start), torch.full_like(start, torch.inf)
        made = 1
        while len(open_parts) and made < self.parts and time.monotonic() < end:
            order = open_parts.bounds.argsort()
            batch, rest = open_parts.pick(order[: self.batch]), open_parts.pick(order[self.batch :])
            where = self.choose(problem, batch)
            if bool((where < 0).any()):  # nothing is left to split: the least bound stands
                break
            halves = problem.halve(batch, where)
            bounds, solved, _ = problem.solve(halves, self.ascent)
            made += len(batch)
            solved.bounds = bounds
            done = bounds > self.target
            closed = torch.minimum(closed, torch.where(done, bounds, torch.inf).min())
            open_parts = Parts.join([rest, solved.pick((~done).nonzero()[:, 0])])
        return torch.minimum(closed, open_parts.bounds.min()) if len(open_parts) else closed

    def choose(self, problem: Problem, parts: Parts) -> Int[Tensor, "p"]:
        """Return the ReLU to split in each part: of the costliest, the one whose worse half is best."""
        _, _, halves = problem.solve(parts, 0)
        places = problem.candidates(parts, halves, self.tries)
        worse = []
        for place in places.unbind(1):
            bounds, _, _ = problem.solve(problem.halve(parts, place.clamp_min(0)), 0)
            worse.append(torch.where(place < 0, -torch.inf, bounds.unflatten(0, (2, -1)).amin(0)))
        best = torch.stack(worse, 1).argmax(1, keepdim=True)
        return places.gather(1, best)[:, 0]
