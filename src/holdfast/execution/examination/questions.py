"""What an encoder is asked before anything is measured, and how each answer is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Codes, Encoder, Normalised, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.encoders.loading.stated import NOT_STATED
from holdfast.encoders.onnx.graph import OnnxModule
from holdfast.execution.examination.inputs import are_probabilities, better_normalisation, classifier, problems

Status = Literal["ok", "warning", "failed"]
Answer = tuple[Status, str]


@dataclass(frozen=True)
class Examinee:
    """What is examined: an encoder, a few images (``real`` or noise) and their codes."""

    encoder: Encoder
    pixels: Pixels
    codes: Codes
    real: bool

    @property
    def kind(self) -> str:
        """Return what is examined, in words."""
        return "images" if self.real else "noise images"


def encoded(encoder: Encoder, pixels: Pixels) -> Codes:
    """Return the codes of ``pixels``, without gradients."""
    with torch.no_grad():
        return encoder.forward(pixels)


def reason(encoder: Encoder, pixels: Pixels, error: Exception) -> str:
    """Return in a sentence why ``encoder`` does not take ``pixels``."""
    if isinstance(error, HoldfastError):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    return f"{encoder.name} fails on inputs of shape {tuple(pixels.shape)}: {type(error).__name__}: {first}"


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _size(codes: Tensor) -> float:
    return max(float(codes.abs().max()), torch.finfo(codes.dtype).tiny)


def _rounding(examinee: Examinee) -> float:
    """Return how far equal codes may differ by rounding: half of the digits of the coarsest numbers they are made of."""
    # What a module returns may be wider than what it computes in.
    tensors = (examinee.codes, examinee.pixels, *examinee.encoder.module.state_dict().values())
    # Quantised modules keep types and packed weights among their tensors.
    kinds = [tensor.dtype for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_floating_point()]
    coarsest = max(torch.finfo(kind).eps for kind in kinds)
    return _size(examinee.codes) * coarsest**0.5


def _vectors(examinee: Examinee) -> Answer:
    return "ok", f"Each image becomes a vector of {examinee.codes.shape[1]} numbers."


def _mode(examinee: Examinee) -> Answer:
    training = [name or "the module" for name, part in examinee.encoder.module.named_modules() if part.training]
    if training:
        return "failed", f"{len(training)} parts are in training mode ({', '.join(training[:3])}); call eval() on them."
    return "ok", "All of its parts are in evaluation mode."


def _registered(examinee: Examinee) -> Answer:
    """Parameters are frozen, so that codes of pixels without gradients have one only through weights elsewhere."""
    with torch.enable_grad():
        codes = examinee.encoder.forward(examinee.pixels.detach())
    if codes.requires_grad:
        return "warning", (
            "Some of its weights lie outside the module's parameters (in a list or a dict, say), so they are not frozen, "
            "counted or moved to another device or precision; register them (torch.nn.ModuleList)."
        )
    return "ok", "No weights lie outside its parameters."


def finite(examinee: Examinee) -> Answer:
    """Whether codes are numbers, without which nothing else can be asked."""
    bad = int((~torch.isfinite(examinee.codes)).any(1).sum())
    if bad:
        counted = f"{bad} of {len(examinee.codes)}"
        return "failed", f"{counted} codes are NaN or infinite; check the weights, the normalisation and the precision."
    return "ok", f"The codes of {len(examinee.codes)} {examinee.kind} are finite."


def repeatable(examinee: Examinee) -> Answer:
    """Whether images have one code each, without which codes cannot be compared."""
    difference = _difference(encoded(examinee.encoder, examinee.pixels), examinee.codes)
    if not difference <= _rounding(examinee):  # nan, too
        return "failed", (
            f"Its codes of the same images differ from call to call, by up to {difference:.2g}: something in it is random "
            "(dropout, masking, sampling), keeps a state or changes its input; switch that off. What compares codes is not "
            "asked until then."
        )
    return "ok", "The same images give the same codes again."


def _independent(examinee: Examinee) -> Answer:
    encoder, pixels = examinee.encoder, examinee.pixels
    try:
        alone = torch.cat([encoded(encoder, image) for image in pixels.split(1)])
        turned = encoded(encoder, pixels.flip(0)).flip(0)
    except Exception as error:  # whatever a stranger's module raises
        return "failed", f"{reason(encoder, pixels[:1], error)}; it must take batches of any size."
    difference = max(_difference(alone, examinee.codes), _difference(turned, examinee.codes))
    if not difference <= _rounding(examinee):
        return "failed", (
            f"An image's code changes by up to {difference:.2g} with the other images of its batch, so batch statistics are "
            "in use; build or export it in evaluation mode."
        )
    return "ok", "An image alone has the code that it has among others."


def _differentiable(examinee: Examinee) -> Answer:
    inputs = examinee.pixels.detach().clone().requires_grad_()
    try:
        codes = examinee.encoder.forward(inputs)
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


def _collapsed(examinee: Examinee) -> Answer:
    if len(torch.unique(examinee.pixels.flatten(1), dim=0)) < 2:
        return "warning", "Two different images are needed to see; give more images."
    codes, kind = examinee.codes, examinee.kind
    spread = _difference(codes, codes.mean(0))
    if spread <= _size(codes) * torch.finfo(codes.dtype).eps ** 0.5 / 10:
        # Networks may take all noise for nearly the same; none that sees its input gives exactly one code.
        constant = torch.equal(codes, codes[:1].expand_as(codes))
        return "failed" if examinee.real or constant else "warning", (
            f"All {kind} have the same code: it has collapsed, or it was given the wrong weights or range."
        )
    return "ok", f"Codes of {kind} differ by up to {spread / _size(codes):.1%} of their size."


def _range(examinee: Examinee) -> Answer:
    domain, pixels = examinee.encoder.domain, examinee.pixels
    limits = [torch.full_like(pixels[0], end) for end in (domain.low, domain.high) if isfinite(end)]
    if limits and not torch.isfinite(encoded(examinee.encoder, torch.stack(limits))).all():
        return (
            "failed",
            "Its lowest or highest input gives NaN or infinite codes; look for logarithms and divisions in it.",
        )
    if len(limits) < 2:
        return "ok", "Its range is infinite, so there are no grey levels to try."
    step = (domain.high - domain.low) / 255
    inward = torch.where(pixels > (domain.low + domain.high) / 2, -step, step).to(pixels)
    moved = _difference(encoded(examinee.encoder, pixels + inward), examinee.codes) / _size(examinee.codes)
    limited = f"Codes are finite from {domain.low:g} to {domain.high:g}"
    return (
        "ok",
        f"{limited}; one grey level (1/255 of the range) in every pixel moves them by {moved:.1%} of their size.",
    )


def _normalisation(examinee: Examinee) -> Answer:
    encoder = examinee.encoder
    inside = [part for part in encoder.module.modules() if isinstance(part, Normalised)]
    doubts = problems(encoder, inside[0]) if inside else []
    if inside and encoder.normalisation.startswith(NOT_STATED):
        doubts.append(f"{encoder.normalisation}; state mean and std in the reference, or every number may be off")
    if examinee.real and (better := better_normalisation(encoder, examinee.pixels, examinee.codes)):
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


def _features(examinee: Examinee) -> Answer:
    columns = examinee.codes.shape[1]
    if are_probabilities(examinee.codes):
        return "warning", (
            f"Its {columns:,} outputs are probabilities: none is negative, and those of an image sum to 1. Take the softmax "
            "and the last linear layer away (onnx: ?output=NAME of the value before them) to measure features."
        )
    if layer := classifier(examinee.encoder, examinee.pixels, columns):
        return "warning", (
            f"Its {columns:,} outputs come from a last linear layer ({layer}), so they look like scores of classes, not "
            "features; put torch.nn.Identity() in its place (onnx: ?output=NAME of the value before it) to measure features."
        )
    return "ok", "Its outputs do not look like scores of classes."


def _precision(examinee: Examinee) -> Answer:
    pixels, single = examinee.pixels, examinee.codes
    try:
        double = encoded(examinee.encoder.to(pixels.device, torch.float64), pixels.double())
    except Exception as error:  # as above
        return "warning", f"{reason(examinee.encoder, pixels, error)}; so rounding cannot be checked in float64."
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


def _weights(examinee: Examinee) -> Answer:
    shape = "x".join(map(str, examinee.encoder.domain.shape))
    counted = f"{examinee.encoder.parameters:,} parameters and {examinee.codes.shape[1]} outputs"
    return "ok", f"It has {counted} for inputs of {shape}."


def _layers(examinee: Examinee) -> Answer:
    parts = Counter(kind for part in examinee.encoder.module.modules() for kind in _kinds(part))
    return "ok", f"It is built of {', '.join(f'{count} {kind}' for kind, count in parts.most_common())}."


def _kinds(part: nn.Module) -> list[str]:
    """Return what a module does itself: the operations of a graph, or its type where it has no parts."""
    if isinstance(part, OnnxModule):
        return [node.operator for node in part.graph.nodes]
    if isinstance(part, torch.fx.GraphModule):
        return [str(node.target) for node in part.graph.nodes if node.op == "call_function"]
    leaf = next(part.children(), None) is None and type(part) is not nn.Module
    return [type(part).__name__] if leaf else []


QUESTIONS: dict[str, Callable[[Examinee], Answer]] = {
    "one vector per image": _vectors,
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
