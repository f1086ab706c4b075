"""What the doctor asks about normalisation and outputs: is the network given what it was trained on, and codes taken?

How far codes spread is ``mean |f(x) - m| / mean |f(x)|`` with ``m`` the mean code: it does not depend on their scale. A
network that is given pixels shifted or scaled out of what it knows gives all images nearly one code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Codes, Encoder, Normalised, Pixels
from holdfast.encoders.onnx.graph import OnnxModule

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation per channel, of pixels in [0, 1]."""
USUAL: dict[str, Normalisation] = {
    "ImageNet normalisation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP normalisation": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "pixels in [-1, 1]": ((0.5,) * 3, (0.5,) * 3),
    "pixels in [0, 1]": ((0.0,) * 3, (1.0,) * 3),
    "pixels in [0, 255]": ((0.0,) * 3, (1 / 255,) * 3),
    "(255 x - 127) / 128": ((127 / 255,) * 3, (128 / 255,) * 3),
}
"""What networks were trained with."""
FAR = 3.0
"""So many times as far must codes spread under another normalisation before it is named."""
NARROWEST, WIDEST = 0.05, 2.0
"""Deviations that are plausible, as shares of the range: images themselves deviate by .2 to .3."""
LEVELS = 255
CLASSES = (10, 100, 1000, 21841)
"""Outputs of the classifiers of CIFAR, ImageNet and ImageNet-21k."""


def problems(encoder: Encoder, inside: Normalised) -> list[str]:
    """Return what speaks against the numbers of a normalisation, whatever the network."""
    low, high = encoder.domain.low, encoder.domain.high
    mean, std = inside.mean.flatten().tolist(), inside.std.flatten().tolist()
    doubts = []
    if not all(isfinite(value) and low <= value <= high for value in mean):
        here = [low + value / LEVELS * (high - low) for value in mean]
        levels = max(mean) > 1 and all(low <= value <= high for value in here)
        hint = f"; in units of the input this may be mean {_numbers(here)}, std {_numbers([v / LEVELS for v in std])}"
        doubts.append(
            f"its mean {_numbers(mean)} lies outside the input range [{low:g}, {high:g}]{hint if levels else ''}"
        )
    shares = [value / (high - low) for value in std]
    # Networks that take 0 to 255 divide by 1/255, in round numbers by 1/256.
    if isfinite(high - low) and not all(
        NARROWEST <= share <= WIDEST or abs(share * LEVELS - 1) < 0.1 for share in shares
    ):
        doubts.append(
            f"its std {_numbers(std)} is not plausible: usual are {0.2 * (high - low):g} to {high - low:g}, or "
            f"{(high - low) / LEVELS:.2g} for networks that take 0 to 255"
        )
    return doubts


def better_normalisation(encoder: Encoder, pixels: Pixels, codes: Codes) -> str:
    """Return a sentence on the usual normalisation under which codes of real images spread far more; empty if none does."""
    domain, module = encoder.domain, encoder.module
    if len(domain.shape) != 3 or domain.shape[0] not in (1, 3) or not encoder.parameters:
        return ""
    if not isfinite(domain.high - domain.low):
        return ""
    network = module.module if isinstance(module, Normalised) else module
    unit = (pixels - domain.low) / (domain.high - domain.low)
    spreads = {
        name: spread(_codes(Normalised(network, mean[: domain.shape[0]], std[: domain.shape[0]], 3).to(pixels), unit))
        for name, (mean, std) in USUAL.items()
    }
    name, widest = max(spreads.items(), key=lambda item: item[1])
    now = spread(codes)
    if not widest > FAR * now:
        return ""
    mean, std = (_numbers(values[: domain.shape[0]]) for values in USUAL[name])
    times = f"{widest / now:.0f} times as far" if now > 0 else "apart instead of not at all"
    return (
        f"codes of these images spread {times} with {name} (mean {mean}, std {std} of pixels in [0, 1]): "
        "look up which one it was trained with"
    )


def spread(codes: Codes) -> float:
    """Return how far codes lie from their mean, as a share of their length; 0 where they are not finite or all zero."""
    length = float(codes.norm(dim=1).mean())
    share = float((codes - codes.mean(0)).norm(dim=1).mean()) / length if length > 0 else 0.0
    return share if isfinite(share) else 0.0


def are_probabilities(codes: Codes) -> bool:
    """Return whether the numbers of each image are those of a softmax: not negative, and with a sum of 1.

    Example:
        >>> are_probabilities(torch.tensor([[0.2, 0.8], [1.0, 0.0]])), are_probabilities(torch.tensor([[0.2, 0.9]]))
        (True, False)
    """
    rounding = 4 * codes.shape[1] ** 0.5 * torch.finfo(codes.dtype).eps
    sums = codes.double().sum(1)
    return codes.shape[1] > 1 and bool((codes >= 0).all()) and bool(((sums - 1).abs() <= max(rounding, 1e-3)).all())


def classifier(encoder: Encoder, pixels: Pixels, features: int) -> str:
    """Return the name of the last layer if the outputs look like scores of classes, empty otherwise."""
    if features not in CLASSES:
        return ""
    module = encoder.module.module if isinstance(encoder.module, Normalised) else encoder.module
    if isinstance(module, OnnxModule):
        last = module.graph.nodes[-1]
        return last.operator if last.operator in ("Gemm", "MatMul", "Add") else ""
    if isinstance(module, torch.fx.GraphModule):
        calls = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
        return calls[-1] if calls and any(word in calls[-1] for word in ("linear", "addmm")) else ""
    return _last_linear(encoder, module, pixels)


def _last_linear(encoder: Encoder, module: nn.Module, pixels: Pixels) -> str:
    """Return the name of the linear layer (or convolution) whose output the codes are."""
    ends: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def noted(_: nn.Module, __: Any, output: Tensor) -> None:
            ends[name] = output

        return noted

    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, (nn.Linear, nn.Conv2d))]
    hooks = [part.register_forward_hook(note(name)) for name, part in layers]
    try:
        codes = _codes(encoder, pixels)
    finally:
        for hook in hooks:
            hook.remove()
    same = [name for name, end in ends.items() if end.numel() == codes.numel() and torch.equal(end.flatten(1), codes)]
    return (same[-1] or "the module itself") if same else ""


def _codes(network: nn.Module | Encoder, pixels: Pixels) -> Codes:
    with torch.no_grad():
        codes: Codes = network.forward(pixels)
    return codes.float() if codes.dtype in (torch.float16, torch.bfloat16) else codes


def _numbers(values: Sequence[float]) -> str:
    """Return numbers in few digits, one for all where they are equal."""
    texts = [f"{value:.3g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)
