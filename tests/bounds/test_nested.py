"""Two regions, one inside the other, by the work of one; and the radii that are found so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.bounds import Crown, certified_radius, lower_bound
from holdfast.bounds.certified_search import bracket_radii
from holdfast.bounds.methods.crown import (
    NetworkRelaxation,
    interval_exact_nodes,
    minimise,
    nonlinear,
    output_bounds,
    relax,
    tighten,
)
from holdfast.bounds.methods.interval import node_box
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.regions import Region, region
from holdfast.bounds.relaxations import Rule
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.encoder import Encoder
from tests.bounds.checks import lowest
from tests.bounds.networks import OPERATIONS, shared
from tests.marks import rest_slow

every = pytest.mark.parametrize("name", OPERATIONS)
FIRST = ("conv", "residual", "products")
"""Relaxations with and without intervals, of one input and of two; the others say the same."""


def context(name: str) -> tuple[Encoder, Tensor, Tensor]:
    """An encoder, two images and specifications."""
    encoder = shared(name)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(2, *encoder.domain.shape, generator=generator, dtype=torch.float64)
    return encoder, x, torch.randn(2, 4, trace(encoder).nodes[-1].shape[1], generator=generator, dtype=torch.float64)


def around(encoder: Encoder, x: Tensor, ball: type[Ball], *radii: float) -> Region:
    """Regions of all images at one radius, or at two, the larger first."""
    eps = torch.tensor(radii, dtype=x.dtype).repeat_interleave(len(x))
    return region(x.repeat(len(radii), 1, 1, 1), ball, eps, encoder.domain, nested=len(radii) == 2)


def carried_over(graph: Graph, outer: NetworkRelaxation, inner: Region, joint: bool) -> NetworkRelaxation:
    """The slow way: the boxes of an inner region, each node's by the planes of the outer one."""
    found = NetworkRelaxation(graph, inner)
    wanted = {i for node in graph.nodes if isinstance(node.operation, Rule) for i in node.sources}
    for node in graph.nodes:
        found.intermediate_bounds.append(node_box(node, found.intermediate_bounds, inner))
        if isinstance(node.operation, Rule):
            found.linear_relaxations[node.index] = node.operation.relax(
                *(found.intermediate_bounds[i] for i in node.sources)
            )
        if node.index in wanted - interval_exact_nodes(graph, inner):
            borrowed = NetworkRelaxation(graph, inner, found.intermediate_bounds, outer.linear_relaxations)
            where = nonlinear(graph, node.index, node_box(node, outer.intermediate_bounds, outer.region))
            found.intermediate_bounds[-1], _ = tighten(borrowed, node.index, where, joint, minimise)
    return found


@every
@torch.no_grad()
@pytest.mark.slow
def test_inner_bounds_are_those_by_planes_of_the_outer_region(name: str) -> None:
    encoder, x, specifications = context(name)
    graph = trace(encoder, x.dtype)
    for ball, joint in ((Linf, True), (L2, False)):
        both = relax(graph, around(encoder, x, ball, 0.05, 0.04), joint)
        outer, inner = output_bounds(both, specifications.repeat(2, 1, 1)).chunk(2)
        alone = relax(graph, around(encoder, x, ball, 0.05), joint)
        slow = carried_over(graph, alone, around(encoder, x, ball, 0.04), joint)
        assert torch.allclose(outer, output_bounds(alone, specifications), rtol=1e-9, atol=1e-9, equal_nan=True)
        assert torch.allclose(inner, output_bounds(slow, specifications), rtol=1e-9, atol=1e-9, equal_nan=True)


@every
@torch.no_grad()
@pytest.mark.slow
def test_bounds_without_intervals_may_begin_with_what_others_share(name: str) -> None:
    encoder, x, specifications = context(name)
    graph, place = trace(encoder, x.dtype), around(encoder, x, Linf, 0.05)
    initial = relax(graph, place).without_intervals
    assert initial or name not in ("conv", "residual"), "vacuous fixture"
    shared, alone = (
        output_bounds(relax(graph, place, False, initial=first), specifications) for first in (initial, None)
    )
    assert torch.allclose(shared, alone, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", rest_slow(sorted(OPERATIONS, key=lambda name: name not in FIRST), len(FIRST)))
def test_no_point_of_either_ball_lies_below_its_bound(name: str) -> None:
    encoder, x, specifications = context(name)
    found = Crown()(trace(encoder, x.dtype), around(encoder, x, Linf, 0.05, 0.04), specifications.repeat(2, 1, 1))
    for bounds, radius in zip(found.chunk(2), (0.05, 0.04), strict=True):
        for image, bound in enumerate(bounds):
            least = lowest(encoder, x[image : image + 1], specifications[image], Linf(radius), count=100)
            assert (bound <= least + 1e-9).all()
    alone = Crown()(trace(encoder, x.dtype), around(encoder, x, Linf, 0.05), specifications)
    assert torch.allclose(found[: len(x)], alone, rtol=1e-9, atol=1e-9), (
        "the outer bounds are those without an inner ball"
    )


@pytest.mark.parametrize("name", ["conv", "residual"])
def test_images_one_by_one_are_bounded_as_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, x, specifications = context(name)
    graph, places = trace(encoder, x.dtype), around(encoder, x, Linf, 0.05, 0.04)
    together = Crown()(graph, places, specifications.repeat(2, 1, 1))
    monkeypatch.setattr("holdfast.bounds.methods.crown.MEMORY", 1)
    assert torch.allclose(Crown()(graph, places, specifications.repeat(2, 1, 1)), together, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv", "residual", "gelu"])
@pytest.mark.parametrize("joint", [True, False])
def test_radii_are_proved_and_one_without_a_proof_was_seen_just_above(
    name: str, joint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, x, specifications = context(name)
    specifications = specifications * (specifications @ encoder(x).double()[..., None]).sign()
    graph, method, tolerance = trace(encoder, x.dtype), Crown(joint), 1e-4
    seen: list[Region] = []
    bound = Crown.__call__

    def spied(self: Crown, graph: Graph, region: Region, specifications: Tensor) -> Tensor:
        seen.append(region)
        return bound(self, graph, region, specifications)

    with monkeypatch.context() as patch:
        patch.setattr(Crown, "__call__", spied)
        found = certified_radius(encoder, x, specifications, Linf(0.5), method, tolerance)
    assert (found > 0).any()
    looked = [(place.centre[k], place.eps[k].item()) for place in seen for k in range(place.distinct)]
    by_neighbours = 0
    for image, row in (found > 0).nonzero().tolist():
        one, asked, radius = (
            x[image : image + 1],
            specifications[image : image + 1, row : row + 1],
            found[image, row].item(),
        )
        near = [
            eps
            for centre, eps in looked
            if torch.equal(centre[0], x[image]) and radius < eps <= radius + tolerance * (1 + 1e-9)
        ]
        assert radius == 0.5 or any(lower_bound(encoder, one, asked, Linf(eps), method) <= 0 for eps in near)
        proofs = [lower_bound(encoder, one, asked, Linf(radius), method).item()]
        for eps in near:
            proofs.append(method(graph, around(encoder, one, Linf, eps, radius), asked.repeat(2, 1, 1))[1].item())
        assert max(proofs) > 0
        by_neighbours += not any(eps == radius for _, eps in looked)
    assert by_neighbours > 0, "vacuous fixture"


def test_a_look_just_above_closes_a_bracket_and_serves_neighbours() -> None:
    roots = torch.linspace(0.02, 0.03, 40, dtype=torch.float64)[None]
    asked: list[Tensor] = []

    def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
        outer, inner = eps.chunk(2)
        assert (inner < outer).all()
        asked.append(outer)
        loose = torch.cat([outer, inner + 0.35 * (outer - inner)])  # what a larger region costs
        return 1 - (loose[:, None] / roots[images[:, None], specifications]) ** 1.5

    for tolerance, regions in ((1e-5, 65), (1e-3, 35)):
        asked.clear()
        found = bracket_radii(bound, torch.ones_like(roots), 1.0, tolerance, nested=True)
        assert (found <= roots + 1e-12).all()
        assert (found >= roots - tolerance).all()
        assert len(torch.cat(asked)) < regions
