"""What functions are given from Python: tensors that hold real numbers, and whole numbers."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError


def check_dense(values: object, name: str) -> None:
    """Raise unless ``values`` is a tensor that holds a real number in every place.

    Example:
        >>> check_dense(torch.zeros(2, device="meta"), "pixels")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: pixels must hold real numbers, got a tensor on device meta, which holds none; ...
    """
    if not isinstance(values, Tensor):
        raise HoldfastError(
            f"{name} must be a tensor, got {type(values).__name__}; torch.as_tensor makes one of an array"
        )
    if values.layout is not torch.strided:
        raise HoldfastError(
            f"{name} must be a dense tensor, got the layout {str(values.layout)[6:]}; its to_dense() makes one"
        )
    if values.is_meta:
        raise HoldfastError(
            f"{name} must hold real numbers, got a tensor on device meta, which holds none; make it on cpu or cuda"
        )
    if values.is_quantized:
        raise HoldfastError(f"{name} must hold real numbers, got {values.dtype}; its dequantize() makes floats")
    if values.is_complex():
        raise HoldfastError(
            f"{name} must hold real numbers, got {values.dtype}; take its abs(), its real or its imag part"
        )


def check_whole(value: object, name: str) -> None:
    """Raise unless ``value`` is a whole number.

    Example:
        >>> check_whole(0.5, "seed")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: seed must be a whole number, got 0.5
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise HoldfastError(f"{name} must be a whole number, got {value!r}")


def check_labels(labels: object, name: str) -> None:
    """Raise unless ``labels`` is None or one whole number per image in a tensor."""
    if labels is None:
        return
    check_dense(labels, f"labels of {name}")
    assert isinstance(labels, Tensor)
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise HoldfastError(
            f"labels of {name} must be one whole number per image, shape (n,), got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
