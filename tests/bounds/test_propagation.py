"""The parts of bound propagation, each against slow and obvious code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from holdfast.bounds import Alpha, Crown, Method, certified_radius, lower_bound
from holdfast.bounds.certified_search import bracket_radii
from holdfast.bounds.methods.base import methods
from holdfast.bounds.network.forms import Form, Windows, gather, identity
from holdfast.bounds.network.network_graph import RULES, Convolution
from holdfast.bounds.regions import region
from holdfast.bounds.relaxations import Box
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from tests.bounds.networks import build


@given(ends=st.tuples(st.floats(-6, 6), st.floats(1e-6, 8)))
def test_planes_and_intervals_enclose_a_relu(ends: tuple[float, float]) -> None:
    """As ``test_curves`` has it of all that is smooth."""
    rule, box = RULES["relu"], Box(*(torch.tensor([[end]], dtype=torch.float64) for end in (ends[0], sum(ends))))
    x = torch.linspace(ends[0], sum(ends), 2001, dtype=torch.float64)[:, None]
    y, relaxation, interval = x.clamp_min(0), rule.relax(box), rule.interval(box)
    below = relaxation.lower[0] * x + (0 if relaxation.floor is None else relaxation.floor)
    above = relaxation.upper[0] * x + (0 if relaxation.ceiling is None else relaxation.ceiling)
    assert torch.equal(rule.function(x), y)
    assert (below <= y + 1e-12).all()
    assert (above >= y - 1e-12).all()
    # And not by much: each line touches the curve, and the interval is the curve's range.
    assert (y - below).min() <= 1e-3
    assert (above - y).min() <= 1e-3
    assert interval.lower == y.min()
    assert interval.upper == y.max()


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4))
def test_planes_enclose_a_product(ends: list[float]) -> None:
    x, y = (Box(*(torch.tensor([[e]], dtype=torch.float64) for e in sorted(pair))) for pair in (ends[:2], ends[2:]))
    relaxation = RULES["product"].relax(x, y)
    assert relaxation.floor is not None
    assert relaxation.ceiling is not None
    for a in torch.linspace(0, 1, 9):
        for b in torch.linspace(0, 1, 9):
            u, v = x.lower + a * (x.upper - x.lower), y.lower + b * (y.upper - y.lower)
            assert relaxation.lower[0] * u + relaxation.lower[1] * v + relaxation.floor <= u * v + 1e-12
            assert relaxation.upper[0] * u + relaxation.upper[1] * v + relaxation.ceiling >= u * v - 1e-12


@pytest.mark.parametrize("name", sorted(RULES))
def test_what_is_not_finite_stays_unknown(name: str) -> None:
    bad = Box(*(torch.tensor([[end]], dtype=torch.float64) for end in (torch.nan, 1.0)))
    boxes = (bad, bad) if name == "product" else (bad,)
    relaxation = RULES[name].relax(*boxes)
    assert not all(torch.isfinite(slope).all() for slope in (*relaxation.lower, *relaxation.upper))


@pytest.mark.parametrize("ends", [(-1.0, torch.inf), (torch.inf, torch.inf), (-1.5e308, 1.5e308), (-torch.inf, -1.0)])
def test_a_relu_whose_box_overflows_has_no_planes(ends: tuple[float, float]) -> None:
    relaxation = RULES["relu"].relax(Box(*(torch.tensor([[end]], dtype=torch.float64) for end in ends)))
    assert relaxation.upper[0].isnan().all()
    assert relaxation.lower[0].isnan().all()


def test_windows_of_nothing_but_padding_are_zero() -> None:
    shape = (1, 2, 3, 3)
    conv = Convolution(torch.randn(3, 2, 2, 2, dtype=torch.float64), None, shape, (1, 1), (3, 3), (1, 1), 1)
    x = torch.randn(1, *shape, dtype=torch.float64)
    out = conv.forward(x)
    (moved,) = conv.transpose(identity(tuple(out.shape[1:]), torch.float64, torch.device("cpu")))
    assert torch.allclose(moved.dense().dot(x)[:, : out[0].numel()], out.flatten(1))
    values = torch.randn(1, 2, 3, 4)
    for offset in (-9, -2, 2, 9):
        found = gather(values, Windows((offset, 0), (1, 1), (2, 1)), (2, 4))
        whole = functional.pad(values, (0, 0, 12, 12))[:, :, 12 + offset : 12 + offset + 3]
        assert torch.equal(found[:, :, :, 0, 0, :, 0].movedim(3, 0), torch.stack([whole[0, :, :2], whole[0, :, 1:]]))


CONVOLUTIONS = [
    ((2, 6, 7), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 7, 6), (4, 2, 4, 3), (2, 2), (1, 0), (1, 1), 1),
    ((4, 9, 8), (4, 2, 2, 3), (2, 1), (2, 1), (1, 2), 2),
    ((1, 5, 5), (2, 1, 1, 1), (2, 2), (0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_windows_are_whole_rows_in_less_space(case: tuple[Any, ...]) -> None:
    shape, kernel, stride, padding, dilation, groups = case
    weight = torch.randn(kernel, dtype=torch.float64)
    first = Convolution(
        weight, torch.randn(kernel[0], dtype=torch.float64), (1, *shape), stride, padding, dilation, groups
    )
    x = torch.randn(2, 1, *shape, dtype=torch.float64)
    out = first.forward(x)
    form = identity(tuple(out.shape[1:]), torch.float64, torch.device("cpu"))
    (moved,), (whole,) = first.transpose(form), first.transpose(form.dense())
    assert torch.allclose(moved.dense().coef, whole.coef)
    values = moved.dot(x) + form.dot(first.offset[None]) if first.offset is not None else moved.dot(x)
    assert torch.allclose(values[:, : out[0].numel()], out.flatten(1))
    assert torch.allclose(values[:, out[0].numel() :], -out.flatten(1))
    assert (first.magnitude(x.abs()) >= (first.forward(x) - first.forward(0 * x)).abs() - 1e-12).all()


def test_sums_of_windows_are_sums_of_rows() -> None:
    shape = (1, 2, 6, 6)
    forms: list[Form] = []
    for size, padding in ((3, 1), (1, 0), (5, 2)):
        conv = Convolution(torch.randn(2, 2, size, size), None, shape, (1, 1), (padding, padding), (1, 1), 1)
        forms += conv.transpose(identity(shape, torch.float32, torch.device("cpu")))
    for a in forms:
        for b in forms:
            assert torch.allclose(a.plus(b).dense().coef, a.dense().coef + b.dense().coef, atol=1e-6)


@pytest.mark.parametrize("ball", [Linf, L2, L1])
def test_the_minimum_over_a_clipped_ball_is_that_of_a_search(ball: type[Ball]) -> None:
    torch.manual_seed(1)
    x = torch.tensor([[0.0, 0.05, 0.5]], dtype=torch.float64)
    coef = torch.randn(1, 20, 3, dtype=torch.float64)
    for eps in (0.02, 0.2, 0.7, 3.0):
        around = region(x, ball, torch.tensor([eps], dtype=torch.float64), Domain((3,)))
        found = around.minimise(Form(coef[:, :, None], (1, 3)))[0]
        grid = torch.cartesian_prod(*(torch.linspace(-eps, eps, 61, dtype=torch.float64) for _ in range(3)))
        ok = (ball(eps).norm(grid) <= eps * (1 + 1e-12)) & ((x + grid) >= 0).all(1) & ((x + grid) <= 1).all(1)
        least = ((x + grid[ok]) @ coef[0].T).amin(0)
        assert (found <= least + 1e-12).all()
        assert (least - found <= 0.11 * eps * coef[0].abs().sum(1)).all()


def test_the_minimum_over_an_unclipped_l2_ball_is_the_dual_norm() -> None:
    coef = torch.randn(1, 5, 40, dtype=torch.float64)
    around = region(
        torch.zeros(1, 40, dtype=torch.float64), L2, torch.tensor([0.3], dtype=torch.float64), Domain((40,), -9.0, 9.0)
    )
    assert torch.allclose(around.minimise(Form(coef[:, :, None], (1, 40))), -0.3 * coef.norm(dim=2))


def test_radii_of_known_functions() -> None:
    roots = torch.tensor([[0.3, 0.0123, 0.61, 0.9, 0.2], [0.05, 0.0499, 0.4, 2.0, 0.1]], dtype=torch.float64)
    clean = torch.ones_like(roots)
    clean[0, 4] = -1.0
    asked: list[Tensor] = []

    def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
        asked.append(eps)
        ratio = eps[:, None] / roots[images[:, None], specifications]
        return (1 - ratio**1.5) * clean[images[:, None], specifications]

    found = bracket_radii(bound, clean, 1.0, 1e-4)
    expected = torch.where(clean > 0, roots.clamp_max(1.0), 0.0)
    assert (found <= expected + 1e-12).all()
    assert (found >= expected - 1e-4).all()
    assert len(asked) < 25
    assert len(torch.cat(asked)) < 2 * 25


def test_rows_are_asked_only_where_they_may_gain_and_radii_of_an_image_together() -> None:
    roots = torch.linspace(0.02, 0.03, 40, dtype=torch.float64)[None]
    asked: list[tuple[int, ...]] = []

    def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
        asked.append(tuple(specifications.shape))
        return 1 - (eps[:, None] / roots[images[:, None], specifications]) ** 1.5

    found = bracket_radii(bound, torch.ones_like(roots), 1.0, 1e-5)
    assert (found <= roots + 1e-12).all()
    assert (found >= roots - 1e-5).all()
    assert sum(regions for regions, _ in asked) < 3 * 40
    assert sum(regions * specifications for regions, specifications in asked) < 1000
    assert len(asked) < 30


def test_rows_that_hold_up_to_the_largest_radius_share_one_look_at_it() -> None:
    slopes = torch.linspace(0.1, 0.9, 30, dtype=torch.float64)[None]
    asked: list[Tensor] = []

    def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
        asked.append(eps)
        return 1 - eps[:, None] * slopes[images[:, None], specifications]

    assert (bracket_radii(bound, torch.ones_like(slopes), 1.0, 1e-4) == 1.0).all()
    assert len(torch.cat(asked)) < 8


def test_other_images_of_the_batch_change_nothing() -> None:
    roots = torch.rand(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.4 + 0.01

    def search(roots: Tensor) -> Tensor:
        def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
            ratio = eps[:, None] / roots[images[:, None], specifications]
            return 1 - ratio * ratio + 0.03 * ratio * (1 - ratio) * (2 - ratio)

        return bracket_radii(bound, torch.ones_like(roots), 0.3, 1e-4)

    together = search(roots)
    for image in range(len(roots)):
        assert torch.allclose(search(roots[image : image + 1])[0], together[image], rtol=0, atol=1e-12)


def test_a_radius_is_one_that_was_certified_though_the_bound_is_not_monotone() -> None:
    seen: dict[float, float] = {}

    def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
        value = torch.cos(40 * eps) + 0.5 - eps  # positive on several stretches
        seen.update(zip(eps.tolist(), value.tolist(), strict=True))
        return value[:, None]

    found = bracket_radii(bound, torch.ones(1, 1, dtype=torch.float64), 1.0, 1e-3).item()
    assert seen[found] > 0
    assert any(found < eps <= found + 1e-3 and value <= 0 for eps, value in seen.items())


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_an_unknown_bound_is_never_a_radius(value: float) -> None:
    def bound(images: Tensor, eps: Tensor, specifications: Tensor) -> Tensor:
        return torch.where(eps < 0.1, 1 - eps, value)[:, None]

    found = bracket_radii(bound, torch.ones(1, 1, dtype=torch.float64), 1.0, 1e-3)
    assert 0.099 <= found.item() < 0.1


def test_overflow_and_nan_are_unknown() -> None:
    encoder, large = build("linear"), build("linear")
    x, specifications = torch.rand(1, 2, 6, 6, dtype=torch.float64), torch.randn(1, 2, 3, dtype=torch.float64)
    for weight in large.module.parameters():
        weight.mul_(1e100)
    for method in (Crown(), Alpha(steps=2, inner=2)):
        assert (lower_bound(large, x, specifications * 1e250, Linf(0.1), method) == -torch.inf).all()
        assert lower_bound(encoder, x, specifications, Linf(0.1), method).isfinite().all()


@pytest.mark.parametrize("factor", [1e200, torch.nan])
def test_weights_without_finite_codes_are_refused(factor: float) -> None:
    broken = build("linear")
    for weight in broken.module.parameters():
        weight.mul_(factor)
    with pytest.raises(HoldfastError, match=r"NaN or infinite"):
        lower_bound(broken, torch.rand(1, 2, 6, 6), torch.randn(1, 2, 3), Linf(0.1))


def test_methods_survive_a_round_trip_through_text() -> None:
    for kind in methods().values():
        assert Method.read(str(kind())) == kind()
    assert Method.read("alpha:steps=5,inner=2") == Alpha(steps=5, inner=2)


def test_misfit_rows_and_images_are_refused() -> None:
    encoder, x = build("linear"), torch.rand(2, 2, 6, 6)
    for call in (lower_bound, certified_radius):
        with pytest.raises(HoldfastError, match="must be 3"):
            call(encoder, x, torch.zeros(2, 1, 4), Linf(0.1))
        with pytest.raises(HoldfastError, match="no axis empty"):
            call(encoder, x, torch.zeros(2, 0, 3), Linf(0.1))
        with pytest.raises(HoldfastError, match="specifications must be finite"):
            call(encoder, x, torch.full((2, 1, 3), torch.nan), Linf(0.1))
        with pytest.raises(HoldfastError, match="finite and lie in"):
            call(encoder, x + 1, torch.zeros(2, 1, 3), Linf(0.1))


def test_a_graph_is_traced_once_for_each_encoder() -> None:
    from holdfast.bounds.network.tracing import trace

    encoder = build("linear")
    assert trace(encoder) is trace(encoder)
    assert trace(encoder) is not trace(encoder, torch.float32)
    other = Encoder(encoder.module, "other", encoder.domain)
    assert trace(other) is not trace(encoder)
    assert (
        functional.mse_loss(trace(other)(torch.ones(1, 2, 6, 6).double()), encoder(torch.ones(1, 2, 6, 6).double()))
        == 0
    )
