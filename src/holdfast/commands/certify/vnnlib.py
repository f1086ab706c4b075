"""VNN-LIB, the text in which verifiers exchange queries: which inputs are looked at, and which outputs would refute.

What is read is the part of it that the competitions of verifiers use (https://www.vnnlib.org, version 1): constants
``X_0 ...`` and ``Y_0 ...``, a box of inputs, and linear inequalities between outputs, joined by ``and`` and ``or``. A query
asks for an input in a box whose outputs satisfy all inequalities of some disjunct: ``sat`` if there is one, else ``unsat``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import inf, nextafter

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError

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
