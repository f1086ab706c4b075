"""Docstrings of exported names explain every argument and every setting."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import extend

EXPORTED = {f"{home.__name__}.{name}": getattr(home, name) for home in (holdfast, extend) for name in home.__all__}


def explained(text: str) -> set[str]:
    """Return the names under ``Args:`` of a docstring."""
    lines = text.partition("Args:\n")[2].partition("\n\n")[0].splitlines()
    starts = (line.partition(":")[0] for line in lines if re.match(r" {4}\S", line))
    return {name.strip(" *") for start in starts for name in start.split(",")}


def unexplained(function: Callable[..., Any], text: str) -> list[str]:
    """Return the arguments that ``text`` does not explain, of a function with two or more."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return [name for name in names if name not in explained(text)] if len(names) > 1 else []


def undocumented_fields(kind: type) -> list[str]:
    """Return the public fields of a class without a docstring below them or an entry under ``Args:``."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    fields = [
        (part.target.id, following)
        for part, following in zip(body.body, [*body.body[1:], None], strict=True)
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        if "ClassVar" not in ast.unparse(part.annotation) and not part.target.id.startswith("_")
    ]
    known = explained(inspect.getdoc(kind) or "")
    return [name for name, following in fields if name not in known and not is_docstring(following)]


def is_docstring(part: ast.stmt | None) -> bool:
    """Return whether a statement is nothing but a text."""
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)


def own_methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield public methods that override none: a base class explains the arguments of those that do."""
    for name, member in vars(kind).items():
        method = getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        if not any(name in vars(base) for base in kind.__mro__[1:]):
            yield name, method


def missing(thing: Any) -> list[str]:
    """Return what the docstrings of an exported function or class do not explain."""
    if inspect.isfunction(thing):
        return unexplained(thing, inspect.getdoc(thing) or "")
    if not inspect.isclass(thing) or not thing.__module__.startswith(("holdfast", __name__)):
        return []
    parts = [*undocumented_fields(thing)]
    if "__init__" in vars(thing) and "__dataclass_fields__" not in vars(thing):
        parts += unexplained(thing.__init__, inspect.getdoc(thing) or "")
    return [
        *parts,
        *(
            f"{name}({each})"
            for name, method in own_methods(thing)
            for each in unexplained(method, inspect.getdoc(method) or "")
        ),
    ]


@pytest.mark.parametrize("name", EXPORTED)
def test_every_argument_and_setting_is_explained(name: str) -> None:
    assert missing(EXPORTED[name]) == []


class Unexplained:
    """A class that explains one thing of each kind and leaves out another."""

    told: int
    """Something."""
    untold: int

    def both(self, first: int, second: int) -> None:
        """Do it.

        Args:
            first: Something.
        """


def test_the_law_is_awake() -> None:
    assert missing(Unexplained) == ["untold", "both(second)"]
