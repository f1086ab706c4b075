"""Copies of modules that share nothing with the original."""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping
from io import BytesIO
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def copied(module: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return a copy of ``module`` whose hooks and functions refer to the copy.

    ``copy.deepcopy`` alone leaves functions as they are, so that a hook which closes over the module would go on looking at
    the original, and refuses tensors that were computed with gradients, as the weights of ``torch.nn.utils.weight_norm``.

    Example:
        >>> original = nn.Linear(1, 1, bias=False)
        >>> _ = original.register_forward_hook(lambda part, args, out: out + original.weight)
        >>> frozen = copied(original)
        >>> _ = nn.init.zeros_(original.weight)
        >>> bool(frozen(torch.zeros(1, 1)).ne(0).any())
        True
    """
    memo = {} if memo is None else memo
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):  # deepcopy makes its weights results of an operation
            memo.setdefault(id(part), _reloaded(part))
            continue
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo.setdefault(id(value), value.detach().clone())
    result = copy.deepcopy(module, memo)
    for part in result.modules():
        _rebind(vars(part), memo)
        for kept in list(vars(part).values()):
            if isinstance(kept, MutableMapping):  # hooks are kept in dictionaries
                _rebind(kept, memo)
    return result


def _reloaded(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    buffer = BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def _rebind(values: MutableMapping[Any, Any], memo: dict[int, Any]) -> None:
    for key, value in list(values.items()):
        rebound = _rebound(value, memo)
        if rebound is not value:
            values[key] = rebound


def _rebound(value: Any, memo: dict[int, Any]) -> Any:
    """Return a function that refers to copies, in its closure or by global names, where there are any; else ``value``."""
    if isinstance(value, MethodType):
        return MethodType(value.__func__, memo[id(value.__self__)]) if id(value.__self__) in memo else value
    if not isinstance(value, FunctionType):
        return value
    memo[id(value)] = value  # a function may close over itself
    cells = tuple(_copy_of(cell, memo) for cell in value.__closure__ or ())
    named = {name: memo[id(held)] for name, held in _modules_named(value) if id(held) in memo}
    if not named and all(new is old for new, old in zip(cells, value.__closure__ or (), strict=True)):
        return value
    names = {**value.__globals__, **named} if named else value.__globals__
    rebound = FunctionType(value.__code__, names, value.__name__, value.__defaults__, cells or None)
    rebound.__kwdefaults__ = value.__kwdefaults__
    rebound.__qualname__, rebound.__module__ = value.__qualname__, value.__module__
    rebound.__dict__.update(value.__dict__)
    return rebound


def _modules_named(function: FunctionType) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that the code of ``function`` may mean by global names, as in a notebook."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            if isinstance(function.__globals__.get(name), nn.Module):
                yield name, function.__globals__[name]


def _copy_of(cell: CellType, memo: dict[int, Any]) -> CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # not filled yet
        return cell
    new = memo[id(held)] if id(held) in memo else _rebound(held, memo)
    return cell if new is held else CellType(new)
