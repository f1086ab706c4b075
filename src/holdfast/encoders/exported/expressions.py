"""The closed grammar of sizes in an exported program: integers, symbols, and formulas of the two.

torch hands such text to sympy, which evaluates it as Python. Text passes here only if it is built from the names below,
and what is handed on is written anew from what was understood.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from holdfast.encoders.exported.rules import WIDEST, refuse

LONGEST = 10_000
"""Characters of an expression; those of the vision transformers and convolutional networks at hand have below 300."""
HIGHEST_POWER = 8
SYMBOL = re.compile(r"[a-z]{1,8}_?\d{1,4}", re.ASCII)
ASSUMPTIONS = ("positive", "integer", "nonnegative", "negative", "nonpositive", "nonzero", "real", "finite")
FORMULAS = re.compile(
    r"Add|Mul|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|ModularIndexing|IntTrueDiv|FloatTrueDiv|ToFloat"
    r"|TruncToInt|CeilToInt|FloorToInt|Where|Identity|floor|ceiling|Equality|Unequality|GreaterThan|LessThan"
    r"|StrictGreaterThan|StrictLessThan|Not|And|Or"
)
POWERS = ("Pow", "PowByNatural")
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)
"""How earlier versions of torch wrote the first four of the formulas."""


def size_expression(value: Any, place: str) -> str:
    """Return the expression, a rule of a document.

    Example:
        >>> size_expression("Mul(Integer(2), Symbol('s31', positive=True, integer=True))", "size")
        "Mul(Integer(2), Symbol('s31', positive=True, integer=True))"
        >>> size_expression("S('open(1)')", "size")
        Traceback (most recent call last):
        holdfast.encoders.exported.rules.UnlistedError: size is "S('open(1)')"
    """
    if not isinstance(value, str) or not value.isascii() or len(value) > LONGEST:
        raise refuse(value, place)
    try:
        tree = ast.parse(value, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise refuse(value, place) from error
    if not _is_formula(tree):
        raise refuse(value, place)
    return ast.unparse(tree)


def _is_formula(tree: ast.expr) -> bool:
    match tree:
        case ast.Name(id=name):
            return bool(SYMBOL.fullmatch(name))
        case ast.BinOp(left=left, op=op, right=right):
            return isinstance(op, ARITHMETIC) and _is_formula(left) and _is_formula(right)
        case ast.Call(func=ast.Name(id="Integer"), args=[number], keywords=[]):
            return _integer(number) is not None
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=assumptions):
            return bool(SYMBOL.fullmatch(name)) and all(map(_is_assumption, assumptions))
        case ast.Call(func=ast.Name(id=name), args=[base, exponent], keywords=[]) if name in POWERS:
            return _is_formula(base) and not _holds_power(base) and _is_small(exponent)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            return bool(FORMULAS.fullmatch(name)) and all(map(_is_formula, parts))
    return _integer(tree) is not None


def _integer(tree: ast.expr) -> int | None:
    match tree:
        case ast.Constant(value=number) if type(number) is int and number <= WIDEST:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=number)) if type(number) is int:
            return -number if number <= WIDEST else None
    return None


def _is_assumption(keyword: ast.keyword) -> bool:
    return keyword.arg in ASSUMPTIONS and isinstance(keyword.value, ast.Constant) and type(keyword.value.value) is bool


def _is_small(exponent: ast.expr) -> bool:
    match exponent:
        case ast.Call(func=ast.Name(id="Integer"), args=[number], keywords=[]):
            return _is_small(number)
    power = _integer(exponent)
    return power is not None and abs(power) <= HIGHEST_POWER


def _holds_power(tree: ast.expr) -> bool:
    """Return whether there is a power inside: powers of powers of powers have digits without end."""
    return any(isinstance(part, ast.Name) and part.id in POWERS for part in ast.walk(tree))
