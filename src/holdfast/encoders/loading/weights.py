"""Weights from files to modules: safetensors, or files saved by torch, read as data alone.

Names may differ by wrappers and prefixes; nothing else is guessed.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError, existing, explained, first_line


def check_expansion(file: Path | BytesIO, name: str) -> None:
    """Check that a zip archive does not unpack to more than its size on disk."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        # Records may overlap, so their compression alone says nothing.
        unpacked, packed = sum(record.file_size for record in archive.infolist()), archive.start_dir
    if unpacked > packed:
        raise HoldfastError(
            f"{name} holds {packed:,} bytes but would unpack to {unpacked:,}, while torch saves without compression; "
            "save it again with torch"
        )


Weights = dict[str, Tensor]
INDEX = ".index.json"
"""How the file ends that says which shard holds which tensor."""
SCALARS = (bool, int, float, str, type(None))
SHOWN = 8
TRUNCATED = "it may be truncated: copy it again"


@dataclass(frozen=True)
class WeightSettings:
    """Settings that choose among the tensors of a file."""

    key: str | None = None
    """Entry that holds the state dict, where a file holds several: ``key=ema``, or ``key=model.state_dict``, nested."""
    prefix: str = ""
    """Take only the tensors whose names start so, and remove it: ``prefix=module.encoder_q.``"""
    drop: tuple[str, ...] = ()
    """Leave out the tensors whose names (without ``prefix``) start so: ``drop=fc.``, or several: ``drop=fc.&drop=queue``."""


def read_weights(path: Path, settings: WeightSettings) -> Weights:
    """Tensors of a file that settings choose.

    Raises:
        HoldfastError: No tensor is left.
    """
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
    return _read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path)


def _read_shards(index: Path) -> Weights:
    """Return the tensors of all shards that ``index`` names, which lie beside it."""
    kinds = (ValueError, LookupError, TypeError, AttributeError)
    with explained(f"'{index}' is no index of shards", "expected a weight_map", *kinds):
        place = json.loads(index.read_text())["weight_map"]
        shards = sorted({str(shard) for shard in place.values()})
    tensors: Weights = {}
    for shard in shards:
        if Path(shard).name != shard:
            raise HoldfastError(f"'{index}' names the shard {shard!r} in another folder; shards lie beside their index")
        tensors |= _state_dict(_read(existing(str(index.parent / shard))), None, index.parent / shard)
    if missing := sorted(place.keys() - tensors.keys()):
        raise HoldfastError(f"shards of '{index}' lack {len(missing)} tensors, {missing[0]!r} first; copy them again")
    return tensors


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with explained(f"'{path}' is not a whole safetensors file", TRUNCATED, SafetensorError, ValueError):
        return load_file(path)


def read_torch(path: Path) -> Any:
    """Content of a file that ``torch.save`` wrote, read as data alone: tensors, numbers, text, lists and dictionaries.

    Raises:
        HoldfastError: The file is damaged, or holds a program or objects.
    """
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
        raise HoldfastError(f"'{path}' is not a whole checkpoint ({first_line(error)}); {TRUNCATED}") from error


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
        raise HoldfastError(f"'{path}' holds no weights: {what}, no dictionary of tensors; save a module's state dict")
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
    """Make every ``torch.load`` refuse objects, also inside libraries that do not ask for it."""
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


WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Parts of names that torch's wrappers insert anywhere: of data parallelism, compilation, checkpointing and sharding."""
COUNTER = "num_batches_tracked"
"""Buffer of batch norms that evaluation does not read, and that older checkpoints lack."""


def fit(weights: Weights, module: nn.Module, name: str, otherwise: str = "change --arch") -> Weights:
    """Return ``weights`` under the names of ``module``.

    A prefix common to all names of one side is taken off or put on, and what torch's wrappers insert is left out on both
    sides. A missing counter of a batch norm is the module's own. A missing tensor that the module ties to another is that.

    Args:
        otherwise: what to do where no choice among the tensors fits.

    Raises:
        HoldfastError: a tensor is missing, left over or of another shape.

    Example:
        >>> import torch
        >>> weights = {"module.weight": torch.zeros(1, 2), "module.bias": torch.zeros(1)}
        >>> sorted(fit(weights, nn.Linear(2, 1), "example"))
        ['bias', 'weight']
        >>> sorted(fit({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}, nn.Sequential(nn.Linear(2, 1)), "example"))
        ['0.bias', '0.weight']
    """
    expected = module.state_dict()
    needed = _needed(expected)
    for renamed in _renamings(weights, expected):
        if needed.keys() <= renamed.keys() and all(key in expected or key.endswith(COUNTER) for key in renamed):
            return _completed(renamed, expected, name, otherwise)
    hint = _choice(weights, expected)
    raise HoldfastError(
        f"{name!r} does not fit the module: missing {_some(needed.keys() - weights.keys())}, unexpected "
        f"{_some(weights.keys() - expected.keys())}; {hint or f'{otherwise}; the file holds {beginnings(weights)}'}"
    )


def _needed(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that a file must have: one of each group of tied tensors, and no counters."""
    first = dict[Any, str]()
    for key, value in expected.items():
        if not key.endswith(COUNTER):
            first.setdefault(_place(value) or key, key)
    return {key: expected[key] for key in first.values()}


def _place(value: Any) -> tuple[Any, ...] | None:
    """Return where a tensor lies in memory, which tied ones share; None for what is empty or no tensor."""
    if not isinstance(value, Tensor) or not value.numel() or value.device.type == "meta":
        return None
    return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype


def _renamings(weights: Weights, expected: Mapping[str, Any]) -> Iterable[Weights]:
    """Yield ``weights`` under every set of names that may be those of ``expected``, their own first."""
    for bare in (False, True):
        wanted = {_bare(key) if bare else key: key for key in expected}
        stored = {_bare(key) if bare else key: value for key, value in weights.items()}
        if len(wanted) < len(expected) or len(stored) < len(weights):
            return  # without the wrappers' parts names are no longer unique
        for prefix in _prefixes([*stored][:1]):
            renamed = _without(prefix, stored)
            if len(renamed) == len(stored):
                yield {wanted.get(key, key): value for key, value in renamed.items()}
        for prefix in _prefixes([*wanted][:1])[1:]:
            yield {wanted.get(prefix + key, prefix + key): value for key, value in stored.items()}


def _bare(key: str) -> str:
    """Return a name without what torch's wrappers insert.

    Example:
        >>> _bare("layers.0._checkpoint_wrapped_module.module.weight")
        'layers.0.weight'
    """
    return ".".join(part for part in key.split(".") if part not in WRAPPERS)


def _completed(weights: Weights, expected: Mapping[str, Any], name: str, otherwise: str) -> Weights:
    """Return ``weights`` with counters and tied tensors that the file lacks, after comparing shapes."""
    places = {_place(expected[key]): value for key, value in weights.items() if key in expected}
    complete: Weights = {}
    for key, wanted in expected.items():
        value = weights.get(key)
        if value is None:
            value = wanted if key.endswith(COUNTER) else places[_place(wanted)]
        elif value.shape != wanted.shape:
            raise HoldfastError(
                f"{name!r} does not fit the module: {key} has shape {tuple(value.shape)}, the module wants "
                f"{tuple(wanted.shape)}; {otherwise}"
            )
        complete[key] = value
    return complete


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
    needed = _needed(expected)
    for prefix in _prefixes(weights):
        chosen = _without(prefix, weights)
        if not needed.keys() <= chosen.keys():
            continue
        drops = list[str]()
        for key in chosen.keys() - expected.keys():
            beginnings_of_key = [*_prefixes([key])[1:], key]
            free = (start for start in beginnings_of_key if not any(other.startswith(start) for other in expected))
            drops.append(next(free, ""))
        if "" not in drops:
            parts = [f"prefix={prefix}"] * bool(prefix) + [f"drop={drop}" for drop in sorted({*drops})]
            return f"add the settings {'&'.join(parts)} to the reference, after ? or &"
    return None


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:4])
    return f"{len(names)} ({shown}{', ...' if len(names) > 4 else ''})" if names else "none"
