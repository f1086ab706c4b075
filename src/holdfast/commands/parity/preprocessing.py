"""Whether images are prepared alike: the usual resizings, normalisations and channel orders, tried on a few images.

A wrong resize or normalisation is the usual cause of another space with the same weights. Two encoders of equal geometry see
the same tensors, so resizing is not the cause; else the candidate is also given the tensors of the reference. What brings
the median distance of the codes down to ``MATCHES`` of what it is, and most of all, is named as the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from holdfast.commands.parity.sides import Coded
from holdfast.core.encoder import Encoder, Geometry, Interpolation, Normalised
from holdfast.core.records import Claim, Estimate, Verdict
from holdfast.core.statistics import Scale, summarise
from holdfast.core.statistics.series import series_of
from holdfast.evaluations.parity.findings import distances
from holdfast.execution.request.loading import Inputs

PROBED = 12
"""Images on which each preprocessing is tried."""
MATCHES = 0.25
SHOWN = 3
"""So many of the nearest attempts are kept as numbers."""
QUESTION = "Are images prepared alike?"
AS_IT_IS = "as it is"
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
USUAL: dict[str, Normalisation] = {
    "ImageNet normalisation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP normalisation": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "pixels in [-1, 1]": ((0.5,) * 3, (0.5,) * 3),
    "pixels in [0, 1]": ((0.0,) * 3, (1.0,) * 3),
    "pixels in [0, 255]": ((0.0,) * 3, (1 / 255,) * 3),
    "(255 x - 127) / 128": ((127 / 255,) * 3, (128 / 255,) * 3),
}
INTERPOLATIONS: tuple[Interpolation, ...] = ("nearest", "bilinear", "bicubic", "lanczos")
CROPPED = (1.0, 0.95, 0.9, 0.875)
"""Shares of the resized image that usual crops keep."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """A preprocessing in words, and the encoder with it."""

    name: str
    encoder: Encoder


class Reversed(nn.Module):
    """``module`` of images whose channels come in the opposite order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, pixels: Tensor) -> Tensor:
        return self.module(pixels.flip(1))


def preprocessing(
    reference: Coded, candidate: Coded, inputs: Inputs, scale: Scale
) -> tuple[list[Estimate], Verdict] | None:
    """Return how far codes are apart under other preprocessings, and whether one explains the difference.

    The candidate's is changed; that of the reference where the candidate is a file of codes. Nothing is said of two files,
    of codes of different widths, of inputs that are no images, and of one encoder in two precisions.
    """
    changed, fixed = (reference, candidate) if candidate.side.encoder.recorded else (candidate, reference)
    encoder, other = changed.side.encoder, fixed.side.encoder
    alike = encoder.fingerprint == other.fingerprint or reference.codes.shape[1] != candidate.codes.shape[1]
    if encoder.recorded or alike or len(encoder.domain.shape) != 3 or encoder.domain.shape[0] not in (1, 3):
        return None
    return Probe(changed, fixed, _few(inputs), scale).answer()


def _few(inputs: Inputs) -> Inputs:
    """Return the same inputs, of few images."""
    request = inputs.request
    few = request.model_copy(update={"limit": min(PROBED, request.limit or PROBED)})
    return replace(inputs, request=few, loaded={}, bank_named=None)


@dataclass(frozen=True, eq=False)
class Probe:
    """One encoder, whose preprocessing is changed, against the codes of the same images by another."""

    changed: Coded
    fixed: Coded
    inputs: Inputs
    scale: Scale

    def answer(self) -> tuple[list[Estimate], Verdict]:
        """Return the numbers of the nearest attempts, and the verdict."""
        encoder, other = self.changed.side.encoder, self.fixed.side.encoder
        before = self.distance(Attempt(AS_IT_IS, encoder))
        pixels = [self.distance(each) for each in of_pixels(encoder, other)]
        resizings = list(of_files(encoder, other)) if isinstance(self.inputs.images_named, str) else []
        files = [self.distance(each) for each in resizings]
        if pixels and files:
            best = min(pixels, key=_value).conditions["preprocessing"]
            resizing = min(zip(files, resizings, strict=True), key=lambda pair: _value(pair[0]))[1]
            both = [
                Attempt(f"{best}, and {resizing.name}", each.encoder)
                for each in of_pixels(resizing.encoder, other)
                if each.name == best
            ]
            files += [self.distance(each) for each in both]
        attempts = sorted((*pixels, *files), key=_value)
        return [before, *attempts[:SHOWN]], _verdict(before, attempts)

    def distance(self, attempt: Attempt) -> Estimate:
        """Return the median distance of the codes of a few images to those that they are compared with."""
        images, run = self.inputs.images(attempt.encoder), self.changed.side.run
        known = {name: position for position, name in enumerate(self.fixed.ids)}
        rows = [row for row, name in enumerate(images.ids) if name in known]
        moved = torch.full((1,), torch.nan, dtype=torch.float64)
        if rows:
            there = self.fixed.codes[[known[images.ids[row]] for row in rows]]
            # Encoded here, not in shards that are kept: to arrange and time each of so many encoders takes longer.
            encoder = attempt.encoder.to(run.device, run.dtype)
            with torch.no_grad():
                codes = encoder.forward(images.pixels(rows, run.device, run.dtype, encoder.domain)).cpu()
            moved = distances(there, codes, self.scale)
        conditions = {"preprocessing": attempt.name}
        of = "how far codes of a few images are apart, prepared like this"
        series = series_of(
            "distance_prepared", conditions, moved, "share of the clean distance", Claim.ESTIMATE, of, "no such image"
        )
        return summarise(series, "median", "lower").model_copy(update={"series": None, "statistic": "other"})


OF_ALL = "of the distance between images as it is, which no other makes smaller"


def _value(estimate: Estimate) -> float:
    return estimate.value if estimate.value == estimate.value else float("inf")


def _verdict(before: Estimate, attempts: list[Estimate]) -> Verdict:
    best = attempts[0] if attempts else before
    name = best.conditions["preprocessing"]
    if attempts and _value(best) <= MATCHES * before.value:
        return Verdict(
            question=QUESTION,
            status="refuted",
            reason=f"no: with {name} codes are {best.value:.2g} of the distance between images apart instead of "
            f"{before.value:.2g} ({best.n} images)",
            witness={"preprocessing": name, "tried": str(len(attempts))},
        )
    helpful = _value(best) < _value(before)
    nearest = f"the nearest, {name}, leaves {best.value:.2g} of the distance between images, and " if helpful else ""
    return Verdict(
        question=QUESTION,
        status="no violation found",
        reason=f"none of {len(attempts)} other resizings, normalisations and channel orders explains the difference, so "
        f"weights or arithmetic differ ({nearest}{before.value:.2g} {'as it is' if helpful else OF_ALL}; {before.n} images)",
        witness={"preprocessing": AS_IT_IS, "tried": str(len(attempts))},
    )


def of_pixels(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield ``encoder`` with other normalisations and the other channel order, that of ``other`` first."""
    plain = Attempt("", encoder)
    for attempt in chain([plain], _normalised(encoder, other)):
        if attempt is not plain:
            yield attempt
        if encoder.domain.shape[0] == 3:
            name = (
                f"{attempt.name}, and channels in the opposite order"
                if attempt.name
                else "channels in the opposite order"
            )
            yield Attempt(name, _changed(encoder, Reversed(attempt.encoder.module)))


def _normalised(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield ``encoder`` with the normalisation of ``other``, if that is stated, and with usual ones."""
    target, stated = _stated(other), _stated(encoder)
    channels = encoder.domain.shape[0]
    usual = {
        name: (mean[:channels], std[:channels])
        for name, (mean, std) in USUAL.items()
        if channels == 3 or len(set(mean)) == 1
    }
    targets = ({f"the normalisation of {other.name}": target} if target else {}) | usual
    nothing: Normalisation = ((0.0,) * channels, (1.0,) * channels)
    normalisations = [stated or nothing]
    for name, (mean, std) in targets.items():
        if not any(_near(each, (mean, std)) for each in normalisations):
            normalisations.append((mean, std))
            module = encoder.module.module if isinstance(encoder.module, Normalised) else encoder.module
            yield Attempt(name, _changed(encoder, Normalised(module, mean, std, 3)))
    if stated is not None:
        return
    # Nothing is stated, so some normalisation may be built in: undone, and that of the other put in its place.
    mean, std = target or nothing
    for name, (inner_mean, inner_std) in usual.items():
        if not any(_near((inner_mean, inner_std), each) for each in ((mean, std), nothing)):
            ratio = [a / b for a, b in zip(std, inner_std, strict=True)]
            shift = [a - b * c for a, b, c in zip(mean, inner_mean, ratio, strict=True)]
            built_in = f"{f'the normalisation of {other.name}' if target else 'nothing'} in place of {name}, built in"
            yield Attempt(built_in, _changed(encoder, Normalised(encoder.module, shift, ratio, 3)))


def _stated(encoder: Encoder) -> Normalisation | None:
    module = encoder.module
    if not isinstance(module, Normalised):
        return None
    return tuple(module.mean.flatten().tolist()), tuple(module.std.flatten().tolist())


def _near(a: Normalisation, b: Normalisation) -> bool:
    return len(a[0]) == len(b[0]) and bool(torch.allclose(torch.tensor(a), torch.tensor(b), rtol=0, atol=1e-6))


def of_files(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield ``encoder`` with the resizing of ``other``; of a file of codes nobody knows it, so with usual ones."""
    original = encoder.geometry
    if original is None:
        return
    if not other.recorded:
        if other.domain == encoder.domain and other.geometry is not None and other.geometry != original:
            words = other.inputs["resizing"]
            yield Attempt(f"the resizing of {other.name} ({words})", _changed(encoder, encoder.module, other.geometry))
        return
    sizes = [round(min(original.crop) / share) for share in CROPPED]
    others = [replace(original, interpolation=kind) for kind in INTERPOLATIONS] + [
        replace(original, resize=size) for size in sizes
    ]
    for geometry in dict.fromkeys(others):
        if geometry != original:
            changed = _changed(encoder, encoder.module, geometry)
            yield Attempt(changed.inputs["resizing"], changed)


def _changed(encoder: Encoder, module: nn.Module, geometry: Geometry | None = None) -> Encoder:
    """Return ``encoder`` with another module or geometry, and the fingerprint of that."""
    other = copy(encoder)
    for cached in ("fingerprint", "parameters"):
        other.__dict__.pop(cached, None)
    other.module, other.geometry = module.eval().requires_grad_(False), geometry or encoder.geometry
    return other
