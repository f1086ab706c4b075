"""The constant of many ReLUs over a ball: below every point, closed form without the box, and tight for few neurons."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from holdfast.bounds.relaxations import Box, ReluForm, relu_relaxation

WIDE = 1e6
KINDS = ("random", "point", "no slopes", "stable", "one neuron", "no coefficients", "small", "wide box")


def layer(kind: str, seed: int) -> tuple[Tensor, Tensor, Box, Tensor, Tensor]:
    """Coefficients, slopes, box, centre and radius of a layer; the centre lies in the box."""
    draw = torch.Generator().manual_seed(seed)
    n = 1 if kind == "one neuron" else int(torch.randint(2, 12, (), generator=draw))
    a, g, centre = (torch.randn(n, generator=draw, dtype=torch.float64) for _ in range(3))
    radius = torch.rand((), generator=draw, dtype=torch.float64) * 3
    reach = radius * (0.3 + torch.rand(2, n, generator=draw, dtype=torch.float64))
    if kind == "point":
        radius = radius * 0
    if kind == "no slopes":
        g = g * 0
    if kind == "no coefficients":
        a, g = a * 0, g * 0
    if kind == "stable":
        centre = centre + centre.sign() * 3
        g = torch.where(centre > 0, a, 0.0)
    if kind == "small":
        a, g = a * 1e-12, g * 1e-12
    if kind == "wide box":
        reach = torch.full_like(reach, WIDE)
    return a, g, Box(centre - reach[0], centre + reach[1]), centre, radius


def points(box: Box, centre: Tensor, radius: Tensor, count: int, seed: int) -> Tensor:
    """Points of both ball and box: inside, on the sphere, and along few coordinates."""
    draw = torch.Generator().manual_seed(seed)
    steps = torch.randn(count, len(centre), generator=draw, dtype=torch.float64)
    steps[1::3] *= torch.rand(len(steps[1::3]), len(centre), generator=draw, dtype=torch.float64) < 0.3
    steps = steps / steps.norm(dim=1, keepdim=True).clamp_min(1e-12)
    steps[::2] *= torch.rand(len(steps[::2]), 1, generator=draw, dtype=torch.float64)
    clipped = (centre + radius * steps).clamp(*box)  # toward the centre, so that it stays in the ball
    return torch.cat([centre[None], clipped])


def lowest(a: Tensor, g: Tensor, box: Box, centre: Tensor, radius: Tensor, seed: int) -> Tensor:
    """The least value that projected descent finds from many starts: nothing that the bound is made of is used."""
    z = points(box, centre, radius, 400, seed)
    best = torch.full((), math.inf, dtype=torch.float64)
    for step in range(100):
        value = z.clamp_min(0) @ a - z @ g
        best = torch.minimum(best, value.amin())
        slope = torch.where(z > 0, a, 0.0) - g
        z = z - radius * 0.3 * 0.94**step * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-12)
        for _ in range(8):  # into box and ball in turns, and the centre lies in both
            z = z.clamp(*box)
            z = centre + (z - centre) * (radius / (z - centre).norm(dim=1, keepdim=True).clamp_min(1e-300)).clamp_max(1)
        z = z.clamp(*box)
    return best


@pytest.mark.parametrize("kind", KINDS)
def test_no_point_of_the_ball_lies_below_the_bound(kind: str) -> None:
    slack = []
    for seed in range(30):
        a, g, box, centre, radius = layer(kind, seed)
        found = ReluForm(a, g, box, centre).least(radius)
        z = points(box, centre, radius, 600, seed)
        values = z.clamp_min(0) @ a - z @ g
        scale = (a.abs() + g.abs()).sum() * (centre.norm() + radius)
        assert found.isfinite()
        assert (found <= values + 1e-12 * scale).all(), (seed, found - values.amin())
        slack.append(float((values.amin() - found) / scale.clamp_min(1e-30)))
    assert min(slack) < 0.02, "vacuous: never near"


@pytest.mark.parametrize("kind", ["random", "one neuron", "wide box"])
def test_the_bound_lies_below_what_many_descents_find_and_close_to_it(kind: str) -> None:
    gaps = []
    for seed in range(6):
        a, g, box, centre, radius = layer(kind, seed)
        found, least = ReluForm(a, g, box, centre).least(radius), lowest(a, g, box, centre, radius, seed)
        assert found <= least + 1e-9
        gaps.append(float((least - found) / ((a.abs() + g.abs()).norm() * radius)))
    # A few neurons of which each has two halves: the gap of the dual is that of the kinks.
    assert sum(gaps) / len(gaps) < 0.1


@pytest.mark.parametrize("neurons", [1, 2])
def test_few_neurons_lie_between_the_minimum_on_a_grid_and_the_best_dual_on_a_grid(neurons: int) -> None:
    """The dual function of one multiplier, by brute force over points and over multipliers."""
    for seed in range(5):
        a, g, box, centre, radius = layer("random", seed)
        a, g, centre, box = a[:neurons], g[:neurons], centre[:neurons], Box(*(end[:neurons] for end in box))
        axes = [
            torch.linspace(float(low), float(high), 201, dtype=torch.float64) for low, high in zip(*box, strict=True)
        ]
        z = torch.cartesian_prod(*axes).reshape(-1, neurons)
        value, far = z.clamp_min(0) @ a - z @ g, (z - centre).square().sum(1)
        dual = torch.stack(
            [(value + t / 2 * (far - radius**2)).amin() for t in 10 ** torch.linspace(-6, 3, 200)]
        ).amax()
        found = ReluForm(a, g, box, centre).least(radius)
        step = max(float(axis[1] - axis[0]) for axis in axes)
        assert abs(found - dual) <= 2e-2 * (1 + dual.abs()) + step * (a.abs() + g.abs()).sum()
        inside = far <= radius**2 * (1 + 1e-12)
        if inside.any():
            assert found <= value[inside].amin() + 1e-12


def test_without_a_box_it_is_the_published_constant() -> None:
    for seed in range(20):
        a, g, box, centre, radius = layer("wide box", seed)
        for t in (0.03, 0.4, 5.0):
            phi = torch.minimum(torch.minimum(a - g - t * centre, g + t * centre), torch.zeros_like(a))
            published = -(t * (radius**2 - centre @ centre) + phi @ phi / t) / 2
            z = ReluForm(a, g, box, centre).minimiser(torch.tensor([t], dtype=torch.float64))
            mine = a @ z.clamp_min(0) - g @ z + t / 2 * ((z - centre) @ (z - centre) - radius**2)
            assert torch.allclose(mine, published, rtol=1e-9, atol=1e-9)
            assert ReluForm(a, g, box, centre).least(radius) >= published - 1e-6 * published.abs()


def test_it_is_never_looser_than_the_box_alone() -> None:
    gained = 0
    for seed in range(100):
        a, _, box, centre, radius = layer("random", seed)
        relaxation = relu_relaxation(Box(box.lower[None], box.upper[None]))
        assert relaxation.ceiling is not None
        slopes = torch.where(a > 0, relaxation.lower[0][0], relaxation.upper[0][0])
        by_box = (a.clamp_max(0) * relaxation.ceiling[0]).sum()
        found = ReluForm(a, a * slopes, box, centre).least(radius)
        assert found >= by_box - 1e-7 * (1 + by_box.abs())
        gained += bool(found > by_box + 1e-3)
    assert gained > 20, "vacuous: the ball never binds"


def test_the_multiplier_is_the_best_of_a_grid() -> None:
    for seed in range(30):
        a, g, box, centre, radius = layer("random", seed)
        found = ReluForm(a, g, box, centre).least(radius)
        for t in ReluForm(a, g, box, centre).best_multiplier(radius) * 2.0 ** torch.linspace(-6, 6, 25):
            z = ReluForm(a, g, box, centre).minimiser(t[None])
            other = a @ z.clamp_min(0) - g @ z + t / 2 * ((z - centre) @ (z - centre) - radius**2)
            assert other <= found + 1e-4 * (1 + found.abs())


def test_gradients_are_those_of_the_bound() -> None:
    for seed in range(10):
        a, g, box, centre, radius = layer("random", seed)
        g.requires_grad_()
        (slope,) = torch.autograd.grad(ReluForm(a, g, box, centre).least(radius), g)
        step = 1e-4 * torch.randn(len(g), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        up, down = (ReluForm(a, g.detach() + sign * step, box, centre).least(radius) for sign in (1, -1))
        assert abs((up - down) / 2 - slope @ step) <= 0.05 * step.norm() * slope.norm() + 1e-8
