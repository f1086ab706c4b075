"""What makes two modules the same encoder: their parts, weights, code, and every attribute they keep.

Wrongly equal fingerprints hand one encoder another's stored results, so whatever a module keeps that cannot be described by
its content is described as unlike everything else: such an encoder is measured anew in every process, and never confused.
"""

from __future__ import annotations

import itertools
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import PurePath
from types import CodeType, MemberDescriptorType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.fingerprint.named_code import methods, named_by
from holdfast.core.fingerprint.syntax import code_text, has_source

_UNLIKE = itertools.count()
_MACHINERY = frozenset(vars(nn.Module())) | {"training"}
"""Attributes of every module; its parts, weights, buffers and hooks are described on their own."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_SHARED_HOOKS = tuple(f"_global{kind}" for kind in _HOOKS)
_INLINED = re.compile(r"<(?:list|dict|set)comp>\.<locals>\.")
"""Parts of names of functions since comprehensions are none themselves, as of Python 3.12."""


def fingerprint(module: nn.Module, *context: object) -> str:
    """Return 16 hexadecimal digits that differ whenever the module computes something else."""
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
    """Yield text that describes what the class of ``part`` does: its code, and what that names or encloses."""
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
    """Return the names of the functions and methods that ``module`` calls and whose source is not found.

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
    """Yield all parts by name, a part that is used at several places at each of them, and none inside of itself."""
    yield name, module
    above |= {id(module)}
    for key, part in module._modules.items():
        if part is not None and id(part) not in above:
            yield from _places(part, f"{name}.{key}" if name else key, above)


def content(value: Any, above: frozenset[int] = frozenset()) -> Iterator[str]:
    """Yield text that describes ``value`` by what it holds; ``above`` are the objects that hold it.

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
        yield _unlike(value)


def _unlike(value: Any) -> str:
    return f"{type(value).__qualname__} {id(value)} {next(_UNLIKE)}"
