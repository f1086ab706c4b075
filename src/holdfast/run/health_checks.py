"""The checks of ``holdfast doctor``: what each one asks of an encoder and how it finds the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Codes, Encoder, Normalised, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.encoders.loading.library_transform import NOT_STATED
from holdfast.encoders.onnx.graph import OnnxModule
from holdfast.encoders.stored import without_store

# How far codes spread is ``mean |f(x) - m| / mean |f(x)|`` with ``m`` the mean code: it does not depend on their
# scale. A network that is given pixels shifted or scaled out of what it knows gives all images nearly one code.

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
"""Usual normalisations of trained networks."""
FAR = 3.0
"""Factor by which embeddings must spread more under another normalisation before it is named."""
NARROWEST, WIDEST = 0.05, 2.0
"""Deviations that are plausible, as fractions of the range: images themselves deviate by .2 to .3."""
LEVELS = 255
CLASSES = (10, 100, 1000, 21841)
"""Outputs of the classifiers of CIFAR, ImageNet and ImageNet-21k."""


def problems(encoder: Encoder, inside: Normalised) -> list[str]:
    """Return the problems of a normalisation's numbers, for any network."""
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
    """Return a sentence if a usual normalisation spreads embeddings of real images far more, else an empty one."""
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
    """Return the spread of embeddings around their mean, relative to their norm; 0 if not finite or all zero."""
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
    """Return the name of the linear layer (or convolution) whose output the embeddings are."""
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


Status = Literal["ok", "warning", "failed"]
Answer = tuple[Status, str]


@dataclass(frozen=True)
class CheckedEncoder:
    """Encoder under a preflight check, with a few images (``real`` or noise) and their embeddings."""

    encoder: Encoder
    pixels: Pixels
    codes: Codes
    real: bool

    @property
    def kind(self) -> str:
        """Return the kind of the checked encoder, in words."""
        return "images" if self.real else "noise images"


def encoded(encoder: Encoder, pixels: Pixels) -> Codes:
    """Return the embeddings of ``pixels``, without gradients."""
    with torch.no_grad():
        return encoder.forward(pixels)


def reason(encoder: Encoder, pixels: Pixels, error: Exception) -> str:
    """Return a sentence with the reason why ``encoder`` does not take ``pixels``."""
    if isinstance(error, HoldfastError):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    return f"{encoder.name} fails on inputs of shape {tuple(pixels.shape)}: {type(error).__name__}: {first}"


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _size(codes: Tensor) -> float:
    return max(float(codes.abs().max()), torch.finfo(codes.dtype).tiny)


def _rounding(checked: CheckedEncoder) -> float:
    """Return the rounding error of embeddings: half of the digits of the coarsest numbers they are made of."""
    # What a module returns may be wider than what it computes in.
    tensors = (checked.codes, checked.pixels, *checked.encoder.module.state_dict().values())
    # Quantised modules keep types and packed weights among their tensors.
    kinds = [tensor.dtype for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_floating_point()]
    coarsest = max(torch.finfo(kind).eps for kind in kinds)
    return _size(checked.codes) * coarsest**0.5


def _mode(checked: CheckedEncoder) -> Answer:
    training = [name or "the module" for name, part in checked.encoder.module.named_modules() if part.training]
    if training:
        return "failed", f"{len(training)} parts are in training mode ({', '.join(training[:3])}); call eval() on them."
    return "ok", "All of its parts are in evaluation mode."


def _registered(checked: CheckedEncoder) -> Answer:
    """Parameters are frozen, so that embeddings of pixels without gradients have one only through weights elsewhere."""
    with torch.enable_grad():
        codes = checked.encoder.forward(checked.pixels.detach())
    if codes.requires_grad:
        return "warning", (
            "Some of its weights lie outside the module's parameters (in a list or a dict, say), so they are not frozen, "
            "counted or moved to another device or precision; register them (torch.nn.ModuleList)."
        )
    return "ok", "No weights lie outside its parameters."


def finite(checked: CheckedEncoder) -> Answer:
    """Whether embeddings are finite, which all other checks need."""
    bad = int((~torch.isfinite(checked.codes)).any(1).sum())
    if bad:
        counted = f"{bad} of {len(checked.codes)}"
        return "failed", f"{counted} codes are NaN or infinite; check the weights, the normalisation and the precision."
    return "ok", f"The codes of {len(checked.codes)} {checked.kind} are finite."


def repeatable(checked: CheckedEncoder) -> Answer:
    """Whether each image always has the same embedding, which comparisons need."""
    difference = _difference(encoded(checked.encoder, checked.pixels), checked.codes)
    if not difference <= _rounding(checked):  # nan, too
        return "failed", (
            f"Its codes of the same images differ from call to call, by up to {difference:.2g}: something in it is random "
            "(dropout, masking, sampling), keeps a state or changes its input; switch that off. What compares codes is not "
            "asked until then."
        )
    return "ok", "The same images give the same codes again."


def _independent(checked: CheckedEncoder) -> Answer:
    # What a store makes of embeddings moves by a whole step where rounding crosses an edge.
    encoder, pixels = without_store(checked.encoder), checked.pixels
    if encoder is not checked.encoder:
        checked = replace(checked, encoder=encoder, codes=encoded(encoder, pixels))
    try:
        alone = torch.cat([encoded(encoder, image) for image in pixels.split(1)])
        turned = encoded(encoder, pixels.flip(0)).flip(0)
    except Exception as error:  # whatever a stranger's module raises
        return "failed", f"{reason(encoder, pixels[:1], error)}; it must take batches of any size."
    difference = max(_difference(alone, checked.codes), _difference(turned, checked.codes))
    if not difference <= _rounding(checked):
        return "failed", (
            f"An image's code changes by up to {difference:.2g} with the other images of its batch, so batch statistics are "
            "in use; build or export it in evaluation mode."
        )
    return "ok", "An image alone has the code that it has among others."


def _differentiable(checked: CheckedEncoder) -> Answer:
    inputs = checked.pixels.detach().clone().requires_grad_()
    try:
        codes = checked.encoder.forward(inputs)
        # Random weights, since the plain sum of normalised codes may have no slope at all.
        weights = Noise.of(0, ["doctor"], codes.device).normal(codes.shape[1:], codes.dtype)
        (gradient,) = torch.autograd.grad((codes * weights).sum(), inputs)
    except RuntimeError:
        return (
            "warning",
            "It passes no gradient to its input; only the score-only attack 'square' can look for weaknesses.",
        )
    if not torch.isfinite(gradient).all():
        return "warning", "Its input gradient is NaN or infinite, so gradient attacks understate the risk."
    dead = int((gradient.flatten(1) == 0).all(1).sum())
    if dead:
        counted = f"{dead} of {len(gradient)}"
        return "warning", f"Its input gradient is zero for {counted} images, so gradient attacks understate the risk."
    return "ok", "Its input gradient is finite and not zero."


def _collapsed(checked: CheckedEncoder) -> Answer:
    if len(torch.unique(checked.pixels.flatten(1), dim=0)) < 2:
        return "warning", "Two different images are needed to see; give more images."
    codes, kind = checked.codes, checked.kind
    spread = _difference(codes, codes.mean(0))
    if spread <= _size(codes) * torch.finfo(codes.dtype).eps ** 0.5 / 10:
        # Networks may take all noise for nearly the same; none that sees its input gives exactly one code.
        constant = torch.equal(codes, codes[:1].expand_as(codes))
        return "failed" if checked.real or constant else "warning", (
            f"All {kind} have the same embedding: it has collapsed, or it was given the wrong weights or range."
        )
    return "ok", f"Codes of {kind} differ by up to {spread / _size(codes):.1%} of their size."


def _range(checked: CheckedEncoder) -> Answer:
    domain, pixels = checked.encoder.domain, checked.pixels
    limits = [torch.full_like(pixels[0], end) for end in (domain.low, domain.high) if isfinite(end)]
    if limits and not torch.isfinite(encoded(checked.encoder, torch.stack(limits))).all():
        return (
            "failed",
            "Its lowest or highest input gives NaN or infinite codes; look for logarithms and divisions in it.",
        )
    if len(limits) < 2:
        return "ok", "Its range is infinite, so there are no grey levels to try."
    step = (domain.high - domain.low) / 255
    inward = torch.where(pixels > (domain.low + domain.high) / 2, -step, step).to(pixels)
    moved = _difference(encoded(checked.encoder, pixels + inward), checked.codes) / _size(checked.codes)
    limited = f"Codes are finite from {domain.low:g} to {domain.high:g}"
    return (
        "ok",
        f"{limited}; one grey level (1/255 of the range) in every pixel moves them by {moved:.1%} of their size.",
    )


def _normalisation(checked: CheckedEncoder) -> Answer:
    encoder = checked.encoder
    inside = [part for part in encoder.module.modules() if isinstance(part, Normalised)]
    doubts = problems(encoder, inside[0]) if inside else []
    if inside and encoder.normalisation.startswith(NOT_STATED):
        doubts.append(f"{encoder.normalisation}; state mean and std in the reference, or every number may be off")
    if checked.real and (better := better_normalisation(encoder, checked.pixels, checked.codes)):
        doubts.append(better)
    if doubts:
        sentence = "; ".join(doubts)
        return "warning", f"{sentence[0].upper()}{sentence[1:]}."
    if inside:
        mean, std = (", ".join(f"{value:.3g}" for value in part.flatten()) for part in (inside[0].mean, inside[0].std))
        return "ok", f"Inside, with mean {mean} and std {std}: it takes raw pixels."
    if len(encoder.domain.shape) == 3 and encoder.domain.shape[0] == 3 and encoder.parameters:
        return "warning", (
            "None that is known of; if it was trained on normalised images, state mean and std, or every number is off."
        )
    return "ok", "None: inputs reach it as they are."


def _features(checked: CheckedEncoder) -> Answer:
    columns = checked.codes.shape[1]
    if are_probabilities(checked.codes):
        return "warning", (
            f"Its {columns:,} outputs are probabilities: none is negative, and those of an image sum to 1. Take the softmax "
            "and the last linear layer away (onnx: ?output=NAME of the value before them) to measure features."
        )
    if layer := classifier(checked.encoder, checked.pixels, columns):
        return "warning", (
            f"Its {columns:,} outputs come from a last linear layer ({layer}), so they look like scores of classes, not "
            "features; put torch.nn.Identity() in its place (onnx: ?output=NAME of the value before it) to measure features."
        )
    return "ok", "Its outputs do not look like scores of classes."


def _precision(checked: CheckedEncoder) -> Answer:
    pixels, single = checked.pixels, checked.codes
    try:
        double = encoded(checked.encoder.to(pixels.device, torch.float64), pixels.double())
    except Exception as error:  # as above
        return "warning", f"{reason(checked.encoder, pixels, error)}; so rounding cannot be checked in float64."
    if double.dtype != torch.float64:
        return "warning", f"Asked for float64 it returns {double.dtype}, so rounding cannot be checked."
    if not torch.isfinite(double).all():
        return "warning", "In float64 it gives NaN or infinite codes, so rounding cannot be checked."
    off = _difference(double, single.double()) / _size(double)
    difference = f"In float64 its codes differ by {off:.1g} of their size from those in {str(single.dtype)[6:]}"
    # Rounding of single operations adds up with depth; a hundredth of the size is more than any sound network shows.
    if off > 0.01:
        return "warning", f"{difference}, so rounding alone moves its numbers; use a higher precision."
    return "ok", f"{difference}."


def _weights(checked: CheckedEncoder) -> Answer:
    shape = "x".join(map(str, checked.encoder.domain.shape))
    counted = f"{checked.encoder.parameters:,} parameters and {checked.codes.shape[1]} outputs"
    return "ok", f"It has {counted} for inputs of {shape}."


def _layers(checked: CheckedEncoder) -> Answer:
    parts = Counter(kind for part in checked.encoder.module.modules() for kind in _kinds(part))
    return "ok", f"It is built of {', '.join(f'{count} {kind}' for kind, count in parts.most_common())}."


def _kinds(part: nn.Module) -> list[str]:
    """Return the operations of a graph, or the type of a module without parts."""
    if isinstance(part, OnnxModule):
        return [node.operator for node in part.graph.nodes]
    if isinstance(part, torch.fx.GraphModule):
        return [str(node.target) for node in part.graph.nodes if node.op == "call_function"]
    leaf = next(part.children(), None) is None and type(part) is not nn.Module
    return [type(part).__name__] if leaf else []


QUESTIONS: dict[str, Callable[[CheckedEncoder], Answer]] = {
    "one vector per image": lambda checked: ("ok", f"Each image becomes a vector of {checked.codes.shape[1]} numbers."),
    "evaluation mode": _mode,
    "weights registered": _registered,
    "finite": finite,
    "repeatable": repeatable,
    "independent of the batch": _independent,
    "differentiable": _differentiable,
    "tells images apart": _collapsed,
    "over the whole range": _range,
    "normalisation": _normalisation,
    "features, not classes": _features,
    "double precision": _precision,
    "size": _weights,
    "layers": _layers,
}
DESCRIBING = (_registered, _differentiable, _normalisation, _features, _precision, _weights, _layers)
CRITICAL = {name: question for name, question in QUESTIONS.items() if question not in DESCRIBING}
COMPARING = (_independent, _collapsed, _range, _normalisation, _precision)
"""Questions without an answer where an image has another code each time."""
