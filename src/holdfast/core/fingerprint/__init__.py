"""What makes two modules the same encoder: their parts, weights, code, and every attribute they keep.

Wrongly equal fingerprints hand one encoder another's stored results, so whatever a module keeps that cannot be described by
its content is described as unlike everything else: such an encoder is measured anew in every process, and never confused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import CodeType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.fingerprint.named_code import methods, named_by

_UNLIKE = itertools.count()
_MACHINERY = frozenset(vars(nn.Module())) | {"training"}
"""Attributes of every module; its parts, weights, buffers and hooks are described on their own."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


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
        else:
            if not kind.__module__.startswith("torch."):  # whose versions change code without changing results
                texts += content(getattr(kind.forward, "__code__", None), above)
                for named in named_by(methods(kind, "forward"), kind):
                    texts += content(named, above)
            texts += content({key: value for key, value in vars(part).items() if key not in _MACHINERY}, above)
        for kind_of_hook in _HOOKS:
            for hook in vars(part).get(kind_of_hook, {}).values():
                texts += [kind_of_hook, *content(hook, above)]
        for key in sorted(vars(part).get("_non_persistent_buffers_set", ())):  # which are in no state_dict
            texts += [key, *content(part.get_buffer(key), above)]
        digest.update("\0".join(texts).encode())
    for key, value in sorted(module.state_dict().items()):
        digest.update("\0".join((key, *content(value, above))).encode())
    return digest.hexdigest()[:16]


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
        yield value.co_code.hex()
        yield from map(str, value.co_names)
        yield from content(value.co_consts, above)
    elif callable(value):
        yield from _callable(value, above)
    else:
        yield from _object(value, above)


def _callable(value: Any, above: frozenset[int]) -> Iterator[str]:
    yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, type):
        return
    if hasattr(value, "func") and hasattr(value, "args"):  # functools.partial
        yield from content([value.func, value.args, value.keywords], above)
    elif hasattr(value, "__code__"):
        yield from content([value.__code__, value.__defaults__], above)
        for named in (*filter(None, [value.__kwdefaults__]), *named_by([value])):
            yield from content(named, above)
        if isinstance(value, MethodType):
            yield from content(value.__self__, above)
        for cell in value.__closure__ or ():
            yield from content(cell.cell_contents, above)
    elif not hasattr(value, "__qualname__"):
        yield from _object(value, above)


def _object(value: Any, above: frozenset[int]) -> Iterator[str]:
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.ScriptObject) and hasattr(
        value, "__getstate__"
    ):  # the packed weights of quantised layers
        yield from content(value.__getstate__(), above)
    elif hasattr(value, "__dict__"):
        yield from content(vars(value), above)
    elif " at 0x" not in (text := repr(value)):
        yield text
    else:
        yield _unlike(value)


def _unlike(value: Any) -> str:
    return f"{type(value).__qualname__} {id(value)} {next(_UNLIKE)}"
