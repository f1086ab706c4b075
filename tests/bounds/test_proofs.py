"""Proofs: what the fast bounds find is proved by a program that shares nothing with them; what was tampered with is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from holdfast.bounds import read_method
from holdfast.bounds.methods.base import methods
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.proofs.checking import ProofError, bounded_below, check, constant_above, covers, verified_boxes
from holdfast.bounds.proofs.making import choices, plain_network
from holdfast.bounds.proofs.proof import Leaves, PlainNetwork, Proof, Step
from holdfast.bounds.regions import region
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from tests.bounds.networks import SHAPE, shared
from tests.marks import rest_slow

QUICK = {
    "interval": "interval",
    "crown": "crown",
    "alpha": "alpha:steps=6,inner=4",
    "branch": "branch:seconds=3,steps=6,inner=3,parts=300",
}
SPLIT = ("linear", "strided")
"""Where branch and bound has something to split."""
OPERATIONS = (
    "linear", "conv", "strided", "dilated", "unrectified", "transposed", "conv1d", "residual", "batch norm",
    "global pool", "max pool", "leaky relu", "clamp", "resizing", "views",
)  # fmt: skip


def images(count: int = 3) -> torch.Tensor:
    return Noise.of(3, [str(k) for k in range(count)]).uniform(SHAPE, torch.float64)


@cache
def network(name: str) -> PlainNetwork:
    return plain_network(trace(shared(name)), shared(name).domain)


def directions(encoder: Encoder, pixels: torch.Tensor) -> torch.Tensor:
    codes = encoder.forward(pixels)
    return codes / codes.norm(dim=1, keepdim=True)


def proof_of(encoder: Encoder, method: str, eps: float, pixels: torch.Tensor) -> tuple[Proof, torch.Tensor]:
    """The proof for the first image against the others, and the bounds of the method itself."""
    codes, graph = directions(encoder, pixels), trace(encoder)
    specifications = (codes[:1] - codes[1:])[None]
    around = region(pixels[:1], Linf, torch.tensor([eps], dtype=torch.float64), encoder.domain)
    chosen = choices(graph, around, specifications, read_method(method))
    rows, names = pixels.flatten(1).numpy(), tuple(f"other {k}" for k in range(len(pixels) - 1))
    proof = Proof("image", names, eps, rows[0], rows[1:], chosen.claims, chosen.slopes, chosen.leaves)
    return Proof.of_arrays(proof.arrays()), read_method(method)(graph, around, specifications)[0]


@cache
def proved(name: str, method: str) -> tuple[Proof, torch.Tensor]:
    """A proof at a radius where it holds: found by trying for the cheap methods, and that of CROWN or more for others."""
    eps = 0.4 if method in ("interval", "crown") else proved(name, "crown")[0].eps
    if method == "branch" and name in SPLIT:
        eps *= 2
    while eps > 1e-4:
        proof, bounds = proof_of(shared(name), QUICK[method], eps, images())
        if bool((bounds > 1e-6).all()):
            return proof, bounds
        eps /= 1.1 if method == "branch" else 1.5
    raise AssertionError("nothing can be proved of this network")


CASES = [
    *((name, "crown") for name in ("linear", "conv", "residual", "leaky relu")),
    *(("linear", method) for method in ("interval", "alpha", "branch")),
]


@pytest.mark.parametrize(
    ("name", "method"),
    rest_slow([*CASES, *(case for case in product(OPERATIONS, QUICK) if case not in CASES)], fast=len(CASES)),
)
def test_what_is_certified_is_proved_again(name: str, method: str) -> None:
    proof, bounds = proved(name, method)
    least = check(network(name), proof, proof.eps)
    assert list(least) == ["other 0", "other 1"]
    if method in ("crown", "alpha"):
        assert list(least.values()) == pytest.approx(bounds.tolist(), rel=1e-3, abs=1e-5), "as tight as the fast bound"
    encoder, pixels = shared(name), images()
    share = Noise.of(5, [str(k) for k in range(400)]).uniform(SHAPE, torch.float64)
    share[::2] = share[::2].round()
    points = encoder.domain.clip(pixels[:1] + proof.eps * (2 * share - 1))
    codes = directions(encoder, pixels)
    lowest = (encoder.forward(points) @ (codes[:1] - codes[1:]).T).amin(0)
    assert all(bound <= value for bound, value in zip(least.values(), lowest.tolist(), strict=True))


def test_branch_and_bound_has_split_something() -> None:
    assert len(proved("linear", "branch")[0].leaves.negatives) > 2


@pytest.mark.parametrize("name", rest_slow(["max pool", "residual", "conv"]))
def test_values_lie_in_the_boxes_that_are_proved(name: str) -> None:
    proof, _ = proved(name, "alpha")
    boxes, graph = verified_boxes(network(name), proof), trace(shared(name))
    share = Noise.of(7, [str(k) for k in range(200)]).uniform(SHAPE, torch.float64).round()
    values = graph.values((images()[:1] + proof.eps * (2 * share - 1)).clamp(0, 1))
    for node, value in zip(graph.nodes, values, strict=True):
        low, high = boxes[node.index]
        assert (value.flatten(1).numpy() >= low - 1e-12).all()
        assert (value.flatten(1).numpy() <= high + 1e-12).all()


def tampered_slopes(value: float) -> Callable[[Proof], Proof]:
    def change(proof: Proof) -> Proof:
        slopes = {relu: np.full_like(each, value) for relu, each in proof.slopes.items()}
        leaves = replace(proof.leaves, slopes={relu: np.full_like(s, value) for relu, s in proof.leaves.slopes.items()})
        return replace(proof, slopes=slopes, leaves=leaves)

    return change


def without_a_leaf(proof: Proof) -> Proof:
    kept = np.arange(1, len(proof.leaves.negatives))
    kinds: list[Any] = [proof.leaves.signs, proof.leaves.slopes, proof.leaves.multipliers]
    parts = ({relu: values[kept] for relu, values in kind.items()} for kind in kinds)
    return replace(proof, leaves=Leaves(proof.leaves.negatives[kept], *parts))


def with_signs(proof: Proof) -> Proof:
    """Every subdomain pretends to be a part of what it is."""
    return replace(
        proof, leaves=replace(proof.leaves, signs={k: np.ones_like(v) for k, v in proof.leaves.signs.items()})
    )


def with_multipliers(value: float) -> Callable[[Proof], Proof]:
    def change(proof: Proof) -> Proof:
        made = {relu: np.full_like(each, value) for relu, each in proof.leaves.multipliers.items()}
        return replace(proof, leaves=replace(proof.leaves, multipliers=made))

    return change


def narrower_claims(proof: Proof) -> Proof:
    def narrow(claim: Any) -> Any:
        room = 0.2 * (claim.high - claim.low)
        return replace(claim, low=claim.low + room, high=claim.high - room)

    return replace(proof, claims={node: narrow(claim) for node, claim in proof.claims.items()})


def of_one_negative(proof: Proof) -> Proof:
    return replace(proof, leaves=replace(proof.leaves, negatives=proof.leaves.negatives * 0))


TAMPERED: dict[str, tuple[Callable[[Proof], Proof], str]] = {
    "slope above one": (tampered_slopes(1.25), "slope outside of"),
    "slope below zero": (tampered_slopes(-0.25), "slope outside of"),
    "slope that is no number": (tampered_slopes(np.nan), "slope outside of"),
    "removed subdomain": (without_a_leaf, "do not cover the ball"),
    "subdomains that are parts": (with_signs, "do not cover the ball"),
    "negative multiplier": (with_multipliers(-1.0), "multiplier that is negative"),
    "infinite multiplier": (with_multipliers(np.inf), "multiplier that is negative or not finite"),
    "larger radius": (lambda proof: replace(proof, eps=1.3 * proof.eps), "not proved|not positive"),
    "narrower claims": (narrower_claims, "not proved by its slopes"),
    "swapped anchor": (
        lambda proof: replace(proof, anchor=proof.negatives[0], negatives=np.stack([proof.anchor, proof.negatives[1]])),
        "not proved|not positive",
    ),
    "subdomains of one negative alone": (of_one_negative, "do not cover"),
    "pixels out of range": (lambda proof: replace(proof, anchor=proof.anchor - 2), "outside of the range"),
    "negative named twice": (lambda proof: replace(proof, negative_ids=("other 0", "other 0")), "names a negative twice"),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERED)
@pytest.mark.parametrize("method", ["crown", "alpha", "branch"])
@pytest.mark.parametrize("name", rest_slow(SPLIT))
def test_what_was_tampered_with_is_rejected(name: str, method: str, what: str) -> None:
    change, expected = TAMPERED[what]
    proof, _ = proved(name, method)
    with pytest.raises(ProofError, match=expected):
        check(network(name), change(proof))


def test_slopes_that_are_sound_but_not_those_that_were_chosen_prove_less() -> None:
    proof, bounds = proved("strided", "alpha")
    for value in (0.0, 1.0):
        changed = tampered_slopes(value)(proof)
        try:
            least = check(network("strided"), changed)
        except ProofError:
            continue
        assert min(least.values()) <= bounds.min()


def test_a_proof_is_of_the_radius_that_is_asked_for() -> None:
    """Neither of a larger one, which proves more, nor of a smaller one, which proves less."""
    proof, _ = proved("linear", "crown")
    assert check(network("linear"), proof, proof.eps)
    for asked in (proof.eps * 0.5, proof.eps * 2, np.nextafter(proof.eps, 1)):
        with pytest.raises(ProofError, match="it is for radius"):
            check(network("linear"), proof, float(asked))


def test_lines_of_any_slope_lie_above_relus_at_both_ends() -> None:
    generator = np.random.default_rng(0)
    low, high = -(10.0 ** generator.uniform(-3, 3, 500)), 10.0 ** generator.uniform(-3, 3, 500)
    slopes = np.where(np.arange(500) % 2, generator.uniform(0, 1, 500), high / (high - low))
    constants = constant_above(slopes, low, high)
    for s, c, a, b in zip(*(map(Fraction, each.tolist()) for each in (slopes, constants, low, high)), strict=True):
        least = max(-s * a, b - s * b)
        assert least <= c <= least + (b - a) * Fraction(1e-14)


def test_forms_lose_what_rounding_makes_of_coefficients_that_cancel() -> None:
    """In rational numbers, at one point: each coefficient of a pixel is a sum of large numbers that nearly cancel."""
    generator = np.random.default_rng(0)
    for _ in range(30):
        form, weight, x = generator.normal(size=6), 1e6 * generator.normal(size=(6, 3)), generator.uniform(size=3)
        weight -= np.outer(form, form @ weight) / (form @ form)
        plain = PlainNetwork((Step((), 3), Step((0,), 6, (csr_array(weight),))), 0.0, 1.0)
        bound = bounded_below(plain, {0: (x, x)}, 1, form[None], None).item()
        exact = sum(
            Fraction(f) * Fraction(w) * Fraction(v)
            for f, row in zip(form.tolist(), weight.tolist(), strict=True)
            for w, v in zip(row, x.tolist(), strict=True)
        )
        assert Fraction(bound) <= exact <= Fraction(bound) + Fraction(1e-6)


def test_an_upper_end_alone_is_no_more_believed_than_a_lower_one() -> None:
    """A claim of a box that is too narrow at one end."""
    proof, _ = proved("linear", "crown")
    assert proof.claims, "vacuous"
    middles = {node: (claim.low + claim.high) / 2 for node, claim in proof.claims.items()}
    for moved in (
        {node: replace(claim, low=middles[node]) for node, claim in proof.claims.items()},
        {node: replace(claim, high=middles[node]) for node, claim in proof.claims.items()},
    ):
        with pytest.raises(ProofError):
            check(network("linear"), replace(proof, claims=moved))


def test_boxes_hold_those_of_exact_arithmetic() -> None:
    """Of pixels, and of an affine step of them, whose sums of large numbers cancel."""
    torch.manual_seed(0)
    linear = nn.Linear(72, 40).double()
    with torch.no_grad():
        linear.weight[:, 1:].copy_(-linear.weight[:, :-1].roll(1, 0))
        linear.weight.mul_(1e6)
    encoder = Encoder(nn.Sequential(nn.Flatten(), linear).eval(), "linear", Domain(SHAPE))
    plain, pixels = plain_network(trace(encoder), encoder.domain), images()
    proof, _ = proof_of(encoder, "interval", 0.1, pixels)
    boxes, eps = verified_boxes(plain, proof), Fraction(0.1)
    low = [max(Fraction(v) - eps, Fraction(0)) for v in proof.anchor.tolist()]
    high = [min(Fraction(v) + eps, Fraction(1)) for v in proof.anchor.tolist()]
    off = [a != b for ends, exact in zip(boxes[0], (low, high), strict=True) for a, b in zip(ends, exact, strict=True)]
    assert any(off), "vacuous: nothing was rounded"
    exact_boxes = {0: (low, high)}
    last = len(plain.steps) - 1
    exact_boxes[last] = ([], [])
    for row, bias in zip(linear.weight.tolist(), linear.bias.tolist(), strict=True):
        terms = [(Fraction(w) * a, Fraction(w) * b) for w, a, b in zip(row, low, high, strict=True)]
        for ends, pick in zip(exact_boxes[last], (min, max), strict=True):
            ends.append(sum(map(pick, terms), Fraction(bias)))
    for step, (least, most) in exact_boxes.items():
        below, above = (list(map(Fraction, end.tolist())) for end in boxes[step])
        assert all(mine <= exact for mine, exact in zip(below, least, strict=True))
        assert all(mine >= exact for mine, exact in zip(above, most, strict=True))


@pytest.mark.parametrize("seed", rest_slow(range(20), fast=7))
def test_bounds_of_linear_networks_lie_below_the_exact_minimum(seed: int) -> None:
    """Rounding is counted: in exact arithmetic, the minimum of ``W x`` over the box is no less than what is returned."""
    torch.manual_seed(seed)
    scale = 10.0 ** (seed % 7)
    linear = nn.Linear(72, 3).double()
    linear.bias.data *= scale
    encoder = Encoder(nn.Sequential(nn.Flatten(), linear).eval(), "linear", Domain(SHAPE))
    plain, pixels = plain_network(trace(encoder), encoder.domain), images()
    proof, _ = proof_of(encoder, "interval", 0.05, pixels)
    forms = np.array([[1.0, -0.7, 0.1], [0.3, 0.2, -1e-9]])
    bounds = bounded_below(plain, verified_boxes(plain, proof), len(plain.steps) - 1, forms, None)
    weight = [[Fraction(value) for value in row] for row in linear.weight.tolist()]
    bias = [Fraction(value) for value in linear.bias.tolist()]
    low = [max(Fraction(v) - Fraction(0.05), Fraction(0)) for v in proof.anchor.tolist()]
    high = [min(Fraction(v) + Fraction(0.05), Fraction(1)) for v in proof.anchor.tolist()]
    for form, bound in zip(forms.tolist(), bounds.tolist(), strict=True):
        row = [sum((Fraction(f) * weight[k][i] for k, f in enumerate(form)), Fraction(0)) for i in range(72)]
        exact = sum((c * (low[i] if c > 0 else high[i]) for i, c in enumerate(row)), Fraction(0))
        exact += sum((Fraction(f) * b for f, b in zip(form, bias, strict=True)), Fraction(0))
        assert Fraction(bound) <= exact
        assert float(exact) - bound < 1e-10 * scale, "so loose that it says nothing"


def test_slopes_that_add_up_in_one_place_are_damage() -> None:
    """Each of them lies in [0, 1], and their sum does not."""
    proof, _ = proved("linear", "crown")
    node, relu = next(iter(proof.claims)), next(iter(proof.slopes))
    arrays = proof.arrays() | {
        f"claim.{node}.entries": np.ones(1, np.int64),
        f"claim.{node}.signs": np.ones(1, np.int8),
    }
    parts = {"data": np.array([0.75, 0.75]), "indices": np.array([1, 1]), "indptr": np.array([0, 2])}
    arrays |= {f"claim.{node}.slopes.{relu}.{part}": values for part, values in parts.items()}
    with pytest.raises(HoldfastError, match="has two entries in one place"):
        Proof.of_arrays(arrays)
    arrays[f"claim.{node}.slopes.{relu}.indices"] = np.array([1, 2])
    assert Proof.of_arrays(arrays).claims[node].slopes[relu].toarray().max() == 0.75


def test_numbers_that_are_no_float64_are_damage() -> None:
    """Of int8, the absolute value of -128 is -128."""
    arrays = network("linear").arrays()
    for name in (next(name for name in arrays if name.endswith(end)) for end in (".data", ".offset", "range")):
        with pytest.raises(HoldfastError, match=f"{name} is of int8, not of float64"):
            PlainNetwork.of_arrays({**arrays, name: np.full(arrays[name].shape, -128, np.int8)})
    proof = proved("linear", "crown")[0].arrays()
    names = ["anchor", "negatives", "eps", *(name for name in proof if name.startswith("claim.") and "low" in name)]
    for name in names:
        with pytest.raises(HoldfastError, match=f"{name} is of int8, not of float64"):
            Proof.of_arrays({**proof, name: proof[name].astype(np.int8)})


def test_covering_is_what_it_says() -> None:
    """Against counting: what is called a cover leaves out no combination of signs."""
    generator = np.random.default_rng(0)
    verdicts = set()
    for _ in range(2000):
        signs = generator.integers(-1, 2, (generator.integers(1, 6), 3)).astype(np.int8)
        complete = all(
            any(all(s in (0, c) for s, c in zip(row, corner, strict=True)) for row in signs.tolist())
            for corner in product((-1, 1), repeat=3)
        )
        verdicts.add((covers(signs), complete))
        assert complete or not covers(signs)
    assert (True, True) in verdicts
    assert (False, False) in verdicts


@pytest.mark.parametrize("method", sorted(set(methods()) - set(QUICK)))
def test_methods_without_proofs_are_named(method: str) -> None:
    with pytest.raises(HoldfastError, match=f"not of {method}"):
        proof_of(shared("linear"), method, 0.01, images())


@pytest.mark.parametrize("name", rest_slow(["gelu", "attention", "unit length"]))
def test_networks_without_proofs_are_named(name: str) -> None:
    with pytest.raises(HoldfastError, match="affine operations and ReLUs, not of '"):
        plain_network(trace(shared(name)), shared(name).domain)
