"""From the tensors of a file to those of a module: names differ by wrappers and prefixes, and nothing else is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.weight_files import Weights, beginnings

WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Parts of names that torch's wrappers insert anywhere: of data parallelism, compilation, checkpointing and sharding."""
COUNTER = "num_batches_tracked"
"""Buffer of batch norms that evaluation does not read, and that older checkpoints lack."""


def fit(weights: Weights, module: nn.Module, name: str, otherwise: str = "change --arch") -> Weights:
    """Return ``weights`` under the names of ``module``.

    A prefix common to all names of one side is taken off or put on, and what torch's wrappers insert is left out on both
    sides. A missing counter of a batch norm is the module's own. A missing tensor that the module ties to another is that.

    Args:
        weights: tensors by the names they have in the file.
        module: what they belong to.
        name: of the file, for errors.
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
