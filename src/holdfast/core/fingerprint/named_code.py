"""What the code of functions names, and what that names in turn, so that an edit of a helper is seen as one of its caller.

Methods and attributes of the functions' class are followed, with defaults and what functions around them hold, and in code
that is neither installed nor part of Holdfast also what its files have under these names: functions, modules of torch, and
values that are known by their content and that the code does not set.
Of anything else that classes and files keep (loggers, caches, open files) nothing is said, for it differs from process to
process.
"""

from __future__ import annotations

import dis
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

_INSTALLED = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")})
_PLAIN = (str, int, float, complex, bool, type(None), bytes, Tensor, np.ndarray)


def named_by(functions: Iterable[Any], kind: type | None = None) -> Iterator[Any]:
    """Yield the code of ``functions`` of the class ``kind``, and code, defaults, closures and values that they name.

    Example:
        >>> class Doubled:
        ...     factor = 2
        ...     def forward(self, x): return self.scaled(x)
        ...     def scaled(self, x): return self.factor * x
        >>> forward, scaled, factor = named_by([Doubled.forward], Doubled)
        >>> forward.co_name, scaled.co_name, factor
        ('forward', 'scaled', 2)
    """
    waiting = [part for function in functions for part in _unwrapped(function)]
    done = set[int]()
    while waiting:
        function = waiting.pop(0)
        if id(function) in done:
            continue
        done.add(id(function))
        yield function.__code__
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for value in _enclosed(function):
            inner = _unwrapped(value)
            waiting += inner
            if not inner:
                yield value
        for name in _names(function.__code__):
            for value in (*_in_class(kind, name), *_in_file(function, name)):
                if _is_plain(value) or isinstance(value, nn.Module):
                    yield value
                waiting += _unwrapped(value)


def methods(kind: type, name: str) -> Iterator[Any]:
    """Yield what ``kind`` and its bases outside torch have under a name."""
    for base in kind.__mro__:
        if base is not object and not base.__module__.startswith("torch.") and name in vars(base):
            yield vars(base)[name]


def _in_class(kind: type | None, name: str) -> Iterator[Any]:
    return methods(kind, name) if kind else iter(())


def _enclosed(function: FunctionType) -> Iterator[Any]:
    """Yield what a function finds in the functions around it and does not set: all but classes and files."""
    code = function.__code__
    own = _stored(code, "STORE_DEREF")
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not set yet
            continue
        if name not in own and not isinstance(value, (type, ModuleType)):
            yield value


def _in_file(function: FunctionType, name: str) -> Iterator[Any]:
    """Yield what the file of a function has under a name, and the files that it imports as modules and names."""
    if not _is_own(str(function.__globals__.get("__name__"))):  # not __module__, which decorators copy
        return
    inside = function.__globals__
    imported = [inside[other] for other in _names(function.__code__) if isinstance(inside.get(other), ModuleType)]
    for names in (inside, *(vars(module) for module in imported if _is_own(module.__name__))):
        if name in names and (not isinstance(names[name], FunctionType) or _is_own(names[name].__module__)):
            yield names[name]


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[str, ...]:
    """Return the names of attributes and of what is outside of a function that its code uses and does not set."""
    used = set(code.co_names) - _stored(code, "STORE_GLOBAL", "STORE_ATTR")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            used |= set(_names(constant))
    return tuple(sorted(used))


@lru_cache(maxsize=4096)
def _stored(code: CodeType, *kinds: str) -> frozenset[str]:
    """Return the names that the code itself sets."""
    return frozenset(part.argval for part in dis.get_instructions(code) if part.opname in kinds)


def _unwrapped(value: Any) -> list[FunctionType]:
    """Return the functions of a function, method or property, that which a decorator wraps as well."""
    inner = [getattr(value, name, None) for name in ("__func__", "fget", "func")]
    found = [function for function in (value, *inner) if isinstance(function, FunctionType)]
    return [*found, *(part for function in found if (part := inspect.unwrap(function)) is not function)]


def _is_plain(value: Any) -> bool:
    """Whether a value is known by its content alone; mappings and sets, which mostly are caches, are not."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    return isinstance(value, _PLAIN)


def _is_own(module: str | None) -> bool:
    """Whether a module is neither installed nor part of Python, torch or Holdfast, so that its user may edit it."""
    if module is None:  # made by a program, as the forward of an exported one
        return False
    if module == "__main__":  # whatever it is in a worker
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] not in ("holdfast", "torch") and not file.startswith(_INSTALLED)
