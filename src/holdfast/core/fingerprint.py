"""Fingerprints of modules: equal only if parts, weights, code and all attributes are equal.

The code of a function includes everything it names, so editing a helper changes the fingerprint of its caller.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from pathlib import PurePath
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.syntax import code_text, has_source

# What the code of functions names, and what that names in turn, so that an edit of a helper is seen as one of its
# caller.
#
# Methods and attributes of the functions' class are followed, with defaults and what functions around them hold, and
# in code that is neither installed nor part of Holdfast also what its files have under these names: functions,
# modules of torch, and values that are known by their content and that the code does not set. Of anything else that
# classes and files keep (loggers, caches, open files) nothing is recorded, because it differs between processes.

_INSTALLED = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")})
_PLAIN = (str, int, float, complex, bool, type(None), bytes, Tensor, np.ndarray)


def named_by(functions: Iterable[Any], kind: type | None = None) -> Iterator[Any]:
    """Code of functions, and the code, defaults, closures and values that it names.

    Args:
        kind: Class of the functions, in which methods are looked up; None without.

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
            for value in (*(methods(kind, name) if kind else ()), *_in_file(function, name)):
                if _is_plain(value) or isinstance(value, nn.Module):
                    yield value
                waiting += _unwrapped(value)


def methods(kind: type, name: str) -> Iterator[Any]:
    """Members of one name in a class and its bases outside torch."""
    for base in kind.__mro__:
        if base is not object and not base.__module__.startswith("torch.") and name in vars(base):
            yield vars(base)[name]


def _enclosed(function: FunctionType) -> Iterator[Any]:
    """Yield what a function reads from enclosing functions and does not set, without classes and modules."""
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
    """Return the attributes and outer variables that a function reads and does not set."""
    used = set(code.co_names) - _stored(code, "STORE_GLOBAL", "STORE_ATTR")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            used |= set(_names(constant))
    return tuple(sorted(used))


@lru_cache(maxsize=4096)
def _stored(code: CodeType, *kinds: str) -> frozenset[str]:
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


# Wrongly equal fingerprints hand one encoder another's stored results, so whatever a module keeps that cannot be
# described by its content is described as unlike everything else: such an encoder is measured again in every process,
# and never confused.

_UNLIKE = itertools.count()
_MACHINERY = frozenset(vars(nn.Module())) | {"training"}
"""Attributes of every module; its parts, weights, buffers and hooks are described on their own."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_SHARED_HOOKS = tuple(f"_global{kind}" for kind in _HOOKS)
_INLINED = re.compile(r"<(?:list|dict|set)comp>\.<locals>\.")
"""Parts of names of functions since comprehensions are none themselves, as of Python 3.12."""


def fingerprint(module: nn.Module, *context: object) -> str:
    """Sixteen hexadecimal digits that differ whenever the module computes something else."""
    return _described(module, repr(context), frozenset())


def _described(module: nn.Module, context: str, above: frozenset[int]) -> str:
    digest, above = sha256(context.encode()), above | {id(part) for part in module.modules()}
    first: dict[int, str] = {}
    for name, part in _places(module):
        if first.setdefault(id(part), name) != name:
            digest.update(f"{name} is {first[id(part)]}".encode())
            continue
        kind = type(part)
        texts = [name, kind.__module__, kind.__qualname__, part.extra_repr()]
        if isinstance(part, torch.fx.GraphModule):
            texts.append(str(part.code))
        elif isinstance(part, torch.jit.ScriptModule):
            texts += _scripted(part)
        else:
            texts += behaviour(part, above)
            texts += content({key: value for key, value in attributes(part).items() if key not in _MACHINERY}, above)
        for kind_of_hook in _HOOKS:
            for hook in vars(part).get(kind_of_hook, {}).values():
                texts += [kind_of_hook, *content(hook, above)]
        for key in sorted(vars(part).get("_non_persistent_buffers_set", ())):  # which are in no state_dict
            texts += [key, *content(part.get_buffer(key), above)]
        digest.update("\0".join(texts).encode())
    if hooks := shared_hooks(above):
        digest.update("\0".join(hooks).encode())
    for key, value in sorted(module.state_dict().items()):
        digest.update("\0".join((key, *content(value, above))).encode())
    return digest.hexdigest()[:16]


def behaviour(part: nn.Module, above: frozenset[int] = frozenset()) -> Iterator[str]:
    """Text that describes what the class of a module does: its code and what that names.

    Args:
        above: Ids of objects that hold the module.
    """
    kind = type(part)
    for named in named_by(list(methods(kind, "forward")) or [kind.forward], kind):
        yield from content(named, above)


def attributes(value: object) -> dict[str, Any]:
    """Return the attributes of one object, those in slots as well."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # not set yet
                    found[name] = member.__get__(value, type(value))
    return found


def shared_hooks(above: frozenset[int] = frozenset()) -> list[str]:
    """Return text that describes the hooks that torch calls for every module."""
    hooks = ((key, hook) for key in _SHARED_HOOKS for hook in getattr(nn.modules.module, key).values())
    return [text for key, hook in hooks for text in (key, *content(hook, above))]


def without_source(module: nn.Module) -> list[str]:
    """Functions and methods that ``module`` calls and whose source is not found.

    Their bytecode is part of the fingerprint, so that it differs between versions of Python.
    """
    named = (value for part in module.modules() for value in named_by(methods(type(part), "forward"), type(part)))
    return list(dict.fromkeys(v.co_qualname for v in named if isinstance(v, CodeType) and not has_source(v)))


def _scripted(module: torch.jit.ScriptModule) -> Iterator[str]:
    """Yield the records of the archive that ``module`` would be saved as: its code, constants, attributes and weights."""
    buffer = BytesIO()
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith(".debug_pkl"):  # which holds line numbers
                yield name
                yield sha256(archive.read(name)).hexdigest()


def _places(module: nn.Module, name: str = "", above: frozenset[int] = frozenset()) -> Iterator[tuple[str, nn.Module]]:
    """Yield all parts by name; a part used at several places occurs at each, but not inside itself."""
    yield name, module
    above |= {id(module)}
    for key, part in module._modules.items():
        if part is not None and id(part) not in above:
            yield from _places(part, f"{name}.{key}" if name else key, above)


def content(value: Any, above: frozenset[int] = frozenset()) -> Iterator[str]:
    """Text that describes a value by its contents.

    Args:
        above: Ids of objects that hold the value.

    Example:
        >>> list(content({"b": 1, "a": [True, None]}))
        ['dict', 'a', 'list', 'True', 'None', 'b', '1']
    """
    if isinstance(value, (str, int, float, complex, bool, type(None), bytes, torch.dtype, torch.device, slice)):
        yield str(value)
    elif isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield f"{value.dtype}{tuple(value.shape)}"
        yield sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}{sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    elif id(value) in above:
        yield "back to a holder"
    elif isinstance(value, nn.Module):
        yield _described(value, "module", above)
    else:
        yield from _compound(value, above | {id(value)})


def _compound(value: Any, above: frozenset[int]) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield "dict"
        for key in sorted(value, key=str):
            yield str(key)
            yield from content(value[key], above)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield type(value).__name__
        for part in sorted(value, key=str) if isinstance(value, (set, frozenset)) else value:
            yield from content(part, above)
    elif isinstance(value, CodeType):
        yield from code_text(value)
    elif callable(value):
        yield from _callable(value, above)
    else:
        yield from _object(value, above)


def _callable(value: Any, above: frozenset[int]) -> Iterator[str]:
    name = _INLINED.sub("", getattr(value, "__qualname__", type(value).__qualname__))
    yield f"{getattr(value, '__module__', '')}.{name}"
    if isinstance(value, type):
        return
    if hasattr(value, "func") and hasattr(value, "args"):  # functools.partial
        yield from content([value.func, value.args, value.keywords], above)
    elif hasattr(value, "__code__"):
        held = isinstance(value, MethodType)
        for named in named_by([value], type(value.__self__) if held else None):
            yield from content(named, above)
        if held:
            yield from content(value.__self__, above)
    elif not hasattr(value, "__qualname__"):
        for named in named_by(methods(type(value), "__call__"), type(value)):
            yield from content(named, above)
        yield from _object(value, above)


def _object(value: Any, above: frozenset[int]) -> Iterator[str]:
    if isinstance(value, PurePath):  # whose module has another name in another Python
        yield f"{type(value).__qualname__} {value}"
        return
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.ScriptObject) and hasattr(
        value, "__getstate__"
    ):  # the packed weights of quantised layers
        yield from content(value.__getstate__(), above)
    elif (kept := attributes(value)) or hasattr(value, "__dict__"):
        yield from content(kept, above)
    elif " at 0x" not in (text := repr(value)):
        yield text
    else:
        yield f"{type(value).__qualname__} {id(value)} {next(_UNLIKE)}"
