"""Checks of arguments from Python: tensors of real numbers, whole numbers, and modules that encode images."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from holdfast.core.errors import Described, HoldfastError, OutOfRange

SHOWN = 8
"""Largest number of a module's outputs that a message names."""


def check_dense(values: object, name: str) -> None:
    """Check that ``values`` is a dense tensor of real numbers.

    Example:
        >>> check_dense(torch.zeros(2, device="meta"), "pixels")
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: pixels must be real numbers, got a tensor on device meta, which holds none. ...
    """
    if not isinstance(values, Tensor):
        got, expected, fix = type(values).__name__, "a tensor", "torch.as_tensor makes one of an array"
    elif values.layout is not torch.strided:
        got, expected, fix = f"the layout {str(values.layout)[6:]}", "a dense tensor", "its to_dense() makes one"
    elif values.is_meta:
        got, expected, fix = "a tensor on device meta, which holds none", "real numbers", "make it on cpu or cuda"
    elif values.is_quantized:
        got, expected, fix = str(values.dtype), "real numbers", "its dequantize() makes floats"
    elif values.is_complex():
        got, expected, fix = str(values.dtype), "real numbers", "take its abs(), its real or its imag part"
    else:
        return
    raise OutOfRange(name, Described(got), expected, fix)


def as_tensor(values: object, name: str, row: str) -> Tensor:
    """Return an array of numbers, one of whose rows is called ``row``, as a dense tensor.

    Raises:
        OutOfRange: It is none.
    """
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise OutOfRange(
            name, Described(f"{type(values).__name__} ({error})"), f"an array of numbers, one row per {row}"
        ) from error
    check_dense(tensor, name)
    return tensor


def check_labels(labels: object, name: str) -> None:
    """Check that ``labels`` is None or a tensor of one whole number per image."""
    if labels is None:
        return
    check_dense(labels, f"labels of {name}")
    assert isinstance(labels, Tensor)
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise OutOfRange(
            f"labels of {name}",
            Described(f"{labels.dtype} of shape {tuple(labels.shape)}"),
            "one whole number per image, shape (n,)",
        )


def check_module(module: object, name: str, shape: tuple[int, ...]) -> None:
    """Check that ``module`` has weights and takes one tensor of images.

    Raises:
        HoldfastError: It is no module, has lazy layers or takes something else.
    """
    if not isinstance(module, nn.Module):
        raise HoldfastError(f"an encoder is made of a torch.nn.Module, got {type(module).__name__}; wrap it in one")
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        sizes = ", ".join(map(str, (1, *shape)))
        raise HoldfastError(
            f"{name} has lazy layers, whose weights have no shape yet; run the module once on a batch first, as in "
            f"module(torch.zeros({sizes}))"
        )
    for part in module.modules():
        _check_part(part, name)
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # compiled code may not say what it takes
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise HoldfastError(
            f"{name} must take one tensor of images, but its forward takes {signature} ({error}); wrap the module in one "
            "that takes the images alone"
        ) from error


def _check_part(part: nn.Module, name: str) -> None:
    """Raise if a part of a module keeps its weights or its code where they cannot be copied and described."""
    kind = type(part)
    if isinstance(part, torch.jit.ScriptModule):  # which describes itself by its archive
        return
    if kind.__name__ == "OptimizedModule":  # whose import takes seconds
        raise HoldfastError(
            f"{name}: torch.compile hides a module's code, got {kind.__name__}. Pass the nn.Module it was made of."
        )
    if kind.__name__ == "GuardsFn":
        raise HoldfastError(
            f"{name}: the guards of an exported program cannot be described, got {kind.__name__}. "
            "Make the module with program.module(check_guards=False)."
        )
    for key, value in {**part._parameters, **part._buffers, **vars(part)}.items():
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            raise HoldfastError(
                f"{name}: {key} of a {kind.__name__} is sparse, got {value.layout}. Store {key}.to_dense()."
            )


def check_codes(codes: Any, name: str, count: int) -> None:
    """Check that a network returned one embedding of real numbers per image.

    Args:
        codes: Object to check; expected is a float tensor (count, d).

    Raises:
        HoldfastError: It is something else.
    """
    if not isinstance(codes, Tensor) or codes.ndim != 2 or len(codes) != count or not codes.shape[1]:
        several = isinstance(codes, Mapping | list | tuple)
        got, expected = Described(_described(codes)), f"one vector per image, shape ({count}, d)"
        fix = "return one of them" if several else "pool or flatten inside the module"
        raise OutOfRange(f"what {name} returns", got, expected, fix)
    if not codes.is_floating_point():
        raise OutOfRange(f"what {name} returns", codes.dtype, "floating-point embeddings", fix="convert them inside")


def _described(output: Any) -> str:
    """Return what a module returned: the shape of a tensor, the names or the shapes of several outputs.

    Example:
        >>> import torch
        >>> _described({"pooled": 1, "tokens": 2}), _described((torch.zeros(2, 5), None))
        ("dict with keys 'pooled', 'tokens'", 'tuple of 2: (2, 5), NoneType')
    """
    kind = type(output).__name__
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    if isinstance(output, Mapping):
        return f"{kind} with keys {_listed([repr(key) for key in output])}"
    if isinstance(output, list | tuple):
        return f"{kind} of {len(output)}: {_listed([_described(part) for part in output])}"
    return kind


def _listed(texts: list[str]) -> str:
    return ", ".join([*texts[:SHOWN], *(["..."] if len(texts) > SHOWN else [])])


def mixes_precisions(error: RuntimeError) -> bool:
    """Return whether torch refused to compute with floating-point numbers of two types.

    Example:
        >>> mixes_precisions(RuntimeError("mat1 and mat2 must have the same dtype, but got Half and Float"))
        True
        >>> mixes_precisions(RuntimeError("Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) ..."))
        False
    """
    text = str(error).lower()
    return "type" in text and len(set(re.findall("bfloat16|half|double|float", text))) > 1
