"""ONNX operators that cut and reshape tensors, and those with weights or windows, such as convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def _of(name: str, axes: int) -> Any:
    """Return torch's function of this name for this number of spatial axes, as ``conv2d``."""
    return getattr(functional, f"{name}{axes}d")


def _pads(call: Call, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after each spatial axis; ``SAME`` keeps ceil(size / stride) outputs."""
    axes, mode = len(kernel), call.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = call.get("pads", [0] * (2 * axes))
        return pads[:axes], pads[axes:]
    if mode == "VALID":
        return [0] * axes, [0] * axes
    strides, dilations = call.get("strides", [1] * axes), call.get("dilations", [1] * axes)
    sizes = zip(x.shape[2:], kernel, strides, dilations, strict=True)
    total = [max(0, (math.ceil(n / s) - 1) * s + d * (k - 1) + 1 - n) for n, k, s, d in sizes]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def _padded(x: Tensor, before: list[int], after: list[int], value: float) -> Tensor:
    pairs = [end for pair in zip(reversed(before), reversed(after), strict=True) for end in pair]
    return functional.pad(x, pairs, value=value)


def _inside(x: Tensor, before: list[int], after: list[int], value: float) -> tuple[Tensor, list[int]]:
    """Return ``x`` and the symmetric padding left for torch: all of it, or none once done here."""
    return (x, before) if before == after else (_padded(x, before, after, value), [0] * len(before))


def convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x, padding = _inside(x, *_pads(call, x, weight.shape[2:]), 0.0)
    return _of("conv", weight.ndim - 2)(x, weight, bias, padding=padding, **_geometry(call, weight))


def _geometry(call: Call, weight: Tensor) -> dict[str, Any]:
    ones, groups = [1] * (weight.ndim - 2), call.get("group", 1)
    return {"stride": call.get("strides", ones), "dilation": call.get("dilations", ones), "groups": groups}


def transposed_convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = weight.ndim - 2
    pads = call.get("pads", [0] * (2 * axes))
    if call.get("auto_pad", "NOTSET") != "NOTSET" or pads[:axes] != pads[axes:] or "output_shape" in call.attributes:
        raise call.refuse("automatic or asymmetric padding")
    padding = {"padding": pads[:axes], "output_padding": call.get("output_padding", [0] * axes)}
    return _of("conv_transpose", axes)(x, weight, bias, **padding, **_geometry(call, weight))


def _torch_pads(kernel: Sequence[int], before: list[int], after: list[int]) -> bool:
    """Return whether torch's pooling has this padding: the same at both ends, and at most half of the kernel."""
    return before == after and all(2 * pad <= k for pad, k in zip(before, kernel, strict=True))


def _exactly(call: Call, x: Tensor, kernel: Sequence[int], before: list[int], after: list[int]) -> list[int]:
    """Return the padding after each axis with which the last window ends at the end; negative: what no window reads."""
    ends = []
    steps = _steps(call, "strides", kernel), _steps(call, "dilations", kernel)
    rows = zip(x.shape[2:], kernel, before, after, *steps, strict=True)
    for n, k, b, a, stride, dilation in rows:
        reach = dilation * (k - 1) + 1
        if call.get("ceil_mode", 0):
            last = math.ceil((n + b + a - reach) / stride)
            last -= last * stride >= n + b  # no window starts in the padding at the end
        else:
            last = (n + b + a - reach) // stride
        ends.append(last * stride + reach - n - b)
    return ends


def _steps(call: Call, name: str, kernel: Sequence[int]) -> list[int]:
    return list(call.get(name, [1] * len(kernel)))


def max_pool(call: Call, x: Tensor) -> Tensor:
    kernel = call.attributes["kernel_shape"]
    pool = _of("max_pool", len(kernel))
    strides, dilations = _steps(call, "strides", kernel), _steps(call, "dilations", kernel)
    before, after = _pads(call, x, kernel)
    if _torch_pads(kernel, before, after):
        return pool(x, kernel, strides, before, dilations, ceil_mode=bool(call.get("ceil_mode", 0)))
    x = _padded(x, before, _exactly(call, x, kernel, before, after), -math.inf)
    return pool(x, kernel, strides, dilation=dilations)


def average_pool(call: Call, x: Tensor) -> Tensor:
    kernel = call.attributes["kernel_shape"]
    if any(step != 1 for step in call.get("dilations", [])):
        raise call.refuse("dilations")
    pool, strides = _of("avg_pool", len(kernel)), _steps(call, "strides", kernel)
    counts_padding = call.get("count_include_pad", 0)
    before, after = _pads(call, x, kernel)
    if _torch_pads(kernel, before, after):
        return pool(x, kernel, strides, before, bool(call.get("ceil_mode", 0)), bool(counts_padding))
    exact = _exactly(call, x, kernel, before, after)
    counted = _padded(torch.ones_like(x[:1, :1]), before, after, float(counts_padding))
    # What ceil_mode adds beyond the padding counts as little as torch counts it.
    counted = _padded(counted, [0] * len(before), [e - a for e, a in zip(exact, after, strict=True)], 0.0)
    return pool(_padded(x, before, exact, 0.0), kernel, strides) / pool(counted, kernel, strides)


def batch_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    if call.get("training_mode", 0):
        raise call.refuse("training_mode=1 (it would normalise by the statistics of the batch)")
    return functional.batch_norm(x, mean, variance, scale, bias, eps=call.get("epsilon", 1e-5))


def group_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call.attributes["num_groups"]
    if len(scale) != x.shape[1]:  # operator set 18 has one scale per group
        scale, bias = (part.repeat_interleave(x.shape[1] // groups) for part in (scale, bias))
    return functional.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


def instance_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=bias, eps=call.get("epsilon", 1e-5))


def layer_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    axis = call.get("axis", -1) % x.ndim
    normal = functional.layer_norm(x, x.shape[axis:], eps=call.get("epsilon", 1e-5)) * scale
    return normal if bias is None else normal + bias


def local_response_norm(call: Call, x: Tensor) -> Tensor:
    size = call.attributes["size"]
    settings = call.get("alpha", 1e-4), call.get("beta", 0.75), call.get("bias", 1.0)
    if size % 2:
        return functional.local_response_norm(x, size, *settings)
    # A window of even size holds one more channel on one side: torch has it before, ONNX after the centre.
    return functional.local_response_norm(x.flip(1), size, *settings).flip(1)


def lp_norm(call: Call, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, ord=call.get("p", 2), dim=call.get("axis", -1), keepdim=True)
    return x / norm.clamp_min(torch.finfo(x.dtype).tiny)  # a vector of zeros stays one


GRIDS = {
    "nearest": ("asymmetric",),
    "linear": ("half_pixel", "pytorch_half_pixel", "align_corners"),
    "cubic": ("half_pixel", "pytorch_half_pixel", "align_corners"),
}
"""The coordinates of ``Resize`` that torch has as well, by mode."""


def _target(
    call: Call, x: Tensor, scales: Setting | None, sizes: Setting | None
) -> tuple[list[float] | None, list[int] | None]:
    """Return either the scales or the sizes of height and width."""
    if sizes is None and scales is not None:
        factors = scales.tolist()
        if factors[:2] != [1, 1]:
            raise call.refuse("scales of batch or channels")
        return factors[2:], None
    size = sizes.tolist() if sizes is not None else []
    if size[:2] != list(x.shape[:2]):
        raise call.refuse("sizes of batch or channels")
    return None, size[2:]


def resize(
    call: Call, x: Tensor, roi: Any = None, scales: Setting | None = None, sizes: Setting | None = None
) -> Tensor:
    """Resize images (b, c, h, w) in the variants that torch computes alike."""
    mode, grid = call.get("mode", "nearest"), call.get("coordinate_transformation_mode", "half_pixel")
    rounding = call.get("nearest_mode", "round_prefer_floor")
    if x.ndim != 4 or grid not in GRIDS.get(mode, ()) or (mode == "nearest" and rounding != "floor"):
        raise call.refuse(f"mode={mode}, coordinate_transformation_mode={grid}, nearest_mode={rounding}, rank {x.ndim}")
    special = {"antialias": 0, "axes": None, "cubic_coeff_a": -0.75, "exclude_outside": 0}
    for name, usual in {**special, "keep_aspect_ratio_policy": "stretch"}.items():
        if call.get(name, usual) != usual:
            raise call.refuse(f"{name}={call.get(name, usual)}")
    factors, size = _target(call, x, scales, sizes)
    if grid == "align_corners" and factors and any(f * n % 1 for f, n in zip(factors, x.shape[2:], strict=True)):
        raise call.refuse("align_corners and scales that give no whole size (runtimes differ there)")
    if grid == "pytorch_half_pixel":  # where one pixel is left, it is the first one; torch takes the middle one
        left = size or [int(f * n) for f, n in zip(factors or (), x.shape[2:], strict=True)]
        for axis in (axis for axis, length in enumerate(left, 2) if length == 1):
            x = x.narrow(axis, 0, 1)
            factors = factors and [1.0 if at == axis else factor for at, factor in enumerate(factors, 2)]
    return functional.interpolate(
        x,
        size=size,
        scale_factor=factors,
        mode={"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode],
        align_corners=None if mode == "nearest" else grid == "align_corners",
    )
