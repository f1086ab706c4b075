"""Planted faults: each makes some bound unsound or loose, and the checks of this folder must notice.

What is planted here are the mistakes that bound propagation invites. The check is the same for all: no point of a ball
may lie below a bound, and bounds of an affine network are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import Alpha, Branch, Crown, Interval, Method, lower_bound, regions
from holdfast.bounds.methods import branch as receptive_fields
from holdfast.bounds.methods import branch_and_bound, crown
from holdfast.bounds.network import network_graph as affine
from holdfast.bounds.network import tracing
from holdfast.bounds.network.forms import Form, Windows, gather
from holdfast.bounds.relaxations import Box, LinearRelaxation
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from tests.bounds.checks import lowest, points
from tests.bounds.networks import trained

SHAPE = (2, 4, 4)
Fault = Callable[[pytest.MonkeyPatch], None]
Gains = dict[type[Ball], Callable[[Tensor, Tensor, Tensor], Tensor]]


@cache
def networks() -> dict[str, Encoder]:
    torch.manual_seed(3)
    modules = {
        "affine": nn.Sequential(nn.Conv2d(2, 3, (3, 2), 1, 1), nn.Flatten(), nn.Linear(60, 2)),
        "conv": nn.Sequential(
            nn.Conv2d(2, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)
        ),
        "norm": nn.Sequential(
            nn.Conv2d(2, 3, 2), trained(nn.BatchNorm2d(3)), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)
        ),
        "chain": nn.Sequential(
            *(nn.Conv2d(2, 3, 3, 1, 1), trained(nn.BatchNorm2d(3)), nn.ReLU()),
            *(nn.Conv2d(3, 8, (2, 3), 1, (1, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(160, 2)),
        ),
        "small": nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
        "smooth": nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.Tanh(), nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)),
        "pool": nn.Sequential(nn.Conv2d(2, 3, 3, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)),
        "norm of code": nn.Sequential(nn.Flatten(), nn.Linear(32, 2), Squared()),
    }
    return {name: Encoder(m.eval(), name, Domain(SHAPE)).to("cpu", torch.float64) for name, m in modules.items()}


class Squared(nn.Module):
    """Products of neighbouring features."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.roll(1, 1)


BALLS: tuple[Ball, ...] = (Linf(0.4), Linf(0.05), L2(0.5), L1(1.0))
METHODS: tuple[Method, ...] = (Crown(joint=False), Crown(), Interval())
SEARCHES: tuple[Method, ...] = (
    Alpha(steps=10, inner=5),
    Branch(target=9.0, parts=16, inner=5, steps=10, ascent=10, batch=4),
)
"""Methods that take longer; where a fault of theirs would show, they are run."""


@cache
def scenes() -> list[tuple[str, Tensor, Tensor, list[Tensor]]]:
    """Each network with two images, specifications, and the least values that searches find in each ball."""
    found = []
    for name, encoder in networks().items():
        x = torch.rand(2, *SHAPE, dtype=torch.float64)
        x[1] = x[1].round()  # pixels at the ends, so that clipping matters
        specifications = torch.randn(2, 3, 2, dtype=torch.float64)
        leasts = [
            torch.stack([lowest(encoder, x[i : i + 1], specifications[i], ball, 400) for i in range(2)])
            for ball in BALLS
        ]
        found.append((name, x, specifications, leasts))
    return found


def violations() -> Iterator[str]:
    """Everything that the checks object to."""
    tracing._GRAPHS.clear()  # graphs hold rules that were made before a fault was planted
    for name, x, specifications, leasts in scenes():
        encoder = networks()[name]
        for ball, least in zip(BALLS, leasts, strict=True):
            searched = name in ("small", "chain") and ball == BALLS[0]
            for method in METHODS + (SEARCHES if searched else ()):
                bound = lower_bound(encoder, x, specifications, ball, method)
                if (bound > least + 1e-7).any():
                    yield f"{name}, {ball}, {method}: a point lies below the bound"
                if name == "affine" and isinstance(ball, Linf) and (bound < least - 1e-6).any():
                    yield f"{name}, {ball}, {method}: the bound of an affine network is not exact"
                if not bound.isfinite().all():
                    yield f"{name}, {ball}, {method}: nothing is known"
        if name == "chain":
            yield from outside(encoder, x)


def outside(encoder: Encoder, x: Tensor) -> Iterator[str]:
    """Inner values that boxes do not hold."""
    for eps in (0.02, 0.1, 0.4):
        around = regions.region(x, Linf, torch.full((2,), eps, dtype=x.dtype), encoder.domain)
        with torch.no_grad():
            boxes = receptive_fields.relax_and_refine(tracing.trace(encoder), around, 5, 0.25, 9.0).intermediate_bounds
        for image in range(2):
            seen = tracing.trace(encoder).values(points(encoder, x[image : image + 1], Linf(eps), 400))
            for box, value in zip(boxes, seen, strict=True):
                if (box.lower[image] > value + 1e-7).any() or (box.upper[image] < value - 1e-7).any():
                    yield f"an inner value lies outside its box at {eps}"


def rule(name: str, patch: pytest.MonkeyPatch, change: Callable[..., LinearRelaxation]) -> None:
    """Replace what a rule relaxes to by a change of it."""
    true = affine.RULES[name]
    patch.setitem(affine.RULES, name, replace(true, relax=lambda *boxes: change(true.relax(*boxes), *boxes)))


def _wrong_chord(relaxation: LinearRelaxation, box: Box) -> LinearRelaxation:
    return relaxation._replace(upper=(relaxation.upper[0] * 0.9,))


def _no_ceiling(relaxation: LinearRelaxation, box: Box) -> LinearRelaxation:
    return relaxation._replace(ceiling=None)


def _falling_below(relaxation: LinearRelaxation, box: Box) -> LinearRelaxation:
    assert relaxation.unstable is not None
    return relaxation._replace(lower=(torch.where(relaxation.unstable, -0.3, relaxation.lower[0]),))


def _swapped_sides(form: Form, relaxation: LinearRelaxation) -> tuple[Sequence[Form], Tensor]:
    swapped = LinearRelaxation(
        relaxation.upper, relaxation.lower, relaxation.ceiling, relaxation.floor, relaxation.unstable
    )
    return TRUE_THROUGH(form, swapped)


TRUE_THROUGH = crown.propagate_nonlinear


def _patched_interval(patch: pytest.MonkeyPatch, name: str, change: Callable[[Box], Box]) -> None:
    true = affine.RULES[name]
    patch.setitem(affine.RULES, name, replace(true, interval=lambda *boxes: change(true.interval(*boxes))))


def _no_bias(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(affine.Convolution, "offset", property(lambda self: None))


def _flipped_kernel(patch: pytest.MonkeyPatch) -> None:
    true = affine.Convolution._scattered

    def flipped(self: affine.Convolution, coef: Tensor) -> Tensor:
        return true(replace(self, weight=self.weight.flip(2)), coef)

    patch.setattr(affine.Convolution, "_scattered", flipped)


def _wrong_offset(patch: pytest.MonkeyPatch) -> None:
    true = affine.Convolution._windows
    patch.setattr(
        affine.Convolution, "_windows", lambda self, form, place: true(replace(self, padding=(0, 0)), form, place)
    )


def _no_magnitude(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        affine.Convolution, "magnitude", lambda self, r: self._convolve(r.flatten(0, 1), None).unflatten(0, r.shape[:2])
    )


def _no_radius_sign(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(affine.Diagonal, "magnitude", lambda self, *radii: self._sum(self.factors, radii))


def _smaller_ball(patch: pytest.MonkeyPatch) -> None:
    true = regions.region
    patch.setattr(
        "holdfast.bounds.lower_bounds.region",
        lambda x, ball, eps, domain, **more: true(x, ball, eps * 0.9, domain, **more),
    )


def _no_clip(patch: pytest.MonkeyPatch) -> None:
    true = regions.region
    wide = lambda domain: Domain(domain.shape, -9.0, 9.0)  # noqa: E731
    patch.setattr(
        "holdfast.bounds.lower_bounds.region",
        lambda x, ball, eps, domain, **more: true(x, ball, eps, wide(domain), **more),
    )


def _no_transpose(patch: pytest.MonkeyPatch) -> None:
    true = affine.General.transpose

    def wrong(self: affine.General, form: Form) -> list[Form]:
        return [Form(part.coef.flip(-1), part.shape) for part in true(self, form)]

    patch.setattr(affine.General, "transpose", wrong)


def _free_slopes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tensor, "clamp_", lambda self, *args, **kwargs: self)


def _wrong_half(patch: pytest.MonkeyPatch) -> None:
    true = branch_and_bound.BranchAndBound.relax

    def wrong(self: branch_and_bound.BranchAndBound, some: branch_and_bound.Subdomains) -> crown.NetworkRelaxation:
        return true(self, replace(some, signs={node: signs.abs() for node, signs in some.signs.items()}))

    patch.setattr(branch_and_bound.BranchAndBound, "relax", wrong)


def _flipped_multiplier(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: branch_and_bound.SubdomainParameters, node: int, forms: Sequence[Form]) -> Sequence[Form]:
        (form,) = forms
        return (
            [form.like(form.coef + (self.multipliers[node] * self.signs[node])[:, None])]
            if node in self.multipliers
            else forms
        )

    patch.setattr(branch_and_bound.SubdomainParameters, "constrain", wrong)


def _best_part(patch: pytest.MonkeyPatch) -> None:
    def wrong(closed: Tensor, some: branch_and_bound.Subdomains) -> Tensor:
        return torch.where(closed.isinf(), -torch.inf, closed).scatter_reduce(0, some.owner, some.bounds, "amax")

    patch.setattr(branch_and_bound, "_least_bounds", wrong)


def _alive_beyond_the_edge(patch: pytest.MonkeyPatch) -> None:
    def wrong(values: Tensor, place: Windows, size: tuple[int, ...]) -> Tensor:
        return gather(values, place, size).masked_fill(values.eq(1).all(), 1)

    patch.setattr("holdfast.bounds.methods.branch.gather", wrong)


def _unpadded_crops(patch: pytest.MonkeyPatch) -> None:
    true = receptive_fields._widen
    patch.setattr(
        receptive_fields, "_widen", lambda place, size, conv: true(place, size, replace(conv, padding=(0, 0)))
    )


def _turned_crops(patch: pytest.MonkeyPatch) -> None:
    true = receptive_fields.ReceptiveField.relax
    patch.setattr(receptive_fields.ReceptiveField, "relax", lambda self, whole, where: true(self, whole, where.flip(0)))


def _greedy_gain(patch: pytest.MonkeyPatch) -> None:
    gains: Gains = {**regions.GAINS, L1: lambda slope, room, eps: slope.amax(-1) * eps * 0.8}
    patch.setattr(regions, "GAINS", gains)


def _short_gain(patch: pytest.MonkeyPatch) -> None:
    gains: Gains = {**regions.GAINS, L2: lambda slope, room, eps: 0 * slope.sum(-1)}
    patch.setattr(regions, "GAINS", gains)


FAULTS: dict[str, Fault] = {
    "a chord too flat": lambda patch: rule("relu", patch, _wrong_chord),
    "a chord without its constant": lambda patch: rule("relu", patch, _no_ceiling),
    "a lower slope below zero": lambda patch: rule("relu", patch, _falling_below),
    "planes of the wrong side": lambda patch: patch.setattr(crown, "propagate_nonlinear", _swapped_sides),
    "a smooth ceiling too low": lambda patch: rule("tanh", patch, lambda p, box: p._replace(ceiling=p.ceiling - 0.01)),
    "a smooth floor too high": lambda patch: rule("gelu", patch, lambda p, box: p._replace(floor=p.floor + 0.01)),
    "McCormick with one plane twice": lambda patch: rule("product", patch, lambda p, *b: p._replace(floor=p.ceiling)),
    "an interval cut short": lambda patch: _patched_interval(
        patch, "relu", lambda box: Box(box.lower, 0.3 * box.upper)
    ),
    "a dropped bias": _no_bias,
    "a kernel not turned": _flipped_kernel,
    "windows in the wrong place": _wrong_offset,
    "magnitudes without absolute values": _no_magnitude,
    "a negative factor's radius": _no_radius_sign,
    "a transpose that is none": _no_transpose,
    "a ball too small": _smaller_ball,
    "a missing clip": _no_clip,
    "slopes outside [0, 1]": _free_slopes,
    "both halves the same": _wrong_half,
    "a multiplier's sign": _flipped_multiplier,
    "the best part for the worst": _best_part,
    "crops that go on beyond the edge": _alive_beyond_the_edge,
    "crops without padding": _unpadded_crops,
    "crops of other places": _turned_crops,
    "an l1 ball by its largest slope": _greedy_gain,
    "an l2 ball without a step": _short_gain,
}


@pytest.mark.slow
def test_the_checks_are_silent_without_a_fault() -> None:
    assert list(violations()) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes()
    FAULTS[fault](monkeypatch)
    assert next(violations(), None), fault
    monkeypatch.undo()
    tracing._GRAPHS.clear()
