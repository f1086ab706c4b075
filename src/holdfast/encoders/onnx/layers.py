"""ONNX operators with weights or windows: convolution, pooling, normalisation, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.encoders.onnx.call import Call, Setting

CONVOLUTIONS: dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED: dict[int, Any] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
MAXIMA: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
MEANS: dict[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


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
    axes = weight.ndim - 2
    x, padding = _inside(x, *_pads(call, x, weight.shape[2:]), 0.0)
    return CONVOLUTIONS[axes](
        x,
        weight,
        bias,
        stride=call.get("strides", [1] * axes),
        padding=padding,
        dilation=call.get("dilations", [1] * axes),
        groups=call.get("group", 1),
    )


def transposed_convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = weight.ndim - 2
    pads = call.get("pads", [0] * (2 * axes))
    if call.get("auto_pad", "NOTSET") != "NOTSET" or pads[:axes] != pads[axes:] or "output_shape" in call.attributes:
        raise call.refuse("automatic or asymmetric padding")
    return TRANSPOSED[axes](
        x,
        weight,
        bias,
        stride=call.get("strides", [1] * axes),
        padding=pads[:axes],
        output_padding=call.get("output_padding", [0] * axes),
        dilation=call.get("dilations", [1] * axes),
        groups=call.get("group", 1),
    )


def max_pool(call: Call, x: Tensor) -> Tensor:
    if call.outputs > 1:
        raise call.refuse("indices")
    kernel = call.attributes["kernel_shape"]
    x, padding = _inside(x, *_pads(call, x, kernel), -math.inf)
    return MAXIMA[len(kernel)](
        x,
        kernel,
        stride=call.get("strides", [1] * len(kernel)),
        padding=padding,
        dilation=call.get("dilations", [1] * len(kernel)),
        ceil_mode=bool(call.get("ceil_mode", 0)),
    )


def average_pool(call: Call, x: Tensor) -> Tensor:
    kernel = call.attributes["kernel_shape"]
    if any(step != 1 for step in call.get("dilations", [])):
        raise call.refuse("dilations")
    strides, counts_padding = call.get("strides", [1] * len(kernel)), bool(call.get("count_include_pad", 0))
    before, after = _pads(call, x, kernel)
    pool = MEANS[len(kernel)]
    if before == after:
        return pool(x, kernel, strides, before, bool(call.get("ceil_mode", 0)), counts_padding)
    if call.get("ceil_mode", 0):
        raise call.refuse("asymmetric padding and ceil_mode")
    mean = pool(_padded(x, before, after, 0.0), kernel, strides)
    if counts_padding:
        return mean
    return mean / pool(_padded(torch.ones_like(x[:1, :1]), before, after, 0.0), kernel, strides)


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
    if call.outputs > 1:
        raise call.refuse("mean and deviation as outputs")
    axis = call.get("axis", -1) % x.ndim
    normal = functional.layer_norm(x, x.shape[axis:], eps=call.get("epsilon", 1e-5)) * scale
    return normal if bias is None else normal + bias


def local_response_norm(call: Call, x: Tensor) -> Tensor:
    return functional.local_response_norm(
        x, call.attributes["size"], call.get("alpha", 1e-4), call.get("beta", 0.75), call.get("bias", 1.0)
    )


def lp_norm(call: Call, x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, ord=call.get("p", 2), dim=call.get("axis", -1), keepdim=True)


def resize(
    call: Call, x: Tensor, roi: Any = None, scales: Setting | None = None, sizes: Setting | None = None
) -> Tensor:
    """Resize images (b, c, h, w) in the variants that torch computes in the same way."""
    mode, grid = call.get("mode", "nearest"), call.get("coordinate_transformation_mode", "half_pixel")
    rounding = call.get("nearest_mode", "round_prefer_floor")
    known = {"nearest": ("asymmetric",), "linear": ("half_pixel", "pytorch_half_pixel", "align_corners")}
    known["cubic"] = known["linear"]
    if (
        x.ndim != 4
        or grid not in known[mode]
        or call.get("antialias", 0)
        or (mode == "nearest" and rounding != "floor")
    ):
        raise call.refuse(f"mode={mode}, coordinate_transformation_mode={grid}, nearest_mode={rounding}, rank {x.ndim}")
    special = {"exclude_outside": 0, "axes": None, "keep_aspect_ratio_policy": "stretch", "cubic_coeff_a": -0.75}
    if any(call.get(name, usual) != usual for name, usual in special.items()):
        raise call.refuse(f"any of {', '.join(special)} set")
    if sizes is None and scales is not None:
        factors: list[float] | None = scales.tolist()[2:]
        size = None
    else:
        factors, size = None, sizes.tolist()[2:] if sizes is not None else None
    return functional.interpolate(
        x,
        size=size,
        scale_factor=factors,
        mode={"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode],
        align_corners=None if mode == "nearest" else grid == "align_corners",
    )
