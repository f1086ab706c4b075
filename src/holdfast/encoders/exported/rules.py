"""Rules for JSON that lists everything a document may hold: a rule returns the value to hand on, or refuses it.

A rule takes a value and the place where it stands. What no rule names is refused, whatever it is called; what a rule
replaces is never handed on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Rule = Callable[[Any, str], Any]
WIDEST = 2**63


class UnlistedError(Exception):
    """What stands in a document, and where, that no rule names."""


def refuse(value: Any, place: str) -> UnlistedError:
    """Return the error for ``value`` at ``place``."""
    return UnlistedError(f"{place or 'the document'} is {repr(value)[:60]}")


def integer(value: Any, place: str) -> int:
    """Return an integer of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > WIDEST:
        raise refuse(value, place)
    return value


def boolean(value: Any, place: str) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise refuse(value, place)
    return value


def real(value: Any, place: str) -> Any:
    """Return a number, or one of the words by which torch writes those that JSON has no form for."""
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
    """Return the rule for a value that nobody needs: ``by`` is handed on in its place."""
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
    """Return the rule for an object whose names are ``key`` and whose values are ``part``."""

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
