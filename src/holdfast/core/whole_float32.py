"""Float32 as it is everywhere, also where a GPU would compute in less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def factors_are_rounded() -> bool:
    """Return whether torch may round the factors of products in float32 on NVIDIA's GPUs (TF32)."""
    backends: Any = torch.backends
    try:
        return bool(backends.cudnn.allow_tf32 or backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # set by the newer of torch's two interfaces, beside which the older one refuses to be read
        return "tf32" in (backends.cudnn.conv.fp32_precision, backends.cuda.matmul.fp32_precision)


@contextmanager
def whole_float32() -> Iterator[None]:
    """Compute convolutions in float32 as elsewhere: on NVIDIA's GPUs torch rounds their factors to 11 bits (TF32) by itself.

    Without it codes of a ResNet-50 differ by 4e-4 between a GPU and a CPU, with it by 2e-6.
    """
    cudnn: Any = torch.backends.cudnn
    try:
        before = cudnn.allow_tf32
    except RuntimeError:  # as above
        yield
        return
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = before
