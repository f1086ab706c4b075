"""One text form for small settings objects: ``name``, ``name:field=value,field=value``, ``linf:8/255``.

A ball, an attack, a divergence or an objective is a frozen dataclass with a ``name``. Its text is what the command line
takes, what TOML holds, what reports print and what cache keys hash, so there is one thing to learn and to keep stable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from fractions import Fraction
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError, nearest

T = TypeVar("T")

READERS: dict[str, Callable[[str], Any]] = {}
"""How to read the text of each kind of settings object, by the annotation its fields carry (``Ball``, ``Attack``)."""


def spell(thing: Any) -> str:
    """Return the text form of ``thing``: its name and the settings that differ from their defaults.

    Example:
        >>> from holdfast.core.balls import Linf
        >>> spell(Linf(8 / 255))
        'linf:8/255'
    """
    said = []
    for field in fields(thing):
        value = getattr(thing, field.name)
        if field.default is MISSING or value != field.default:
            text = number(value) if isinstance(value, float) else str(value)
            said.append(text if field.default is MISSING else f"{field.name}={text}")
    return f"{thing.name}:{','.join(said)}" if said else thing.name


def read(text: str, kinds: Mapping[str, type[T]], what: str) -> T:
    """Return the thing that ``text`` spells, one of ``kinds`` (by name); ``what`` names them in errors.

    Example:
        >>> from holdfast.core.balls import BALLS
        >>> read("l2:0.5", BALLS, "ball")
        L2(radius=0.5)
        >>> read("l3:0.5", BALLS, "ball")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: unknown ball 'l3'; did you mean 'l2'? known: l1, l2, linf
    """
    name, _, rest = text.partition(":")
    if name not in kinds:
        raise HoldfastError(f"unknown {what} {name!r}; {nearest(name, list(kinds))}")
    kind = kinds[name]
    known = fields_of(kind)
    required = [field.name for field in known.values() if field.default is MISSING]
    given: dict[str, Any] = {}
    for position, part in enumerate(filter(None, rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            if position >= len(required):
                raise HoldfastError(
                    f"{what} {name!r}: {part!r} needs the form setting=value; {name} takes {list(known)}"
                )
            key, value = required[position], part
        if key not in known:
            raise HoldfastError(f"{what} {name!r} has no setting {key!r}; {nearest(key, list(known))}")
        if key in given:
            raise HoldfastError(f"{what} {name!r}: setting {key!r} is given twice; keep one")
        given[key] = convert(value, str(known[key].type), f"{what} {name!r}, setting {key!r}")
    missing = [key for key in required if key not in given]
    if missing:
        raise HoldfastError(f"{what} {name!r} needs {', '.join(missing)}, as in {name}:8/255")
    return kind(**given)


def fields_of(kind: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass by name."""
    return {field.name: field for field in fields(kind)}


def convert(text: str, annotation: str, where: str) -> Any:
    """Return ``text`` as the simple type that ``annotation`` names (int, float, bool, str, optional ones of these)."""
    if annotation in READERS:
        return READERS[annotation](text)
    kinds = [kind.strip() for kind in annotation.split("|")]
    if "None" in kinds and text in ("none", "None"):
        return None
    try:
        if "bool" in kinds:
            return {"true": True, "false": False}[text.lower()]
        if "int" in kinds:
            return int(text)
        if "float" in kinds:
            return float(Fraction(text.replace(" ", "")))
    except (ValueError, KeyError, ArithmeticError) as error:
        if "str" in kinds:
            return text
        form = " such as 0.05 or 8/255" if "float" in kinds else ""
        raise HoldfastError(f"{where}: expected {annotation}{form}, got {text!r}") from error
    return text


def number(value: float) -> str:
    """Return a short text that ``convert`` reads back exactly: 0.05, 8/255, 1e-06.

    Example:
        >>> number(0.05), number(8 / 255), number(0.2)
        ('0.05', '8/255', '0.2')
    """
    exact = repr(value)
    grey = round(value * 255) if abs(value) < 1 else 0
    return f"{grey}/255" if len(exact) > 6 and grey and grey / 255 == value else exact
