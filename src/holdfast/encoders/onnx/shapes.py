"""ONNX operators that move, cut and reshape tensors, and the attributes of an operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from holdfast.core.errors import HoldfastError

Setting = NDArray[Any] | Tensor
"""An input that says how an operator computes; a tensor only where it depends on the pixels."""


@dataclass(frozen=True)
class Call:
    """Context of a node: attributes, outputs, and precision and device of the pixels."""

    operator: str
    attributes: Mapping[str, Any]
    outputs: int
    dtype: torch.dtype
    device: torch.device

    def get(self, name: str, default: Any) -> Any:
        """Attribute of the node, or its default."""
        return self.attributes.get(name, default)

    def integers(self, name: str, setting: Setting | None) -> list[int] | None:
        """Integers that are an input in recent operator sets and an attribute in older ones.

        Args:
            setting: Value of the input; None if it is missing.
        """
        return setting.flatten().tolist() if setting is not None else self.attributes.get(name)

    def refuse(self, what: str) -> HoldfastError:
        """Return the error for a variant of the operator that is not imported."""
        return HoldfastError(f"the ONNX operator {self.operator} with {what} is not supported; export without it")


INTEGERS = {2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool}
FLOATS = (1, 10, 11, 16)


def cast(call: Call, x: Tensor) -> Tensor:
    """Cast to an integer type, or to the precision of the pixels for floating types."""
    to = call.attributes["to"]
    if to not in INTEGERS and to not in FLOATS:
        raise call.refuse(f"element type {to}")
    return x.to(INTEGERS.get(to, call.dtype))


def constant_of_shape(call: Call, size: Tensor) -> Tensor:
    value = call.get("value", torch.zeros(1))
    dtype = call.dtype if value.is_floating_point() else value.dtype
    return torch.full(size.tolist(), value.item(), dtype=dtype, device=call.device)


def depth_to_space(call: Call, x: Tensor) -> Tensor:
    side = call.attributes["blocksize"]
    if call.get("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(x, side)
    b, c, h, w = x.shape
    blocks = x.reshape(b, side, side, c // side**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(b, c // side**2, h * side, w * side)


def space_to_depth(call: Call, x: Tensor) -> Tensor:
    side = call.attributes["blocksize"]
    if call.get("mode", "DCR") == "CRD":
        return functional.pixel_unshuffle(x, side)
    b, c, h, w = x.shape
    blocks = x.reshape(b, c, h // side, side, w // side, side).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(b, c * side**2, h // side, w // side)


def expand(call: Call, x: Tensor, size: Setting) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, torch.Size(size.tolist())))


def flatten(call: Call, x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[: call.get("axis", 1)]), -1)


def gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    entries = x.index_select(axis, _from_start(indices, x.shape[axis]).flatten())
    return entries.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    return x.gather(axis, _from_start(indices, x.shape[axis]))


def _from_start(indices: Tensor, size: int) -> Tensor:
    return torch.where(indices < 0, indices + size, indices).long()


def pad(call: Call, x: Tensor, pads: Setting, value: Setting | None = None, axes: Setting | None = None) -> Tensor:
    over = [axis % x.ndim for axis in axes.tolist()] if axes is not None else list(range(x.ndim))
    ends = pads.tolist()
    before, after = dict(zip(over, ends[: len(over)], strict=True)), dict(zip(over, ends[len(over) :], strict=True))
    # torch counts pairs from the last axis, and its other modes accept no pairs for batch and channels.
    pairs = [end for axis in reversed(range(x.ndim)) for end in (before.get(axis, 0), after.get(axis, 0))]
    while pairs and pairs[-2:] == [0, 0]:
        pairs = pairs[:-2]
    mode = call.get("mode", "constant")
    if mode == "constant":
        return functional.pad(x, pairs, value=0.0 if value is None else value.item())
    return functional.pad(x, pairs, mode={"edge": "replicate", "wrap": "circular"}.get(mode, mode)) if pairs else x


def product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Product over several axes."""
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def range_(call: Call, start: Tensor, end: Tensor, step: Tensor) -> Tensor:
    dtype = call.dtype if start.is_floating_point() else start.dtype
    return torch.arange(start.item(), end.item(), step.item(), dtype=dtype, device=call.device)


def reshape(call: Call, x: Tensor, size: Setting) -> Tensor:
    wanted = size.tolist()
    if not call.get("allowzero", 0):
        wanted = [x.shape[axis] if part == 0 else part for axis, part in enumerate(wanted)]
    return x.reshape(wanted)


def shape(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(x.shape[call.get("start", 0) : call.get("end", None)], dtype=torch.int64, device=call.device)


def slice_(
    call: Call, x: Tensor, starts: Setting, ends: Setting, axes: Setting | None = None, steps: Setting | None = None
) -> Tensor:
    cuts = zip(
        axes.tolist() if axes is not None else range(len(starts)),
        starts.tolist(),
        ends.tolist(),
        steps.tolist() if steps is not None else [1] * len(starts),
        strict=True,
    )
    for axis, start, end, step in cuts:
        first, stop, step = slice(start, end, step).indices(x.shape[axis])
        if step == 1:
            x = x.narrow(axis, first, max(0, stop - first))
        else:  # torch knows no negative steps
            x = x.index_select(axis, torch.arange(first, stop, step, device=x.device))
    return x


def split(call: Call, x: Tensor, sizes: Setting | None = None) -> tuple[Tensor, ...]:
    axis = call.get("axis", 0)
    if sizes is not None:
        return x.split(sizes.tolist(), axis)
    return x.split(math.ceil(x.shape[axis] / call.outputs), axis)


def squeeze(call: Call, x: Tensor, axes: Setting | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(axes.tolist())


def transpose(call: Call, x: Tensor) -> Tensor:
    return x.permute(call.get("perm", list(reversed(range(x.ndim)))))


def unsqueeze(call: Call, x: Tensor, axes: Setting) -> Tensor:
    wanted = axes.flatten().tolist()
    for axis in sorted(axis % (x.ndim + len(wanted)) for axis in wanted):
        x = x.unsqueeze(axis)
    return x
