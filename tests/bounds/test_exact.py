"""Networks so small that the minimum is known: it lies between every bound and every attack."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds import Alpha, Branch, Crown, Exact, Interval, certified_radius, lower_bound, regions
from holdfast.bounds.certified_pairs import PairAttack, image_pairs
from holdfast.bounds.methods.exact import encode, silent
from holdfast.bounds.methods.interval import intermediate_bounds
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.pair_bounds import certify_and_attack
from holdfast.core.balls import L2, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from tests.bounds.checks import lowest
from tests.marks import rest_slow
from tests.samples import builtin, digits, doubled

SHAPE = (1, 2, 2)


def tiny(seed: int) -> Encoder:
    torch.manual_seed(seed)
    layers = (nn.Conv2d(1, 3, 2, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(27, 5), nn.ReLU(), nn.Linear(5, 2))
    return Encoder(nn.Sequential(*layers).eval(), "tiny", Domain(SHAPE)).to("cpu", torch.float64)


def context(seed: int) -> tuple[Encoder, Tensor, Tensor, Linf]:
    encoder = tiny(seed)
    return encoder, torch.rand(1, *SHAPE, dtype=torch.float64), torch.randn(1, 2, 2, dtype=torch.float64), Linf(0.4)


@pytest.mark.parametrize("seed", rest_slow(range(3)))
def test_every_method_stays_below_the_minimum_and_above_the_one_before(seed: int) -> None:
    encoder, x, specifications, ball = context(seed)
    methods = (Interval(), Crown(), Alpha(), Branch(target=torch.inf), Exact())
    bounds = torch.stack([lower_bound(encoder, x, specifications, ball, method)[0] for method in methods])
    least = lowest(encoder, x, specifications[0], ball, 20_000)
    assert (bounds[4] <= least + 1e-6).all()
    assert torch.allclose(bounds[4], least, atol=5e-3)  # four pixels are searched well
    assert (bounds.diff(dim=0) >= -1e-5).all(), bounds
    assert (bounds[3] - bounds[4]).abs().max() < 0.05 * (bounds[2] - bounds[4]).abs().max() + 1e-6


def test_pool_and_residual_networks_are_solved_too() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 2, 1, 1), nn.MaxPool2d(2, 1), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(8, 2)
    )
    encoder = Encoder(module.eval(), "pooled", Domain(SHAPE)).to("cpu", torch.float64)
    x, specifications = torch.rand(1, *SHAPE, dtype=torch.float64), torch.randn(1, 2, 2, dtype=torch.float64)
    least = lowest(encoder, x, specifications[0], Linf(0.3), 20_000)
    assert torch.allclose(lower_bound(encoder, x, specifications, Linf(0.3), Exact())[0], least, atol=5e-3)


def test_what_cannot_be_solved_exactly_is_refused() -> None:
    encoder, x, specifications, _ = context(0)
    with pytest.raises(HoldfastError, match="linf"):
        lower_bound(encoder, x, specifications, L2(0.1), Exact())
    smooth = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Sigmoid()), "smooth", Domain(SHAPE))
    with pytest.raises(HoldfastError, match="sigmoid"):
        lower_bound(smooth, x, specifications, Linf(0.1), Exact())


@pytest.mark.parametrize("method", ["crown", "exact"])
@pytest.mark.parametrize("weight", [float("inf"), float("nan"), 1e200])
def test_weights_that_are_infinite_or_overflow_are_refused_in_words(weight: float, method: str) -> None:
    encoder, x, specifications, ball = context(0)
    with torch.no_grad():
        for part in encoder.module.parameters():
            part.fill_(weight)  # 1e200 squared is beyond float64
    for ask in (lower_bound, certified_radius):
        with pytest.raises(HoldfastError, match="NaN or infinite"):
            ask(encoder, x, specifications, ball, method)


@pytest.mark.filterwarnings("error")
def test_a_program_that_overflows_is_refused_in_words() -> None:
    """Where the codes of images are finite, and only a ReLU that is never active overflows, or the specification does."""
    encoder, x, _, ball = context(0)
    with torch.no_grad():
        list(encoder.module.parameters())[-2].mul_(1e10)
    with pytest.raises(HoldfastError, match="the program to solve holds infinite"):
        lower_bound(encoder, x, torch.full((1, 1, 2), 1e308, dtype=torch.float64), ball, Exact())
    layers = (nn.Flatten(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2))
    one = Encoder(nn.Sequential(*layers).eval(), "one", Domain(SHAPE)).to("cpu", torch.float64)
    with torch.no_grad():
        weight, bias, *_ = one.module.parameters()
        weight[0] = bias[0] = -1e308
    with pytest.raises(HoldfastError, match=r"finite numbers, and .*linear.* holds infinite"):
        lower_bound(one, x, torch.ones(1, 1, 2, dtype=torch.float64), ball, Exact())


def loud() -> tuple[Encoder, Tensor]:
    """A network on which HiGHS prints a line of its own, and an image of it."""
    torch.manual_seed(15)
    layers = (nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
    module = nn.Sequential(nn.Flatten(), *layers).double()
    with torch.no_grad():
        for part in module.parameters():
            part.mul_((torch.randn(part.shape) * 4).exp())
    return Encoder(module.eval(), "loud", Domain((1, 3, 3))), torch.rand(1, 1, 3, 3).double()


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    encoder, x = loud()
    bound = lower_bound(encoder, x, encoder(x)[:, None], Linf(0.3), Exact(seconds=2.0))
    assert bound.isfinite().all()
    assert capfd.readouterr() == ("", "")


def test_silence_is_for_a_while_and_for_descriptors(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    with silent():
        os.write(1, b"lost")
        os.write(2, b"lost")
    print("after")
    os.write(2, b"after")
    assert capfd.readouterr() == ("before\nafter\n", "after")


@pytest.mark.slow
def test_silence_keeps_closed_descriptors_closed() -> None:
    program = (
        "import os, sys; from holdfast.bounds.methods.exact import silent\n"
        "os.close(1)\n"
        "with silent(): os.write(1, b'lost')\n"
        "try: os.write(1, b'x')\n"
        "except OSError: sys.exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 3


@pytest.mark.slow
def test_digits_are_certified_up_to_where_they_are_refuted() -> None:
    encoder, x = builtin("digits-robust"), digits(3).pixels([0, 1])
    codes = torch.nn.functional.normalize(encoder(x).double(), dim=1)
    specifications = (codes[0] - codes[1])[None, None]
    crown, exact = (
        certified_radius(encoder, x[:1], specifications, Linf(0.5), method, tolerance)
        for method, tolerance in ((Crown(), 1e-3), (Exact(), 0.01))
    )
    assert exact > crown
    double = doubled(encoder)
    assert lowest(double, x[:1].double(), specifications[0], Linf(exact.item() * 1.05 + 0.01), 100) < 0
    assert lowest(double, x[:1].double(), specifications[0], Linf(exact.item()), 100) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", rest_slow(range(2)))
def test_the_radius_is_where_the_minimum_reaches_zero(seed: int) -> None:
    encoder, x, specifications, _ = context(seed)
    clean = encoder.forward(x)[0]
    specifications = (
        torch.cat([specifications, -specifications], 1) * (specifications @ clean).sign().repeat(1, 2)[..., None]
    )  # two specifications hold, two do not
    radius = certified_radius(encoder, x, specifications, Linf(0.9), Exact(gap=1e-3))
    assert ((radius > 0) == (specifications @ clean > 0)).all()
    for row, found in zip(specifications[0, :2], radius[0, :2].tolist(), strict=True):
        assert lower_bound(encoder, x, row[None, None], Linf(found), Exact()) > 0
        if found < 0.85:
            assert lower_bound(encoder, x, row[None, None], Linf(1.01 * found), Exact()) < 0


@pytest.mark.slow
def test_what_the_program_takes_for_confused_is_confused() -> None:
    """On a built-in encoder the bracket closes, for the program's own solution is attacked with."""
    two = image_pairs(Population(builtin("digits-robust"), digits(), RunSettings()), [5], 1, 1000)
    certified, found = certify_and_attack(
        PairAttack(two, Linf(1.0), AdaptiveAttack(restarts=1, steps=5)), Exact(), 1e-3
    )
    attacked = Linf(1.0).norm(found.points - two.images)
    assert (found.values < 0).all()
    assert (attacked >= certified[0]).all()
    assert (certified[0] >= 0.97 * attacked).all()


def test_out_of_time_a_radius_is_still_proved() -> None:
    encoder, x = builtin("digits-robust"), digits(3).pixels([0, 1])
    codes = torch.nn.functional.normalize(encoder(x).double(), dim=1)
    specifications = (codes[0] - codes[1])[None, None]
    quick = certified_radius(encoder, x[:1], specifications, Linf(0.5), Exact(seconds=0.2), 1e-3)
    assert certified_radius(encoder, x[:1], specifications, Linf(0.5), Crown(), 1e-3) <= quick
    assert lowest(encoder.to("cpu", torch.float64), x[:1].double(), specifications[0], Linf(quick.item()), 100) > 0


def hat(slope: float) -> Encoder:
    """``slope * (0.3 - |t|)`` and its negative, for ``t`` the sum of four pixels less 2."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        for part, values in zip(
            module.parameters(),
            ([[1.0] * 4, [-1.0] * 4], [-2.0, 2.0], [[-slope] * 2, [slope] * 2], [0.3 * slope, -0.3 * slope]),
            strict=True,
        ):
            part.copy_(torch.tensor(values))
    return Encoder(module.eval(), "hat", Domain(SHAPE))


@pytest.mark.parametrize("slope", [1e-3, 1.0, 1e3])
def test_no_radius_reaches_the_nearest_point_that_fails(slope: float) -> None:
    """At 0.075 the specification fails exactly: what is claimed stays short of it, but not by much."""
    x = torch.full((1, *SHAPE), 0.5, dtype=torch.float64)
    specification = torch.tensor([[[1.0, 0.0]]]).double()
    radius = certified_radius(hat(slope), x, specification, Linf(0.4), Exact(gap=1e-6), tolerance=0.01).item()
    assert 0.0749 < radius < 0.075


@pytest.mark.parametrize("seed", range(3))
def test_what_the_solver_lets_pass_is_within_the_error_that_is_allowed_for(seed: int) -> None:
    """Of all it may return at given pixels, the values farthest from the network's lie within the expression's error."""
    encoder, x, _, ball = context(seed)
    graph = trace(encoder)
    region = regions.region(x, Linf, torch.tensor([ball.radius]).double(), encoder.domain)
    program = encode(graph, intermediate_bounds(graph, region))
    output, n = program.output, len(program.low)
    assert output is not None
    low, high = torch.tensor(program.low).double().numpy(), torch.tensor(program.high).double().numpy()
    matrix = np.array([np.pad(row, (0, n - len(row))) for row in program.constraints])
    half = np.where(program.binary, 1.0, (high - low) / 2)
    sizes = np.abs(matrix * half).max(1)  # the solver sees variables in [-1, 1] and rows whose largest entry is 1
    cost = np.pad(output.matrix, ((0, 0), (0, n - output.matrix.shape[1])))
    ends = list(zip(low - 1e-6 * half, high + 1e-6 * half, strict=True))
    for place, pixel in enumerate(x.flatten().tolist()):
        ends[place] = (pixel, pixel)
    values, truth, farthest = encoder.forward(x)[0].numpy(), output.constant, np.zeros(2)
    for feature in range(2):
        for sign in (1.0, -1.0):
            relaxed = np.array(program.limits) + 1e-6 * sizes
            binary = [k for k, flag in enumerate(program.binary) if flag]
            solved = nearly_binary(sign * cost[feature], matrix, relaxed, ends, binary)
            reached = cost[feature] @ solved + truth[feature]
            farthest[feature] = max(farthest[feature], abs(reached - values[feature]))
    assert (farthest <= output.error).all()
    assert (farthest > 1e-9).all(), "vacuous: the solver lets nothing pass"


def nearly_binary(cost: Any, matrix: Any, limits: Any, ends: list[tuple[float, float]], binary: list[int]) -> Any:
    """The best variables of a program whose binaries miss 0 or 1 by a millionth."""
    integral: Any = milp(
        cost,
        integrality=np.isin(np.arange(len(cost)), binary).astype(int),
        bounds=Bounds(*np.array(ends).T),
        constraints=LinearConstraint(matrix, ub=limits),
    ).x
    for place in binary:
        ends = [*ends[:place], (round(integral[place]) - 1e-6, round(integral[place]) + 1e-6), *ends[place + 1 :]]
    return linprog(cost, matrix, limits, bounds=ends).x
