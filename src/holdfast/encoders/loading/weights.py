"""Tensors of a checkpoint file, and the one renaming that is allowed: a prefix common to all of them."""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.reference import first_line
from holdfast.encoders.loading.zipped import check_expansion

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class WeightSettings:
    """Settings of a reference that say which of a file's tensors are meant."""

    key: str | None = None
    """The entry that holds the state dict, where a training script saved several things in one file."""
    prefix: str = ""
    """Take only the tensors whose names start so, and remove it: ``prefix=module.encoder_q.``"""
    drop: tuple[str, ...] = ()
    """Leave out the tensors whose names (without ``prefix``) start so: ``drop=fc.``, or several: ``drop=fc.&drop=queue``."""


def read_weights(path: Path, settings: WeightSettings) -> Weights:
    """Return the tensors of ``path`` that ``settings`` choose."""
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    weights = _state_dict(content, settings.key, path)
    chosen = {
        name.removeprefix(settings.prefix): value for name, value in weights.items() if name.startswith(settings.prefix)
    }
    kept = {name: value for name, value in chosen.items() if not name.startswith(settings.drop)}
    if not kept:
        raise HoldfastError(
            f"'{path}' has no tensor left to load; its names begin with {next(iter(weights), 'nothing')!r}"
        )
    return kept


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        raise HoldfastError(
            f"'{path}' is not a whole safetensors file ({first_line(error)}); it may be truncated: copy it again"
        ) from error


def _read_torch(path: Path) -> Any:
    try:
        check_expansion(path, f"'{path}'")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how the file was pickled; what cannot be read is an error below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        with path.open("rb") as file:
            begins = file.read(1)
        if begins != b"\x80" and not zipfile.is_zipfile(path):
            raise HoldfastError(f"'{path}' is no checkpoint: torch.save did not write it") from error
        # The reader names the object that it would not build, where it understood the file that far.
        refused = re.search(r"GLOBAL ([\w.]+)|Unsupported class ([\w.]+)", str(error))
        what = f" ({refused[1] or refused[2]})" if refused else ""
        raise HoldfastError(
            f"'{path}' holds Python objects{what} beside tensors, and reading those could run code, so it is refused; "
            "where you trust it, save its state dict alone with safetensors.torch.save_file"
        ) from error
    except HoldfastError:
        raise
    except Exception as error:  # a damaged file fails wherever its damage is
        raise HoldfastError(
            f"'{path}' is not a whole checkpoint ({first_line(error)}); it may be truncated: copy it again"
        ) from error


def _state_dict(content: Any, key: str | None, path: Path) -> Weights:
    """Return the dictionary of tensors in ``content``: itself, its entry ``key``, or the only entry that is one."""
    if _is_weights(content) and key is None:
        return content
    entries = {name: part for name, part in content.items() if _is_weights(part)} if isinstance(content, dict) else {}
    if key is None and len(entries) == 1:
        return next(iter(entries.values()))
    if not entries:
        raise HoldfastError(f"'{path}' holds no weights (no dictionary of tensors); save the state dict of a module")
    if key is None or key not in entries:
        raise HoldfastError(
            f"'{path}' has {len(entries)} state dicts {sorted(map(str, entries))}"
            f"{'' if key is None else f', none of them {key!r}'}; choose one with ?key=NAME"
        )
    return entries[key]


def _is_weights(content: Any) -> bool:
    return isinstance(content, dict) and bool(content) and all(isinstance(part, Tensor) for part in content.values())


def fit(weights: Weights, module: nn.Module, name: str, otherwise: str = "change --arch") -> Weights:
    """Return ``weights`` under the names of ``module``; a prefix common to all names of one side is taken off or put on.

    Args:
        weights: tensors by the names they have in the file.
        module: what they belong to.
        name: of the file, for errors.
        otherwise: what to do where no choice among the tensors fits.

    Example:
        >>> weights = {"module.weight": torch.zeros(1, 2), "module.bias": torch.zeros(1)}
        >>> sorted(fit(weights, nn.Linear(2, 1), "example"))
        ['bias', 'weight']
        >>> sorted(fit({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}, nn.Sequential(nn.Linear(2, 1)), "example"))
        ['0.bias', '0.weight']
    """
    expected = module.state_dict()
    for prefix in _prefixes([*weights][:1]):
        renamed = _without(prefix, weights)
        if len(renamed) == len(weights) and renamed.keys() == expected.keys():
            return _checked_shapes(renamed, expected, name, otherwise)
    for prefix in _prefixes([*expected][:1]):
        renamed = {prefix + key: value for key, value in weights.items()}
        if renamed.keys() == expected.keys():
            return _checked_shapes(renamed, expected, name, otherwise)
    raise HoldfastError(
        f"{name!r} does not fit the module: missing {_some(expected.keys() - weights.keys())}, "
        f"unexpected {_some(weights.keys() - expected.keys())}; {_choice(weights, expected) or otherwise}"
    )


def _prefixes(names: Iterable[str]) -> list[str]:
    """Return every beginning of a name that ends in a dot, and the empty one first.

    Example:
        >>> _prefixes(["net.0.weight", "head.weight"])
        ['', 'net.', 'net.0.', 'head.']
    """
    parts = [name.split(".") for name in names]
    return list(dict.fromkeys(["", *(".".join([*part[:k], ""]) for part in parts for k in range(1, len(part)))]))


def _without(prefix: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}


def _choice(weights: Weights, expected: Mapping[str, Any]) -> str | None:
    """Return which settings of a reference leave exactly the ``expected`` names of ``weights``, if some do."""
    for prefix in _prefixes(weights):
        chosen = _without(prefix, weights)
        for drop in _prefixes(chosen) if chosen.keys() >= expected.keys() else ():
            kept = {key for key in chosen if not (drop and key.startswith(drop))}
            if kept == expected.keys():
                parts = [f"prefix={prefix}"] * bool(prefix) + [f"drop={drop}"] * bool(drop)
                return f"add the settings {'&'.join(parts)} to the reference, after ? or &"
    return None


def _checked_shapes(weights: Weights, expected: Mapping[str, Any], name: str, otherwise: str) -> Weights:
    wrong = [key for key, value in weights.items() if value.shape != expected[key].shape]
    if wrong:
        stored, wanted = tuple(weights[wrong[0]].shape), tuple(expected[wrong[0]].shape)
        raise HoldfastError(
            f"{name!r} does not fit the module: {wrong[0]} has shape {stored}, the module wants {wanted}; {otherwise}"
        )
    return weights


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:4])
    return f"{len(names)} ({shown}{', ...' if len(names) > 4 else ''})" if names else "none"


@contextmanager
def weights_only() -> Iterator[None]:
    """Make every ``torch.load`` refuse objects: some libraries read their downloads without asking for that."""
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before
