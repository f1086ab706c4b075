"""Shapes are checked once for each function and kinds of arguments: their types, dtypes and shapes.

A search calls one small function thousands of times with the same shapes: checking every call takes a third of the tests'
time and finds nothing that the first call does not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, wraps
from inspect import isclass
from typing import Any

import jaxtyping
from numpy import ndarray
from torch import Tensor

_jaxtyped = jaxtyping.jaxtyped
_checked: set[Hashable] = set()
wanted = True
"""Whether functions that are made from now on are checked: one that asks at each call takes time where none are."""


def install(package: str) -> None:
    """Check the jaxtyping annotations of ``package``, which must not be imported yet."""
    vars(jaxtyping)["jaxtyped"] = checked_once  # what the import hook will name
    jaxtyping.install_import_hook(package, "beartype.beartype")


def checked_once(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Decorate as ``jaxtyping.jaxtyped`` does, but check calls with the same kinds of arguments once."""
    if function is None:
        return partial(checked_once, typechecker=typechecker)
    if not wanted:
        return function
    if isclass(function):
        return _jaxtyped(function, typechecker=typechecker)
    checked: Callable[..., Any] | None = None
    code = function.__code__

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        call = (code, *map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
        if call in _checked:
            return function(*args, **kwargs)
        # Made late: functions inside functions are new at each call, and making a check takes long.
        checked = checked or _jaxtyped(function, typechecker=typechecker)
        value = checked(*args, **kwargs)
        _checked.add(call)  # only now, so that what is refused once is refused again
        return value

    return called


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor | ndarray):
        return type(value), value.shape, value.dtype
    return type(value)
