"""Rules for JSON documents that list everything they may contain, and the grammar of sizes in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

# Rules for JSON that lists everything a document may hold: a rule returns the value to hand on, or refuses it.
#
# A rule takes a value and the place where it stands. What no rule names is refused, whatever it is called; what a rule
# replaces is never handed on.

Rule = Callable[[Any, str], Any]
WIDEST = 2**63


class UnlistedError(Exception):
    """What stands in a document, and where, that no rule names."""


def refuse(value: Any, place: str) -> UnlistedError:
    """Error for a value that no rule allows."""
    return UnlistedError(f"{place or 'the document'} is {repr(value)[:60]}")


def integer(value: Any, place: str) -> int:
    """Check an integer of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > WIDEST:
        raise refuse(value, place)
    return value


def boolean(value: Any, place: str) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise refuse(value, place)
    return value


def real(value: Any, place: str) -> Any:
    """Check a number, or one of torch's words for infinity and NaN."""
    if value in ("Infinity", "-Infinity", "NaN") or isinstance(value, float):
        return value
    return integer(value, place)


def text(pattern: str) -> Rule:
    """Return the rule for text that is ``pattern`` from end to end."""
    known = re.compile(pattern, re.ASCII)

    def rule(value: Any, place: str) -> str:
        if not isinstance(value, str) or not known.fullmatch(value):
            raise refuse(value, place)
        return value

    return rule


def constant(only: Any) -> Rule:
    """Return the rule for a value that can only be ``only``."""

    def rule(value: Any, place: str) -> Any:
        if type(value) is not type(only) or value != only:
            raise refuse(value, place)
        return value

    return rule


def replaced(by: Any) -> Rule:
    """Rule that replaces an unused value by ``by``."""
    return lambda value, place: by


def optional(part: Rule) -> Rule:
    """Return the rule for a ``part`` or null."""
    return lambda value, place: None if value is None else part(value, place)


def several(part: Rule) -> Rule:
    """Return the rule for a list of ``part``."""

    def rule(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list):
            raise refuse(value, place)
        return [part(item, f"{place}[{position}]") for position, item in enumerate(value)]

    return rule


def mapping(key: Rule, part: Rule) -> Rule:
    """Rule for an object."""

    def rule(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(value, place)
        return {key(name, f"a name in {place}"): part(item, f"{place}.{name}") for name, item in value.items()}

    return rule


def record(**fields: Rule) -> Rule:
    """Return the rule for an object with some of ``fields`` and no other."""

    def rule(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(value, place)
        for name in value:
            if name not in fields:
                raise UnlistedError(f"{place or 'the document'} has an entry {name[:40]!r}")
        return {name: fields[name](item, f"{place}.{name}".lstrip(".")) for name, item in value.items()}

    return rule


def variant(**kinds: Rule) -> Rule:
    """Return the rule for an object with exactly one of ``kinds``."""
    entry = record(**kinds)

    def rule(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) != 1:
            raise refuse(value, place)
        return dict(entry(value, place))

    return rule


# The closed grammar of sizes in an exported program: integers, symbols, and formulas of the two.
#
# torch hands such text to sympy, which evaluates it as Python. Text passes here only if it is built from the names
# below, and what is handed on is written again from what was understood.

LONGEST = 10_000
"""Characters of an expression; those of the vision transformers and convolutional networks in the tests have below 300."""
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
    """Check an expression of sizes.

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
