"""Shapes are checked at the first calls of each function in each test, and at some of the others.

A search calls one small function thousands of times with the same shapes: checking every call takes 40 % of the tests'
time and finds nothing that the first calls do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from inspect import isclass
from types import CodeType
from typing import Any

import jaxtyping

FIRST, EVERY = 16, 16

calls: Counter[CodeType] = Counter()
"""How often each function was called; emptied before each test."""

_jaxtyped = jaxtyping.jaxtyped


def install(package: str) -> None:
    """Check the jaxtyping annotations of ``package``, which must not be imported yet."""
    vars(jaxtyping)["jaxtyped"] = checked_often  # what the import hook will name
    jaxtyping.install_import_hook(package, "beartype.beartype")


def checked_often(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Decorate as ``jaxtyping.jaxtyped`` does, but leave out most of many calls."""
    if function is None:
        return partial(checked_often, typechecker=typechecker)
    if isclass(function):
        return _jaxtyped(function, typechecker=typechecker)
    checked: Callable[..., Any] | None = None

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        calls[function.__code__] = count = calls[function.__code__] + 1
        if count > FIRST and count % EVERY:
            return function(*args, **kwargs)
        # Made late: functions inside functions are new at each call, and making a check takes long.
        checked = checked or _jaxtyped(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return called
