"""Tuning of speed: the number of images that are attacked together, and the C library's memory.

Time alone is at stake. The batch is measured among sizes for which torch's kernels are the same; what does change rounding,
the arrangement of the network (``core/optimised``), is not measured.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import inf
from time import perf_counter
from weakref import WeakKeyDictionary

import torch

from holdfast.core.encoder import Encoder
from holdfast.core.images import constant_images
from holdfast.core.optimised import operations, optimised

BATCHES = (1, 2, 4, 8)
"""Images at a time that are tried. From 16 on torch takes other kernels for small convolutions on one thread."""
GAIN = 0.9
"""A larger batch must take less than this fraction of the time for an image: smaller ones lose less when interrupted."""
SECONDS = 1.0
"""No further batch is tried after so long."""
MEASURED = 1 << 26
"""Operations an image from which a batch is measured: a shard of what has fewer is larger than any of them."""
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's ``mallopt``, from its ``malloc.h``."""
MAPPED, KEPT = 1 << 25, 1 << 30
"""Largest block in bytes that comes from the heap (glibc's maximum), and free bytes that stay there."""

_MEASURED: WeakKeyDictionary[Encoder, int] = WeakKeyDictionary()


def attacked_together(encoder: Encoder) -> int:
    """Measure the fastest number of images of a large encoder to attack together on a CPU; 1 for other encoders."""
    if encoder not in _MEASURED:
        weight = next(encoder.module.parameters(), None)
        large = weight is not None and weight.device.type == "cpu" and operations(encoder) >= MEASURED
        _MEASURED[encoder] = fastest(lambda count: gradient_seconds(encoder, count)) if large else 1
    return _MEASURED[encoder]


def fastest(seconds: Callable[[int], float]) -> int:
    """Return the smallest of the tried batches whose time per image is near the best.

    ``seconds`` times a batch of the given number of images.

    Example:
        >>> fastest(lambda count: 0.03 + 0.01 * count), fastest(lambda count: 0.03 * count)
        (8, 1)
    """
    began, best, least = perf_counter(), 1, inf
    with suppress(Exception):  # one that passes no gradient, or has no memory for more
        for count in BATCHES:
            if (each := seconds(count) / count) < GAIN * least:
                best, least = count, each
            if perf_counter() - began > SECONDS:
                break
    return best


def gradient_seconds(encoder: Encoder, count: int) -> float:
    """Return the seconds of a forward and a backward of ``count`` images, the better of two after one."""
    return min([_timed(encoder, count) for _ in range(3)][1:])


def _timed(encoder: Encoder, count: int) -> float:
    encoder, weight = optimised(encoder), next(encoder.module.parameters())
    images = constant_images(encoder.domain, count, weight)
    since = perf_counter()
    with torch.enable_grad():
        codes = encoder.forward(images.requires_grad_())
        torch.autograd.grad(codes.square().sum(), images)[0].cpu()
    return perf_counter() - since


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep freed memory, and return whether it does; other C libraries and user settings stay as they are.

    By default glibc maps and unmaps every large tensor, or gives the end of the heap back, and the next operation waits for
    the same pages again: half of the time of a forward of many images.
    """
    settings = (*(name for name in os.environ if name.startswith("MALLOC_")), os.environ.get("GLIBC_TUNABLES", ""))
    if not sys.platform.startswith("linux") or any("MALLOC" in text.upper() for text in settings):
        return False
    try:
        library = ctypes.CDLL(None)
        version, mallopt = library.gnu_get_libc_version, library.mallopt
    except (OSError, AttributeError):
        return False  # another C library
    return bool(version and mallopt(MMAP_THRESHOLD, MAPPED) and mallopt(TRIM_THRESHOLD, KEPT))
