"""Whether an encoder, as it is executed, is the function that bounds are of.

Bounds are of a copy in the precision of the specifications, called on single images without gradients. The encoder
itself runs in a precision of its own, in batches of many sizes, with gradients while it is attacked, and on images whose
memory is laid out in other ways. A module may ask about any of these, so it is called in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.bounds.network.consistency import call, slack, unlike
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.whole_float32 import factors_are_rounded

EXACT = (torch.float32, torch.float64)
"""Precisions whose rounding certificates may leave out."""
ALONE = (1, 3)
"""Batches that are tried of a network which is called with one image at a time."""
SIZES = (*range(1, 65), 96, 98, 100, 125, 128, 150, 192, 196, 200, 224, 250, 256, 300, 400, 500, 512, 600, 800, 1000)
"""Batches that are tried, as far as ``ENTRIES`` reach: those of up to 64 images, and usual larger ones."""
ENTRIES = 2**25  # of nodes in a batch: encoders of up to a hundred thousand are tried in batches of 256
FEW = 32
"""The largest batch that is tried of a copy, which attacks and witnesses alone are computed with."""
TENSOR_CORES = 2.0**-11
"""The rounding of factors in float32 on GPUs, unless torch is told otherwise."""

Execute = Callable[[Encoder, Pixels], Codes]


def check_precision(encoder: Encoder, dtype: torch.dtype, device: torch.device) -> None:
    """Raise if the bound or the encoder, now or by its weights, computes in less than float32."""
    if dtype not in EXACT:
        raise HoldfastError(f"bounds are computed in float32 or float64, got {dtype}; convert the specifications")
    if torch.is_autocast_enabled(device.type):
        raise HoldfastError(
            f"{encoder.name} would be executed under autocast in {torch.get_autocast_dtype(device.type)}, whose rounding "
            "no bound accounts for; leave torch.autocast to ask for bounds"
        )
    for name, value in (*encoder.module.named_parameters(), *encoder.module.named_buffers()):
        if value.is_floating_point() and value.dtype not in EXACT:
            raise HoldfastError(
                f"{encoder.name} has weights in {value.dtype} ({name}): it is executed with rounding that no bound accounts "
                "for and that moves codes past what is proved; bound and run it in float32, or certify it by smoothing"
            )


def precision_of(encoder: Encoder) -> torch.dtype:
    """Return the precision an encoder is executed in: that of its first weights, float32 where it has none."""
    weights = (*encoder.module.parameters(), *encoder.module.buffers())
    return next((weight.dtype for weight in weights if weight.is_floating_point()), torch.float32)


def rounding(dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest relative rounding of an operation in ``dtype``."""
    if device.type == "cuda" and dtype == torch.float32 and factors_are_rounded():
        return TENSOR_CORES
    return torch.finfo(dtype).eps


def check_executed(encoder: Encoder, pixels: Pixels, codes: Codes, allowed: float, largest: int) -> None:
    """Raise unless ``encoder`` returns ``codes`` of ``pixels`` in every mode in which it is executed.

    Args:
        encoder: in the precision in question.
        pixels: images, in the same.
        codes: those that bounds are of, in any precision.
        allowed: by how much they may differ, as a share of their size.
        largest: batch to try.
    """
    room = slack(codes, allowed)
    _compare(encoder, call(encoder, pixels), codes, room, "")
    sizes = [size for size in SIZES if size <= max(len(pixels), largest)]
    for mode, rows, execute in _executions(len(pixels), ALONE if calls_one_by_one(encoder.module) else sizes):
        executed = codes[rows]
        with suppress(Exception):  # nobody takes a failure for a code
            executed = execute(encoder, pixels[rows])
        _compare(encoder, executed, codes[rows], room, mode)


def calls_one_by_one(module: nn.Module) -> bool:
    """Return whether a network inside wrappers of Holdfast is called with one image at a time, whatever the batch."""
    while type(module).__module__.startswith("holdfast."):
        if getattr(module, "one_by_one", False):
            return True
        inner = getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            return False
        module = inner
    return False


def _executions(count: int, sizes: Sequence[int]) -> Iterator[tuple[str, list[int], Execute]]:
    """Yield every mode in words, the images that it is tried on, and how."""
    for size in sizes:
        yield f" in a batch of {size}", [row % count for row in range(size)], call
    for mode, execute in MODES.items():
        yield f" {mode}", list(range(count)), execute


def _compare(encoder: Encoder, executed: Tensor, codes: Codes, room: Float[Tensor, "d"], mode: str) -> None:
    if executed.shape != codes.shape:
        raise HoldfastError(
            f"{encoder.name} returns {executed.shape[1]} features{mode} and {codes.shape[1]} when it is traced, so it "
            "cannot be bounded; its forward must return as many of every image"
        )
    unequal = unlike(executed.detach().to(codes), codes, room)
    if unequal.any():
        raise HoldfastError(
            f"{encoder.name} gives other codes in {str(executed.dtype)[6:]}{mode} than the graph that would be bounded, for "
            f"{int(unequal.sum())} of {len(unequal)} images, so nothing proved would hold for it; its forward must not "
            "depend on precision, batch size, gradients or memory layout, and must not lose its digits to rounding"
        )


def _within(context: Callable[[], AbstractContextManager[object]], leaf: bool) -> Execute:
    def execute(encoder: Encoder, pixels: Pixels) -> Codes:
        with context():
            return encoder.forward(pixels.clone().requires_grad_(leaf))

    return execute


def _computed(encoder: Encoder, pixels: Pixels) -> Codes:
    """Call ``encoder`` on images that were computed, as the steps of an attack are."""
    with torch.enable_grad():
        return encoder.forward(pixels.clone().requires_grad_() * 1)


def _in_a_thread(encoder: Encoder, pixels: Pixels) -> Codes:
    with ThreadPoolExecutor(1) as other:
        return other.submit(call, encoder, pixels).result()


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _laid_out(arrange: Callable[[Pixels], Pixels]) -> Execute:
    def execute(encoder: Encoder, pixels: Pixels) -> Codes:
        with torch.no_grad():
            return encoder.forward(arrange(pixels))

    return execute


def _transposed(pixels: Pixels) -> Pixels:
    axes = tuple(reversed(range(pixels.ndim)))
    return pixels.permute(axes).contiguous().permute(axes)


def _channels_last(pixels: Pixels) -> Pixels:
    return pixels.movedim(1, -1).contiguous().movedim(-1, 1)


def _every_second(pixels: Pixels) -> Pixels:
    return torch.stack([pixels, pixels], -1)[..., 1]


MODES: dict[str, Execute] = {
    "where gradients are on": _within(torch.enable_grad, False),
    "where images need gradients": _within(torch.enable_grad, True),
    "where images need gradients that are off": _within(torch.no_grad, True),
    "where images are computed from others": _computed,
    "in inference mode": _within(torch.inference_mode, False),
    "in another thread": _in_a_thread,
    "where the default type is float64": _within(partial(_default, torch.float64), False),
    "where the default type is float32": _within(partial(_default, torch.float32), False),
    "with channels last in memory": _laid_out(_channels_last),
    "with images transposed in memory": _laid_out(_transposed),
    "with images that are parts of others in memory": _laid_out(_every_second),
}
