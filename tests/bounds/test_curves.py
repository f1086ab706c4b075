"""Lines beside curves: dense samples of every interval lie between them, and the lines are as close as they can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from holdfast.bounds.relaxations import CURVES, Box, Rule, elu, softplus

RULES: dict[str, Rule] = {
    **{name: curve.rule() for name, curve in CURVES.items()},
    **{f"elu {alpha}": elu(alpha) for alpha in (1.0, 0.3, 2.5, -0.5)},
    **{f"softplus {threshold}": softplus(threshold) for threshold in (20.0, 3.0, -1.0)},
}
POSITIVE = ("sqrt", "rsqrt", "reciprocal")
SAMPLES, COUNT = 401, 2000
every = pytest.mark.parametrize("name", RULES)


def intervals(name: str) -> Box:
    """Random intervals: of usual size, tiny, huge, of one point, and with an end where curves bend or turn."""
    draw = torch.Generator().manual_seed(0)
    centre = torch.randn(COUNT, dtype=torch.float64, generator=draw) * 4
    centre[: COUNT // 4] *= 50
    ends = torch.tensor([0.0, -3.0, 3.0, -1.5, 20.0, *CURVES["mish"].bends, *CURVES["gelu"].bends], dtype=torch.float64)
    centre[-500:] = ends[torch.randint(len(ends), (500,), generator=draw)]
    width = 10 ** (torch.rand(COUNT, dtype=torch.float64, generator=draw) * 20 - 12)
    width[::10] = 0
    low, high = centre - width * torch.rand(COUNT, dtype=torch.float64, generator=draw), centre + width
    if name in POSITIVE:
        low, high = low.abs() + 1e-3, low.abs() + 1e-3 + (high - low)
    if name == "exp":
        low, high = low.clamp_max(20), high.clamp_max(20)
    return Box(low[:, None], high[:, None])


def samples(box: Box) -> Tensor:
    """Points of each interval, both ends among them: evenly, and close to zero and to each end."""
    even = torch.linspace(0, 1, SAMPLES, dtype=torch.float64)
    near = 10 ** torch.linspace(-14, 1, 60, dtype=torch.float64)
    shares = torch.cat([even, near, 1 - near, torch.ones(1, dtype=torch.float64)])
    within = box.lower + (box.upper - box.lower) * shares
    return torch.cat([within, near.expand(len(within), -1), -near.expand(len(within), -1)], 1).clamp(*box)


@every
def test_lines_enclose_the_curve_touch_it_and_boxes_are_those_of_its_values(name: str) -> None:
    rule, box = RULES[name], intervals(name)
    x = samples(box)
    y = rule.function(x)
    relaxation, inside = rule.relax(box), rule.interval(box)
    assert relaxation.floor is not None
    assert relaxation.ceiling is not None
    # The lines themselves are computed with an error that is not theirs.
    for slope, constant, sign in (
        (relaxation.lower[0], relaxation.floor, 1),
        (relaxation.upper[0], relaxation.ceiling, -1),
    ):
        rounding = 4 * torch.finfo(torch.float64).eps * (y.abs() + (slope * x).abs() + constant.abs())
        gap = sign * (y - slope * x - constant)
        assert gap.isfinite().all()
        assert (gap >= -rounding).all(), (name, sign, gap.min())
    assert (y >= inside.lower).all()
    assert (y <= inside.upper).all()
    reach = torch.maximum(box.lower.abs(), box.upper.abs())
    size = 1 + y.abs().amax(1, keepdim=True) + reach * (relaxation.lower[0].abs() + relaxation.upper[0].abs())
    # What lies between the samples, and a jump that the curve is allowed.
    coarse = (
        0.02 * (y.amax(1, keepdim=True) - y.amin(1, keepdim=True)) + 1e-13 * size + (2.0 if "softplus" in name else 0)
    )
    assert ((y - relaxation.lower[0] * x - relaxation.floor).amin(1, keepdim=True) <= coarse).all()
    assert ((relaxation.upper[0] * x + relaxation.ceiling - y).amin(1, keepdim=True) <= coarse).all()
    assert (y.amin(1, keepdim=True) - inside.lower <= coarse).all()
    assert (inside.upper - y.amax(1, keepdim=True) <= coarse).all()


@pytest.mark.parametrize("name", CURVES)
def test_derivatives_are_monotone_between_inflections(name: str) -> None:
    """Differences of the function over equal steps only grow, or only fall, between one inflection and the next."""
    curve = CURVES[name]
    low = 1.0 if name in POSITIVE else -30.0
    ends = [low, *curve.bends, 30.0]
    for left, right in pairwise(ends):
        x = torch.linspace(left, right, 300, dtype=torch.float64)
        slopes = curve.function(x).diff() / x.diff()
        turns = slopes.diff()
        noise = 1e-12 * (1 + slopes.abs().max())
        assert (turns >= -noise).all() or (turns <= noise).all(), (left, right)
        middle = (x[1:] + x[:-1]) / 2
        assert torch.allclose(curve.derivative(middle), slopes, rtol=0.02, atol=0.02 * float(slopes.abs().max()))
