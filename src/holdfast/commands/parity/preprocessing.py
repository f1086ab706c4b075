"""Whether images are prepared alike: the usual resizings, normalisations and channel orders, tried on a few images.

A wrong resize or normalisation is the usual cause of another space with the same weights. Two encoders of equal geometry see
the same tensors, so resizing is not the cause; else the candidate is also given the tensors of the reference. What brings
the median distance of the codes down to ``MATCHES`` of what it is, and most of all, is named as the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.commands.parity.sides import Coded
from holdfast.core.arrangement import codes_of
from holdfast.core.encoder import Domain, Encoder, Normalised, Pixels
from holdfast.core.geometry import Geometry, Interpolation, Preprocessing
from holdfast.core.images import Images
from holdfast.core.records import Claim, Estimate, Verdict
from holdfast.core.statistics import Scale, summarise
from holdfast.core.statistics.series import series_of
from holdfast.core.whole_float32 import whole_float32
from holdfast.data.base import Selection
from holdfast.evaluations.parity.findings import distances
from holdfast.execution.examination.inputs import USUAL, Normalisation
from holdfast.execution.request.loading import Inputs

PROBED = 12
"""Images on which a preprocessing is judged ..."""
SIFTED = 4
"""... if it is among the ``SHOWN`` nearest of its kind on so many of them, and the nearest of all or ``HOPEFUL`` there."""
MATCHES = 0.25
HOPEFUL = 2 * MATCHES
SHOWN = 3
"""So many of the nearest attempts are kept as numbers, and judged on all images."""
QUESTION = "Are images prepared alike?"
AS_IT_IS = "as it is"
INTERPOLATIONS: tuple[Interpolation, ...] = ("nearest", "bilinear", "bicubic", "lanczos")
CROPPED = (1.0, 0.95, 0.9, 0.875)
"""Shares of the resized image that usual crops keep."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """A preprocessing in words: what becomes of pixels before the encoder, and how files become pixels.

    Pixels go through the encoder as it is, and so as it is arranged for speed: of a network that divides by ``std`` after it
    subtracts ``mean``, another ``(mean', std')`` is the map ``x -> (x - mean') std / std' + mean`` before it.
    """

    name: str
    geometry: Preprocessing | None
    scale: tuple[float, ...] = (1.0,)
    shift: tuple[float, ...] = (0.0,)
    reverses: bool = False
    """Whether channels come in the opposite order."""

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return ``pixels`` as this preprocessing hands them to the encoder."""
        scale, shift = (pixels.new_tensor(values)[:, None, None] for values in (self.scale, self.shift))
        return (pixels.flip(1) if self.reverses else pixels) * scale + shift


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
    return PreprocessingSearch(changed, fixed, _few(inputs), scale).answer()


def _few(inputs: Inputs) -> Inputs:
    """Return the same inputs, of few images; what is loaded is not loaded again."""
    request = inputs.request
    few = request.model_copy(update={"limit": min(PROBED, request.limit or PROBED)})
    loaded: dict[tuple[Domain, Preprocessing | None], tuple[Images, Images | None]] = {
        (domain, geometry): (images[Selection(domain, limit=PROBED, seed=request.seed).choose(images.ids)], None)
        for (domain, geometry), (images, _) in inputs.loaded.items()
    }
    return replace(inputs, request=few, loaded=loaded, bank_named=None)


@dataclass(frozen=True, eq=False)
class PreprocessingSearch:
    """One encoder, whose preprocessing is changed, against the codes of the same images by another."""

    changed: Coded
    fixed: Coded
    inputs: Inputs
    scale: Scale
    read: dict[Preprocessing | None, Pixels] = field(default_factory=dict)
    """Pixels of the images, as files become them."""

    @cached_property
    def names(self) -> list[str]:
        """The images that both sides have codes of; those that attempts are sifted on come first."""
        encoder, coded = self.changed.side.encoder, set(self.changed.ids) & set(self.fixed.ids)
        images = self.inputs.prepared(encoder.domain, encoder.geometry)[0]
        names = [name for name in images.ids if name in coded]
        step = -(-len(names) // SIFTED) or 1
        return [*names[::step], *(name for position, name in enumerate(names) if position % step)]

    @cached_property
    def before(self) -> Estimate:
        """How far the codes of these images are apart as they are."""
        codes = _codes_of(self.changed, self.names)
        return _estimate(AS_IT_IS, distances(_codes_of(self.fixed, self.names), codes, self.scale))

    def answer(self) -> tuple[list[Estimate], Verdict]:
        """Return the numbers of the nearest attempts, and the verdict."""
        encoder, other = self.changed.side.encoder, self.fixed.side.encoder
        of_inputs = [*of_pixels(encoder, other)]
        resizings = list(of_files(encoder, other)) if isinstance(self.inputs.images_named, str) else []
        pixels, files = self.nearest(of_inputs), self.nearest(resizings)
        if pixels and files:
            best, resizing = pixels[0][1], files[0][1]
            files += self.nearest([replace(best, name=f"{best.name}, and {resizing.name}", geometry=resizing.geometry)])
        estimates = [estimate for estimate, _ in sorted((*pixels, *files), key=_value)]
        tried = len(of_inputs) + len(resizings) + bool(pixels and files)
        return [self.before, *estimates[:SHOWN]], _verdict(self.before, estimates[:1], tried)

    def nearest(self, attempts: Sequence[Attempt]) -> list[tuple[Estimate, Attempt]]:
        """Return the ``SHOWN`` nearest of ``attempts``, the nearest first: found on few images, and judged on all.

        Only the nearest is judged where it cannot match either.
        """
        sifted = [(self.moved(attempt, self.names[:SIFTED]), attempt) for attempt in attempts]
        first = sorted(((_estimate(attempt.name, moved), attempt, moved) for moved, attempt in sifted), key=_value)
        hopeful = [each for each in first if each[0].value <= HOPEFUL * self.before.value]
        judged = list[tuple[Estimate, Attempt]]()
        for _, attempt, moved in hopeful[:SHOWN] or first[:1]:
            rest = self.moved(attempt, self.names[SIFTED:])
            judged.append((_estimate(attempt.name, torch.cat([moved, rest])), attempt))
        return sorted(judged, key=_value)

    def moved(self, attempt: Attempt, names: Sequence[str]) -> Float[Tensor, "b"]:
        """Return how far the codes of images, prepared like this, are from those they are compared with."""
        run = self.changed.side.run
        encoder = self.changed.side.encoder.to(run.device, run.dtype)
        if attempt.geometry not in self.read:
            images = self.inputs.prepared(encoder.domain, attempt.geometry)[0]
            rows = {name: row for row, name in enumerate(images.ids)}
            rows_of_names = [rows[name] for name in self.names]
            self.read[attempt.geometry] = images.pixels(rows_of_names, run.device, run.dtype, encoder.domain)
        if not names:
            return torch.empty(0, dtype=torch.float64)
        pixels = self.read[attempt.geometry][[self.names.index(name) for name in names]]
        with whole_float32():
            codes = codes_of(encoder, attempt(pixels)).cpu()
        return distances(_codes_of(self.fixed, names), codes, self.scale)


def _codes_of(coded: Coded, names: Sequence[str]) -> Float[Tensor, "b d"]:
    """Return the codes of images by their names."""
    rows = {name: position for position, name in enumerate(coded.ids)}
    return coded.codes[[rows[name] for name in names]]


def _estimate(name: str, moved: Float[Tensor, "b"]) -> Estimate:
    conditions = {"preprocessing": name}
    of = "how far codes of a few images are apart, prepared like this"
    series = series_of(
        "distance_prepared", conditions, moved, "share of the clean distance", Claim.ESTIMATE, of, "no such image"
    )
    return summarise(series, "median", "lower").model_copy(update={"series": None, "statistic": "other"})


OF_ALL = "of the distance between images as it is, which no other makes smaller"


def _value(tried: tuple[Estimate, *tuple[Any, ...]]) -> float:
    value = tried[0].value
    return value if value == value else float("inf")


def _verdict(before: Estimate, nearest: Sequence[Estimate], tried: int) -> Verdict:
    """Return whether the ``nearest`` of so many that were ``tried`` explains the difference; nan compares as false."""
    best = nearest[0] if nearest else before
    name = best.conditions["preprocessing"]
    if nearest and best.value <= MATCHES * before.value:
        return Verdict(
            question=QUESTION,
            status="refuted",
            reason=f"no: with {name} codes are {best.value:.2g} of the distance between images apart instead of "
            f"{before.value:.2g} ({best.n} images)",
            witness={"preprocessing": name, "tried": str(tried)},
        )
    helpful = best.value < before.value
    left = f"the nearest, {name}, leaves {best.value:.2g} of the distance between images, and " if helpful else ""
    return Verdict(
        question=QUESTION,
        status="no violation found",
        reason=f"none of {tried} other resizings, normalisations and channel orders explains the difference, so "
        f"weights or arithmetic differ ({left}{before.value:.2g} {'as it is' if helpful else OF_ALL}; {before.n} images)",
        witness={"preprocessing": AS_IT_IS, "tried": str(tried)},
    )


def of_pixels(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield other normalisations than that of ``encoder`` and the other channel order, that of ``other`` first."""
    for attempt in chain([Attempt("", encoder.geometry)], _normalised(encoder, other)):
        if attempt.name:
            yield attempt
        if encoder.domain.shape[0] == 3:
            reversal = "channels in the opposite order"
            name = f"{attempt.name}, and {reversal}" if attempt.name else reversal
            yield replace(attempt, name=name, reverses=True)


def _normalised(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield the normalisation of ``other`` in place of that of ``encoder``, if it is stated, and usual ones."""
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
    for name, normalisation in targets.items():
        if not any(_near(each, normalisation) for each in normalisations):
            normalisations.append(normalisation)
            yield _replaced(name, encoder, stated or nothing, normalisation)
    if stated is not None:
        return
    # Nothing is stated, so some normalisation may be built in: undone, and that of the other put in its place.
    for name, inner in usual.items():
        if not any(_near(inner, each) for each in (target or nothing, nothing)):
            built_in = f"{f'the normalisation of {other.name}' if target else 'nothing'} in place of {name}, built in"
            yield _replaced(built_in, encoder, inner, target or nothing)


def _replaced(name: str, encoder: Encoder, inside: Normalisation, wanted: Normalisation) -> Attempt:
    """Return the attempt by which ``wanted`` stands in place of the normalisation ``inside`` of ``encoder``."""
    scale = tuple(a / b for a, b in zip(inside[1], wanted[1], strict=True))
    shift = tuple(a - b * c for a, b, c in zip(inside[0], wanted[0], scale, strict=True))
    return Attempt(name, encoder.geometry, scale, shift)


def _stated(encoder: Encoder) -> Normalisation | None:
    module = encoder.module
    if not isinstance(module, Normalised):
        return None
    return tuple(module.mean.flatten().tolist()), tuple(module.std.flatten().tolist())


def _near(a: Normalisation, b: Normalisation) -> bool:
    return len(a[0]) == len(b[0]) and bool(torch.allclose(torch.tensor(a), torch.tensor(b), rtol=0, atol=1e-6))


def of_files(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield the resizing of ``other`` for ``encoder``; of a file of codes nobody knows it, so usual ones."""
    original = encoder.geometry
    if original is None:
        return
    if not other.recorded:
        if other.domain == encoder.domain and other.geometry is not None and other.geometry != original:
            yield Attempt(f"the resizing of {other.name} ({other.inputs['resizing']})", other.geometry)
        return
    stated = original if isinstance(original, Geometry) else Geometry(min(original.crop), original.crop, "bicubic")
    sizes = [round(min(original.crop) / share) for share in CROPPED]
    others = [replace(stated, interpolation=kind) for kind in INTERPOLATIONS] + [
        replace(stated, resize=size) for size in sizes
    ]
    for geometry in dict.fromkeys(others):
        if geometry != original:
            yield Attempt(geometry.words, geometry)
