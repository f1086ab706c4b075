"""Proofs of certificates, recorded during the fast search for bounds.

The traced network is first lowered to plain arrays.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from holdfast.bounds.methods.alpha import Alpha, RecordedSlopes, ascend_slopes, ascend_specifications
from holdfast.bounds.methods.base import Crown, Interval, Method
from holdfast.bounds.methods.branch import Branch
from holdfast.bounds.methods.branch_and_bound import BranchAndBound, Subdomains
from holdfast.bounds.methods.crown import NetworkRelaxation, minimise, output_bounds, relax, unit_vectors
from holdfast.bounds.methods.interval import intermediate_bounds
from holdfast.bounds.network.forms import Form, dense_form
from holdfast.bounds.network.network_graph import RULES, Affine, Graph
from holdfast.bounds.proofs.proof import Claim, Leaves, Matrix, PlainNetwork, Step
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError

# Proofs of certificates, made by the fast bounds: what a search has chosen is written down while it is chosen.
#
# Intermediate bounds are those of the method without receptive fields, whose small networks no proof holds:
# ``branch`` may prove a little less here than where it certifies. Claims are a little wider than what was found,
# since the checker counts rounding.

WIDER = 1e-9
"""By which claims are wider than what was found, as a fraction of their size."""


@dataclass
class Recorder:
    """Bounds forms by optimised slopes and writes down, for each step, which forms and which slopes."""

    steps: int
    rate: float
    rows: dict[int, list[tuple[Tensor, Tensor, dict[int, Any]]]] = field(default_factory=dict)

    def __call__(self, network: NetworkRelaxation, target: int, form: Form) -> Tensor:
        from scipy.sparse import csr_array

        slopes = RecordedSlopes()
        ascend_slopes(network, target, form, self.steps, self.rate, slopes)
        # Slopes are kept in single precision, and what counts is the bound that they give as they are kept.
        slopes.slopes = {node: value.float().to(value.dtype) for node, value in slopes.best.items()}
        units = form.dense().coef[0].flatten(1)
        entries = units.abs().argmax(1)
        signs = units.gather(1, entries[:, None])[:, 0].to(torch.int8)
        sparse = {node: csr_array(value.float().cpu().numpy()) for node, value in slopes.dense().items()}
        self.rows.setdefault(target, []).append((entries, signs, sparse))
        return minimise(network, target, form, slopes).detach()

    def slopes_of(self, target: int) -> dict[str, Any]:
        """Return the entries, signs and slopes of a step's claim."""
        from scipy.sparse import csr_array, vstack

        if target not in self.rows:
            return {}
        entries, signs, sparse = zip(*self.rows[target], strict=True)
        nodes = {node for slopes in sparse for node in slopes}
        return {
            "entries": torch.cat(entries).cpu().numpy(),
            "signs": torch.cat(signs).cpu().numpy(),
            "slopes": {node: csr_array(vstack([slopes[node] for slopes in sparse])) for node in sorted(nodes)},
        }


@dataclass(frozen=True)
class Choices:
    """Content of an image's proof besides its pixels."""

    claims: dict[int, Claim]
    slopes: dict[int, NDArray[Any]]
    leaves: Leaves


def check_provable(method: Method) -> None:
    """Raise unless proofs of bounds by ``method`` can be kept."""
    if not isinstance(method, (Interval, Crown, Alpha, Branch)):
        raise HoldfastError(
            f"proofs are kept of the methods interval, crown, alpha and branch, not of {method.name}; leave out --proofs"
        )


def choices(graph: Graph, region: Region, specifications: Float[Tensor, "1 s d"], method: Method) -> Choices:
    """Return choices that prove all ``specifications`` of a single image positive over ``region``, as far as found.

    Whether it does is for the program that checks proofs to say.

    Raises:
        HoldfastError: no proof of such bounds can be kept.
    """
    check_provable(method)
    with torch.no_grad():
        network, recorder = _relaxed(graph, region, specifications, method)
        leaves = _leaves(network, specifications[0], method)
    targets = {node.inputs[0] for node in graph.nodes if node.operation is RULES["relu"]}
    claims = {target: _claim(network.intermediate_bounds[target], recorder, target) for target in sorted(targets)}
    return Choices(claims, {node: slopes[0] for node, slopes in _shared(network, 1).items()}, leaves)


def _relaxed(
    graph: Graph, region: Region, specifications: Float[Tensor, "1 s d"], method: Method
) -> tuple[NetworkRelaxation, Recorder | None]:
    """Return the relaxation that the specifications are bounded with, and the slopes of its intermediate bounds."""
    if isinstance(method, Interval):
        return NetworkRelaxation.within(graph, region, intermediate_bounds(graph, region)), None
    if isinstance(method, Crown):
        ways = (True, False) if method.joint else (False,)
        tries = [relax(graph, region, with_intervals) for with_intervals in ways]
        least = [output_bounds(network, specifications).min() for network in tries]
        return tries[int(torch.stack(least).argmax())], None
    assert isinstance(method, (Alpha, Branch))
    recorder = Recorder(method.inner, method.rate)
    return relax(graph, region, bounder=recorder), recorder


def _claim(box: Box, recorder: Recorder | None, target: int) -> Claim:
    low, high = (end[0].flatten().double().cpu().numpy() for end in box)
    room = WIDER * (np.maximum(np.abs(low), np.abs(high)) + 1e-3 * max(np.abs(low).max(), np.abs(high).max()))
    return Claim(low - room, high + room, **(recorder.slopes_of(target) if recorder else {}))


def _shared(network: NetworkRelaxation, count: int) -> dict[int, NDArray[Any]]:
    """Return the lower slopes of the relaxation, repeated."""
    return {
        node: np.repeat(relaxation.lower[0][:1].flatten(1).double().cpu().numpy(), count, 0)
        for node, relaxation in network.linear_relaxations.items()
    }


def _leaves(network: NetworkRelaxation, specifications: Float[Tensor, "s d"], method: Method) -> Leaves:
    """Return the subdomains of each specification: one, unless bounds are those of ``branch``."""
    if isinstance(method, Branch):
        return _branched(network, specifications, method)
    slopes = _shared(network, len(specifications))
    if isinstance(method, Alpha):
        _, best = ascend_specifications(network, specifications[None], method.steps, method.rate)
        slopes |= {node: value[0].flatten(1).double().cpu().numpy() for node, value in best.items()}
    signs = {node: np.zeros(value.shape, np.int8) for node, value in slopes.items()}
    multipliers = {node: np.zeros_like(value) for node, value in slopes.items()}
    return Leaves(np.arange(len(specifications)), signs, slopes, multipliers)


def _branched(network: NetworkRelaxation, specifications: Float[Tensor, "s d"], method: Branch) -> Leaves:
    """Return the leaves of branch and bound, each with the slopes and multipliers of its own best bound."""
    regions = torch.zeros(len(specifications), dtype=torch.int64, device=specifications.device)
    problem = BranchAndBound(network, regions, specifications, method.rate / 2)
    closed, end = list[Subdomains](), time.monotonic() + method.seconds
    limits = (method.ascent, method.parts, method.batch, end, method.target)
    problem.solve(problem.root(method.steps), *limits, closed.append)
    leaves = Subdomains.join([problem.settled(part, method.steps) for part in closed if len(part)])

    def arrays(kind: dict[int, Tensor], dtype: type) -> dict[int, NDArray[Any]]:
        return {node: values.flatten(1).cpu().numpy().astype(dtype) for node, values in kind.items()}

    slopes, multipliers = (arrays(kind, np.float64) for kind in (leaves.slopes, leaves.multipliers))
    return Leaves(leaves.owner.cpu().numpy(), arrays(leaves.signs, np.int8), slopes, multipliers)


ROWS = 256
"""Rows of a matrix that are made at a time."""


def check_plain(graph: Graph) -> None:
    """Raise unless proofs can be kept of a network: it has nothing but affine operations and ReLUs."""
    for node in graph.nodes:
        if node.operation and not isinstance(node.operation, Affine) and node.operation is not RULES["relu"]:
            raise HoldfastError(
                f"proofs are kept of networks of affine operations and ReLUs, not of {node.name!r}; leave out --proofs"
            )


def plain_network(graph: Graph, domain: Domain) -> PlainNetwork:
    """Return ``graph`` as plain arrays.

    Raises:
        HoldfastError: it has something else than affine operations and ReLUs.
    """
    check_plain(graph)
    steps = list[Step]()
    for node in graph.nodes:
        size = prod(node.shape)
        if isinstance(node.operation, Affine):
            offset = node.operation.offset
            vector = None if offset is None else offset.reshape(-1).double().cpu().numpy().copy()
            steps.append(Step(node.inputs, size, _matrices(node.operation, node.shape, graph), vector))
        else:
            steps.append(Step(node.inputs, size))
    return PlainNetwork(tuple(steps), domain.low, domain.high)


def _matrices(operation: Affine, shape: tuple[int, ...], graph: Graph) -> tuple[Matrix, ...]:
    """Return the matrices of an affine operation, one for each input: its transpose applied to unit vectors."""
    from scipy.sparse import csr_array, vstack

    size, parts = prod(shape), list[list[Any]]()
    for rows in torch.arange(size).split(ROWS):
        units = unit_vectors(rows[None].to(graph.device), size, graph.dtype)
        forms: list[Form] = [form.dense() for form in operation.transpose(dense_form(units, shape))]
        parts.append([csr_array(form.coef[0].flatten(1).double().cpu().numpy()) for form in forms])
    return tuple(csr_array(vstack(blocks)) for blocks in zip(*parts, strict=True))
