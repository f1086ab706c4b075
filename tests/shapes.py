"""Shapes are checked when a function first meets them: types, dtypes and shapes of what it is given.

A search calls one small function thousands of times, with a few shapes: checking every call takes a third of the tests'
time and finds nothing that the first calls do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import partial, wraps
from inspect import isclass, unwrap
from types import CodeType
from typing import Any

import jaxtyping
from numpy import ndarray
from torch import Tensor

ENOUGH = 24
"""Different kinds of arguments with which a function is checked; further ones differ in the number of images at most."""

_jaxtyped = jaxtyping.jaxtyped
_checked: defaultdict[CodeType, set[Hashable]] = defaultdict(set)


def install(package: str) -> None:
    """Check the jaxtyping annotations of ``package``, which must not be imported yet."""
    vars(jaxtyping)["jaxtyped"] = checked_once  # what the import hook will name
    jaxtyping.install_import_hook(package, "beartype.beartype")


def checked_once(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Decorate as ``jaxtyping.jaxtyped`` does, but check calls with the same kinds of arguments once."""
    if function is None:
        return partial(checked_once, typechecker=typechecker)
    if isclass(function):
        return _jaxtyped(function, typechecker=typechecker)
    checked: Callable[..., Any] | None = None
    calls = _checked[function.__code__]  # of all functions made at this place

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if len(calls) >= ENOUGH:
            return function(*args, **kwargs)
        call = (*map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
        if call in calls or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        # Made late: functions inside functions are new at each call, and making a check takes long.
        checked = checked or _jaxtyped(function, typechecker=typechecker)
        value = checked(*args, **kwargs)
        calls.add(call)  # only now, so that what is refused once is refused again
        return value

    return called


def forget(function: Any) -> None:
    """Check ``function`` from the beginning again."""
    _checked[unwrap(function).__code__].clear()


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor | ndarray):
        return type(value), value.shape, value.dtype
    return type(value)
