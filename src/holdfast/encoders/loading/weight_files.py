"""Tensors in a file of weights: safetensors, whole or in shards, or what torch saved, read as data alone."""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.reference import existing, first_line
from holdfast.encoders.loading.zipped import check_expansion

Weights = dict[str, Tensor]
INDEX = ".index.json"
"""How the file ends that says which shard holds which tensor."""
SCALARS = (bool, int, float, str, type(None))
SHOWN = 8


@dataclass(frozen=True)
class WeightSettings:
    """Settings of a reference that say which of a file's tensors are meant."""

    key: str | None = None
    """Entry that holds the state dict, where a file holds several: ``key=ema``, or ``key=model.state_dict``, nested."""
    prefix: str = ""
    """Take only the tensors whose names start so, and remove it: ``prefix=module.encoder_q.``"""
    drop: tuple[str, ...] = ()
    """Leave out the tensors whose names (without ``prefix``) start so: ``drop=fc.``, or several: ``drop=fc.&drop=queue``."""


def read_weights(path: Path, settings: WeightSettings) -> Weights:
    """Return the tensors of ``path`` that ``settings`` choose."""
    weights = _state_dict(_read(path), settings.key, path)
    chosen = {
        name.removeprefix(settings.prefix): value for name, value in weights.items() if name.startswith(settings.prefix)
    }
    kept = {name: value for name, value in chosen.items() if not name.startswith(settings.drop)}
    if not kept:
        raise HoldfastError(f"'{path}' has no tensor left to load; it holds {beginnings(weights)}")
    return kept


def beginnings(names: Mapping[str, Any]) -> str:
    """Return how many of ``names`` begin alike, and the setting that selects these.

    Example:
        >>> beginnings(dict.fromkeys(["encoder.0.weight", "encoder.0.bias", "head.weight", "scale"]))
        '2 encoder. (prefix=encoder.), 1 head. (prefix=head.), 1 scale'
    """
    counts = Counter(f"{name.partition('.')[0]}{'.' * ('.' in name)}" for name in names)
    parts = [
        f"{count} {name} (prefix={name})" if name.endswith(".") else f"{count} {name}"
        for name, count in counts.most_common(SHOWN)
    ]
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return (", ".join(parts) or "nothing") + more


def _read(path: Path) -> Any:
    if path.name.endswith(INDEX):
        return _read_shards(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _read_shards(index: Path) -> Weights:
    """Return the tensors of all shards that ``index`` names, which lie beside it."""
    try:
        place = json.loads(index.read_text())["weight_map"]
        shards = sorted({str(shard) for shard in place.values()})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HoldfastError(f"'{index}' is no index of shards ({first_line(error)}); expected a weight_map") from error
    tensors: Weights = {}
    for shard in shards:
        if Path(shard).name != shard:
            raise HoldfastError(f"'{index}' names the shard {shard!r} in another folder; shards lie beside their index")
        tensors |= _state_dict(_read(existing(str(index.parent / shard))), None, index.parent / shard)
    if missing := sorted(place.keys() - tensors.keys()):
        raise HoldfastError(
            f"the shards of '{index}' lack {len(missing)} tensors, {missing[0]!r} first; copy them again"
        )
    return tensors


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
        if _is_torchscript(path):
            raise HoldfastError(
                f"'{path}' is a TorchScript archive, which holds a program, and reading it could run code. Where you trust "
                "it, save its weights: safetensors.torch.save_file(torch.jit.load(path).state_dict(), ...)"
            )
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


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _state_dict(content: Any, key: str | None, path: Path) -> Weights:
    """Return the dictionary of tensors in ``content``: itself, its entry ``key``, or the only one inside of it."""
    found = dict(_state_dicts(content))
    if key is None and len(found) == 1:
        return next(iter(found.values()))
    if not found:
        what = (
            f"the keys {', '.join(map(str, list(content)[:SHOWN]))}"
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise HoldfastError(
            f"'{path}' holds no weights: {what}, no dictionary of tensors; save the state dict of a module"
        )
    if key not in found:
        offered = ", ".join(f"{len(part)} tensors in key={name}" for name, part in list(found.items())[:SHOWN])
        wrong = "" if key is None else f", none of them {key!r}"
        raise HoldfastError(f"'{path}' has {len(found)} state dicts{wrong}; choose one: {offered}")
    return found[key]


def _state_dicts(content: Any, name: str = "") -> Iterator[tuple[str, Weights]]:
    """Yield every dictionary of tensors in ``content`` by its path; numbers and text beside them are left out."""
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return  # the state of an optimizer has numbers for keys
    tensors = {key: value for key, value in content.items() if isinstance(value, Tensor)}
    if tensors and all(isinstance(value, (Tensor, *SCALARS)) for value in content.values()):
        yield name, tensors
        return
    for key, value in content.items():
        yield from _state_dicts(value, f"{name}.{key}" if name else key)


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
