"""Certify runs as queries for other verifiers: ONNX networks and VNN-LIB text.

The text is written and read here.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import inf, nextafter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from holdfast.bounds.certificates import UNCERTAIN, Certificates, codes_in_float32, file_stem, highest
from holdfast.bounds.certified_pairs import Pairs
from holdfast.bounds.methods.interval import intermediate_bounds
from holdfast.bounds.network.tracing import precision_of
from holdfast.bounds.regions import region
from holdfast.bounds.relaxations import Box
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, first_line
from holdfast.core.run_settings import Observed
from holdfast.encoders.by_name import require
from holdfast.measure.population import Population
from holdfast.measure.store import Store

# VNN-LIB, the text in which verifiers exchange queries: which inputs are looked at, and which outputs would refute.
#
# What is read is the part of it that the competitions of verifiers use (https://www.vnnlib.org, version 1): constants
# ``X_0 ...`` and ``Y_0 ...``, a box of inputs, and linear inequalities between outputs, joined by ``and`` and ``or``.
# A query asks for an input in a box whose outputs satisfy all inequalities of some disjunct: ``sat`` if there is one,
# else ``unsat``.

MOST = 10_000
"""Disjuncts that a query may be multiplied out to."""

Term = dict[str, Fraction]
"""Coefficients of variables; that of the empty name is the constant."""
Formula = list[list[Term]]
"""A disjunction of conjunctions of terms that are at most zero."""
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Disjunct:
    """Inputs from ``low`` to ``high`` (n,) whose outputs ``y`` have ``specifications @ y <= offsets``, (m, d) and (m,)."""

    low: Vector
    high: Vector
    specifications: Vector
    offsets: Vector

    def holds(self, outputs: Vector) -> bool:
        """Return whether ``outputs`` (d,) satisfy all inequalities."""
        return bool((self.specifications @ outputs <= self.offsets).all())


def write(disjunct: Disjunct, comments: Sequence[str] = ()) -> str:
    """Return the text of a query of one disjunct; numbers are those of float64, exactly.

    Example:
        >>> box = np.array([0.25]), np.array([0.5])
        >>> print(write(Disjunct(*box, np.array([[1.0, -2.0]]), np.array([0.0]))))
        (declare-const X_0 Real)
        (declare-const Y_0 Real)
        (declare-const Y_1 Real)
        (assert (>= X_0 0.25))
        (assert (<= X_0 0.5))
        (assert (<= (+ (* 1.0 Y_0) (* -2.0 Y_1)) 0.0))
        <BLANKLINE>
    """
    lines = [f"; {comment}" for comment in comments]
    lines += [f"(declare-const X_{i} Real)" for i in range(len(disjunct.low))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(disjunct.specifications.shape[1])]
    for i, (low, high) in enumerate(zip(disjunct.low, disjunct.high, strict=True)):
        lines += [f"(assert (>= X_{i} {decimal(low)}))", f"(assert (<= X_{i} {decimal(high)}))"]
    for specification, offset in zip(disjunct.specifications, disjunct.offsets, strict=True):
        terms = [f"Y_{i}" if weight == 1 and (specification != 0).sum() == 1 else f"(* {decimal(weight)} Y_{i})"
                 for i, weight in enumerate(specification) if weight]  # fmt: skip
        total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
        lines.append(f"(assert (<= {total} {decimal(offset)}))")
    return "\n".join(lines) + "\n"


def decimal(value: float) -> str:
    """Return ``value`` exactly, every digit of it, without an exponent, which the format has none of.

    Example:
        >>> decimal(2.0**-10), decimal(-2.5), decimal(0.0)
        ('0.0009765625', '-2.5', '0.0')
    """
    text = format(Decimal(float(value)), "f")
    return text if "." in text else f"{text}.0"


def read(text: str, name: str) -> tuple[Disjunct, ...]:
    """Return the disjuncts of the query ``text``, called ``name`` in errors; those whose box is empty are left out.

    Ends of boxes are rounded outward where float64 does not hold them; coefficients are rounded to the nearest.

    Raises:
        HoldfastError: it is not a query, or has more than boxes of inputs and linear inequalities of outputs.
    """
    sizes, formulas = {"X": 0, "Y": 0}, list[Formula]()
    for statement in _expressions(text, name):
        match statement:
            case ["declare-const" | "declare-fun", str(variable), *_] if kind := re.fullmatch(
                r"([XY])_(\d+)", variable
            ):
                sizes[kind[1]] = max(sizes[kind[1]], int(kind[2]) + 1)
            case ["assert", condition]:
                formulas.append(_formula(condition, name))
            case _:
                raise HoldfastError(f"{name} says {_shown(statement)}; a query declares X_i and Y_i, and asserts")
    if not sizes["X"] or not sizes["Y"]:
        raise HoldfastError(f"{name} declares {sizes['X']} inputs X_i and {sizes['Y']} outputs Y_i; a query has both")
    disjuncts = (_disjunct(terms, sizes, name) for terms in _joined(formulas, name))
    return tuple(disjunct for disjunct in disjuncts if disjunct is not None)


def _expressions(text: str, name: str) -> Iterator[object]:
    """Yield each expression in parentheses as a nested list of words."""
    stack: list[list[object]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text)):
        if token == "(":
            stack.append([])
        elif token == ")" and len(stack) > 1:
            closed = stack.pop()
            stack[-1].append(closed)
        elif token == ")":
            raise HoldfastError(f"{name} closes a parenthesis that was never opened; it is not VNN-LIB")
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise HoldfastError(f"{name} ends within a parenthesis; it is cut off, or not VNN-LIB")
    yield from stack[0]


def _formula(condition: object, name: str) -> Formula:
    match condition:
        case ["and", *parts]:
            return _joined([_formula(part, name) for part in parts], name)
        case ["or", *parts]:
            return [conjunction for part in parts for conjunction in _formula(part, name)]
        case ["<=", left, right]:
            return [[_sum([(1, _term(left, name)), (-1, _term(right, name))])]]
        case [">=", left, right]:
            return [[_sum([(-1, _term(left, name)), (1, _term(right, name))])]]
    raise HoldfastError(f"{name} asserts {_shown(condition)}; conditions are made of <=, >=, and, or")


def _joined(formulas: Iterable[Formula], name: str) -> Formula:
    """Return the conjunction of formulas, multiplied out."""
    parts = list(formulas)
    count = int(np.prod([float(len(part)) for part in parts]))
    if count > MOST:
        raise HoldfastError(f"{name} has {count:,} disjuncts when it is multiplied out; at most {MOST:,} are read")
    return [[term for conjunction in choice for term in conjunction] for choice in product(*parts)]


def _term(expression: object, name: str) -> Term:
    match expression:
        case str(word) if re.fullmatch(r"[XY]_\d+", word):
            return {word: Fraction(1)}
        case str(word) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", word):
            return {"": Fraction(word)}
        case ["+", *parts]:
            return _sum([(1, _term(part, name)) for part in parts])
        case ["-", part]:
            return _sum([(-1, _term(part, name))])
        case ["-", first, *parts]:
            return _sum([(1, _term(first, name)), *((-1, _term(part, name)) for part in parts)])
        case ["*", left, right]:
            factors = _term(left, name), _term(right, name)
            for constant, other in (factors, factors[::-1]):
                if constant.keys() <= {""}:
                    return _sum([(constant.get("", 0), other)])
    raise HoldfastError(f"{name} has the term {_shown(expression)}; only linear terms of X_i and Y_i can be read")


def _sum(parts: Iterable[tuple[Fraction | int, Term]]) -> Term:
    total: Term = {}
    for factor, term in parts:
        for variable, coefficient in term.items():
            total[variable] = total.get(variable, Fraction(0)) + factor * coefficient
    return {variable: coefficient for variable, coefficient in total.items() if coefficient}


def _disjunct(terms: list[Term], sizes: dict[str, int], name: str) -> Disjunct | None:
    """Return a conjunction as a box of inputs and inequalities of outputs; None if the box is empty."""
    low, high = np.full(sizes["X"], -inf), np.full(sizes["X"], inf)
    specifications, offsets = list[Vector](), list[float]()
    for term in terms:
        variables = [variable for variable in term if variable]
        constant = term.get("", Fraction(0))
        if [variable[0] for variable in variables] == ["X"]:
            at, coefficient = _position(variables[0], sizes, name), term[variables[0]]
            end = -constant / coefficient
            if coefficient > 0:
                high[at] = min(high[at], _outward(end, inf))
            else:
                low[at] = max(low[at], _outward(end, -inf))
        elif all(variable[0] == "Y" for variable in variables):
            specification = np.zeros(sizes["Y"])
            for variable in variables:
                specification[_position(variable, sizes, name)] = float(term[variable])
            specifications.append(specification)
            offsets.append(float(-constant))
        else:
            raise HoldfastError(
                f"{name} has an inequality of {' and '.join(variables[:3])}; inputs lie in boxes, and linear inequalities "
                "are of outputs alone"
            )
    if (low > high).any():
        return None
    if not (np.isfinite(low) & np.isfinite(high)).all():
        (first, *_) = (~(np.isfinite(low) & np.isfinite(high))).nonzero()[0]
        raise HoldfastError(f"{name} leaves X_{first} without an end; each input needs a lower and an upper one")
    return Disjunct(low, high, np.array(specifications).reshape(len(specifications), sizes["Y"]), np.array(offsets))


def _position(variable: str, sizes: dict[str, int], name: str) -> int:
    position = int(variable[2:])
    if position >= sizes[variable[0]]:
        raise HoldfastError(f"{name} uses {variable}, which it does not declare; declare it as a constant")
    return position


def _outward(end: Fraction, toward: float) -> float:
    """Return the float64 nearest to ``end`` that lies on the side ``toward`` of it, or on it."""
    value = float(end)
    inside = Fraction(value) < end if toward > 0 else Fraction(value) > end
    return nextafter(value, toward) if inside else value


def _shown(expression: object) -> str:
    """Return the beginning of an expression as text."""
    text = f"({' '.join(map(_shown, expression))})" if isinstance(expression, list) else str(expression)
    return text if len(text) <= 60 else text[:57] + "..."


# The questions of a certify run as files that other verifiers read: ONNX networks and VNN-LIB queries.
#
# vnnlib/instances.csv    one query a line, as in competitions of verifiers: network, query, seconds
# vnnlib/expected.csv     the same queries with our answer, and the counterexample that it rests on
# vnnlib/onnx/NAME.onnx   the network around one image: its outputs are ``W f``, one for each negative
# vnnlib/vnnlib/NAME-against-K.vnnlib   the ball, and the output that would have to be at most zero
# vnnlib/counterexamples/NAME-against-K.txt   an input of the ball whose output is
#
# Networks are in float32, so that ``W``, which is computed in float64, is rounded. What is expected is the answer to
# the query as it is written: a bound counts once it exceeds what the rounding of ``W`` can change, a counterexample
# if it is a float32 input inside the box whose rounded ``W f`` is negative in real numbers, and in float32 for any
# order of summation. ``unsat`` is of the network's real numbers: what executes it in float32 rounds, and may compute
# an output at or below zero where the least real one is above zero by less than that.

FOLDER = "vnnlib"
SECONDS = 60
"""For each query, in the list of instances."""


class Specified(nn.Module):
    """A network whose outputs are linear functions of the embedding of ``encoder``: ``specifications @ f(x)``."""

    def __init__(self, encoder: nn.Module, specifications: Float[Tensor, "k d"]) -> None:
        super().__init__()
        self.encoder = encoder
        self.specifications = nn.Parameter(specifications, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.encoder(x), self.specifications)


def check_queries(export: str | None, ball: Ball, smoothing: bool, out: str | Path | None) -> None:
    """Raise unless the queries of such a run can be exported, or no one asked for it.

    Example:
        >>> from holdfast.core.balls import L2
        >>> check_queries("vnnlib", L2(0.5), False, "out")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: VNN-LIB has boxes only, so that queries in l2:0.5 cannot be exported; ...
    """
    if export is None:
        return
    if export != "vnnlib":
        raise HoldfastError(f"queries are exported as vnnlib, got {export!r}")
    if smoothing:
        raise HoldfastError(
            "smoothing asks nothing of single inputs, so that there are no queries to export; use crown"
        )
    if not isinstance(ball, Linf):
        raise HoldfastError(f"VNN-LIB has boxes only, so that queries in {ball} cannot be exported; use a linf ball")
    if out is None:
        raise HoldfastError("exported queries are files; name a folder as out")


def check_query_encoder(encoder: Encoder) -> None:
    """Raise unless ``encoder`` can be written as the ONNX networks that other verifiers read."""
    require("onnxscript", "onnx")
    if precision_of(encoder) != torch.float32:
        raise HoldfastError(
            f"{encoder.name} has weights in {precision_of(encoder)}, and exported networks are in float32; convert it"
        )


def write_queries(
    population: Population, observation: Certificates, rows: Sequence[int], observed: Observed, store: Store
) -> Path:
    """Write every query of the images at ``rows``, of which ``observed`` holds the answers, and return their list.

    Pairs whose two embeddings point in one direction ask nothing, and have no query.

    Raises:
        HoldfastError: the network cannot be exported.
        StoreError: the folder cannot be written.
    """
    instances, expected = list[tuple[object, ...]](), [("network", "query", "answer", "counterexample")]
    for k, row in enumerate(rows):
        pair_attack = observation.pairs.pair_attack(population, [row])
        pairs, stem = pair_attack.pairs, file_stem(population.images.ids[row])
        box = ball_box(pairs, observation.pairs.ball)
        points = None
        if bool((observed["attacked"][k] < 0).any()):
            points = inside(observation.attack(pair_attack).points, box)
        network, answers = f"onnx/{stem}.onnx", _answers(pairs, observed["bound"][k], points, box)
        store.write_file(f"{FOLDER}/{network}", onnx_network(population.encoder, pairs.specifications[0]))
        for j, answer in enumerate(answers):
            if not bool(pairs.defined[0, j]):
                continue
            query, counterexample = f"vnnlib/{stem}-against-{j}.vnnlib", ""
            store.write_file(f"{FOLDER}/{query}", _query(pairs, j, box, answer).encode())
            if answer.answer == "sat":
                assert points is not None
                counterexample = f"counterexamples/{stem}-against-{j}.txt"
                value = float(_values(pairs, points, torch.float64)[j])
                store.write_file(f"{FOLDER}/{counterexample}", counterexample_text(points[j], {j: value}).encode())
            instances.append((network, query, SECONDS))
            expected.append((network, query, answer.answer, counterexample))
    store.write_file(f"{FOLDER}/expected.csv", _table(expected))
    store.write_file(f"{FOLDER}/instances.csv", _table(instances))
    return store.folder / FOLDER / "instances.csv"


def ball_box(pairs: Pairs, ball: Ball) -> Box:
    """Return the box of inputs around a single anchor, as bounds and queries have it."""
    eps = torch.full_like(pairs.specifications[:, 0, 0], ball.radius)
    low, high = region(pairs.anchors, Linf, eps, pairs.encoder.domain).box
    return Box(low[:, 0], high[:, 0])


def onnx_network(encoder: Encoder, specifications: Float[Tensor, "k d"]) -> bytes:
    """Return the ONNX file of ``specifications @ f(x)`` for a single image, in float32.

    Raises:
        HoldfastError: the network cannot be exported.
    """
    module = Specified(encoder.to("cpu", torch.float32).module, specifications.cpu().float()).eval()
    example = encoder.domain.clip(torch.zeros(1, *encoder.domain.shape))
    names: dict[str, Any] = {"input_names": ["X"], "output_names": ["Y"]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own exporter
            program = torch.onnx.export(module, (example,), dynamo=True, verbose=False, **names)
    except Exception as error:  # whatever the exporter raises is what the reader must hear
        reason = str(error).strip().partition("\n")[0]
        raise HoldfastError(
            f"{encoder.name} cannot be exported to ONNX ({type(error).__name__}: {reason}); leave out --export"
        ) from error
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def counterexample_text(point: Float[Tensor, "*pixels"], outputs: dict[int, float]) -> str:
    """Return a counterexample in the form of competitions: the answer, then every input and the outputs known."""
    values = [f"(X_{i} {decimal(value)})" for i, value in enumerate(point.flatten().tolist())]
    values += [f"(Y_{i} {decimal(value)})" for i, value in outputs.items()]
    return "sat\n(" + "\n ".join(values) + ")\n"


def _rounded(pairs: Pairs) -> Float[Tensor, "k d"]:
    """Return the specifications of a single anchor as the exported network has them."""
    return pairs.specifications[0].float().double()


def _values(pairs: Pairs, points: Float[Tensor, "k *pixels"], dtype: torch.dtype) -> Float[Tensor, "k"]:
    """Return the exported network's output for each pair's point in ``dtype``, one input at a time."""
    encoder = pairs.encoder.to("cpu", dtype)
    network = Specified(encoder.module, _rounded(pairs).to("cpu", dtype)).eval()
    with torch.no_grad():
        outputs = [network(point[None].to("cpu", dtype))[0, j] for j, point in enumerate(points)]
    return torch.stack(outputs).double()


class Expected(NamedTuple):
    """Expected answer to a query: unsat, sat or unknown, with the reason for unknown."""

    answer: str
    note: str = ""


def _answers(
    pairs: Pairs, bounds: Float[Tensor, "k"], points: Float[Tensor, "k *pixels"] | None, box: Box
) -> list[Expected]:
    """Return for each pair of a single anchor what is known of its query."""
    around = region(pairs.anchors, Linf, torch.zeros_like(pairs.specifications[:, 0, 0]), pairs.encoder.domain)
    around = type(around)(around.centre, box.lower[:, None], box.upper[:, None], around.eps, Linf)
    low, high = intermediate_bounds(pairs.graph, around)[-1]
    change = (pairs.specifications[0] - _rounded(pairs)).abs() @ torch.maximum(low.abs(), high.abs())[0, 0]
    proved = (bounds.to(change) - change > 0).tolist()
    refuted = _refuted(pairs, points, box) if points is not None else [Expected("unknown")] * len(proved)
    return [
        other if not unsat else Expected("unsat" if other.answer == "unknown" else "unknown")
        for unsat, other in zip(proved, refuted, strict=True)
    ]


def _refuted(pairs: Pairs, points: Float[Tensor, "k *pixels"], box: Box) -> list[Expected]:
    """Return which pairs their own point certainly refutes, and of the others which it refutes as computed here."""
    inside_box = ((points >= box.lower) & (points <= box.upper)).flatten(1).all(1).cpu()  # a box may hold no float32
    here = torch.maximum(*(_values(pairs, points, dtype) for dtype in (torch.float32, torch.float64))) < 0
    try:
        codes = codes_in_float32(pairs.encoder, points)
        certain = highest(_rounded(pairs)[:, None].cpu(), codes, torch.float32)[:, 0] < 0
        note = UNCERTAIN
    except HoldfastError as error:
        certain, note = torch.zeros_like(here), f"{UNCERTAIN} ({first_line(error)})"
    return [
        Expected("sat") if sure else Expected("unknown", note if likely else "")
        for sure, likely in zip((certain & here & inside_box).tolist(), (here & inside_box).tolist(), strict=True)
    ]


def inside(points: Float[Tensor, "k *pixels"], box: Box) -> Float[Tensor, "k *pixels"]:
    """Return the float32 points of the box that are closest to ``points``, in float64."""
    clamped = torch.minimum(torch.maximum(points, box.lower), box.upper)
    rounded = clamped.float()
    up, down = torch.full_like(rounded, torch.inf), torch.full_like(rounded, -torch.inf)
    rounded = torch.where(rounded.double() < box.lower, torch.nextafter(rounded, up), rounded)
    return torch.where(rounded.double() > box.upper, torch.nextafter(rounded, down), rounded).double()


def _query(pairs: Pairs, j: int, box: Box, expected: Expected) -> str:
    """Return the query whether output ``j`` can be at most zero in the box."""
    specification = np.zeros((1, pairs.shape[1]))
    specification[0, j] = 1.0
    low, high = (end.flatten().cpu().numpy() for end in box)
    anchor, negative = pairs.ids[0][0], pairs.ids[0][1 + j]
    about = f"Y_{j} <= 0: {anchor!r} is more similar to {negative!r} than to itself"
    comments = [about, f"expected: {expected.answer}", *([expected.note] if expected.note else [])]
    return write(Disjunct(low, high, specification, np.zeros(1)), [comment.replace("\n", " ") for comment in comments])


def _table(lines: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()
