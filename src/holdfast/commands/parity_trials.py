"""The preprocessings that are tried: normalisations and channel orders, resizing, decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from holdfast.core.encoder import Encoder, Normalised, Pixels
from holdfast.core.geometry import Geometry, Interpolation, Preprocessing
from holdfast.data.reading.decode import USUAL as USUAL_DECODING
from holdfast.data.reading.decode import Decoding
from holdfast.run.health_checks import USUAL, Normalisation

AS_IT_IS = "as it is"
REVERSAL = "channels in the opposite order"
INTERPOLATIONS: tuple[Interpolation, ...] = ("nearest", "bilinear", "bicubic", "lanczos")
CROPPED = (1.0, 0.95, 0.9, 0.875)
"""Shares of the resized image that usual crops keep."""
EFFICIENTNET: Normalisation = ((0.485, 0.456, 0.406), (0.47853944, 0.4732864, 0.47434163))
"""Of the checkpoints of EfficientNet in transformers, whose processor also knows an offset and a second division."""
BEHIND = {"black": "transparent parts on black", "nothing": "transparency dropped"}


@dataclass(frozen=True, eq=False)
class Attempt:
    """A preprocessing: how files become pixels, and what becomes of pixels before the encoder.

    Pixels go through the encoder as it is, and so as it is arranged for speed: of a network that divides by ``std`` after it
    subtracts ``mean``, another ``(mean', std')`` is the map ``x -> (x - mean') std / std' + mean`` before it.
    """

    geometry: Preprocessing | None
    of_inputs: str = ""
    """The normalisation and order of channels in words; empty if they are those of the encoder."""
    resizing: str = ""
    """The same of ``geometry``."""
    scale: tuple[float, ...] = (1.0,)
    shift: tuple[float, ...] = (0.0,)
    reverses: bool = False
    """Whether channels come in the opposite order."""
    decoding: Decoding = USUAL_DECODING

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return ``pixels`` as this preprocessing hands them to the encoder."""
        scale, shift = (pixels.new_tensor(values)[:, None, None] for values in (self.scale, self.shift))
        return (pixels.flip(1) if self.reverses else pixels) * scale + shift

    @property
    def name(self) -> str:
        """Return all of it in words."""
        turned = "" if self.decoding.turned else "EXIF orientation ignored"
        parts = (self.of_inputs, self.resizing, turned, BEHIND.get(self.decoding.behind, ""))
        return ", and ".join(filter(None, parts)) or AS_IT_IS

    def taking(self, other: Attempt, part: tuple[str, ...]) -> Attempt:
        """Return this attempt with one ``part`` of another: ``INPUTS``, ``RESIZING`` or ``DECODING``."""
        return replace(self, **{name: getattr(other, name) for name in part})


INPUTS, RESIZING, DECODING = ("of_inputs", "scale", "shift", "reverses"), ("geometry", "resizing"), ("decoding",)
"""Fields that are exchanged together: normalisation and order of channels, resizing, decoding."""


def of_pixels(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield other normalisations than that of ``encoder`` and the other channel order, that of ``other`` first."""
    as_it_is = Attempt(encoder.geometry)
    for attempt in (as_it_is, *_normalised(encoder, other)):
        if attempt is not as_it_is:
            yield attempt
        if encoder.domain.shape[0] == 3:
            name = f"{attempt.of_inputs}, and {REVERSAL}" if attempt.of_inputs else REVERSAL
            yield replace(attempt, of_inputs=name, reverses=True)
    yield from _variants(encoder, other)


def _normalised(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield the normalisation of ``other`` in place of that of ``encoder``, if it is stated, and usual ones."""
    target, stated = stated_by(other), stated_by(encoder)
    channels = encoder.domain.shape[0]
    usual = _of_channels(USUAL, channels)
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


def _variants(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield what programs make of a normalisation beside applying it once to pixels in [0, 1]."""
    channels, target = encoder.domain.shape[0], stated_by(other)
    bases = {"ImageNet normalisation": USUAL["ImageNet normalisation"], "EfficientNet normalisation": EFFICIENTNET}
    known = _of_channels(bases | {"pixels in [-1, 1]": USUAL["pixels in [-1, 1]"]}, channels)
    known |= {f"the normalisation of {other.name}": target} if target else {}
    inside = stated_by(encoder) or ((0.0,) * channels, (1.0,) * channels)
    seen = [inside, *_of_channels(USUAL, channels).values(), *([target] if target else [])]  # these are tried already
    for name, base in known.items():
        for words, normalisation in variants(base).items():
            if not any(_near(each, normalisation) for each in seen):
                seen.append(normalisation)
                yield _replaced(f"{name}{words}", encoder, inside, normalisation)


def variants(base: Normalisation) -> dict[str, Normalisation]:
    """Return ``(x - mean) / std`` applied otherwise, each as one normalisation.

    Example:
        >>> variants(((0.5,), (0.25,)))[", applied twice"]  # ((x - .5) / .25 - .5) / .25 = (x - .625) / .0625
        ((0.625,), (0.0625,))
    """
    mean, std = base
    offset, square = tuple((1 + m) / 2 for m in mean), tuple(s * s for s in std)
    return {
        "": base,
        ", of pixels in [-1, 1]": (offset, tuple(s / 2 for s in std)),
        ", divided by std twice": (mean, square),
        ", of pixels in [-1, 1], divided by std twice": (offset, tuple(s / 2 for s in square)),
        ", applied twice": (tuple(m + m * s for m, s in zip(mean, std, strict=True)), square),
    }


def _of_channels(named: dict[str, Normalisation], channels: int) -> dict[str, Normalisation]:
    """Return those of three channels for as many as there are; grey has only those that treat all channels alike."""
    return {
        name: (mean[:channels], std[:channels])
        for name, (mean, std) in named.items()
        if channels == 3 or len(set(mean)) == 1
    }


def _replaced(name: str, encoder: Encoder, inside: Normalisation, wanted: Normalisation) -> Attempt:
    """Return the attempt by which ``wanted`` stands in place of the normalisation ``inside`` of ``encoder``."""
    scale = tuple(a / b for a, b in zip(inside[1], wanted[1], strict=True))
    shift = tuple(a - b * c for a, b, c in zip(inside[0], wanted[0], scale, strict=True))
    return Attempt(encoder.geometry, name, scale=scale, shift=shift)


def stated_by(encoder: Encoder) -> Normalisation | None:
    """Return the normalisation that ``encoder`` states."""
    module = encoder.module
    if not isinstance(module, Normalised):
        return None
    return tuple(module.mean.flatten().tolist()), tuple(module.std.flatten().tolist())


def _near(a: Normalisation, b: Normalisation) -> bool:
    return len(a[0]) == len(b[0]) and bool(torch.allclose(torch.tensor(a), torch.tensor(b), rtol=0, atol=1e-6))


def of_files(encoder: Encoder, other: Encoder) -> Iterator[Attempt]:
    """Yield the resizing of ``other`` for ``encoder``, or all usual ones: that of a file of embeddings is unknown."""
    original = encoder.geometry
    if original is None:
        return
    if not other.codes_only:
        if other.domain == encoder.domain and other.geometry is not None and other.geometry != original:
            yield Attempt(other.geometry, "", f"the resizing of {other.name} ({other.inputs['resizing']})")
        return
    yield from usual_resizings(original)


def usual_resizings(original: Preprocessing) -> Iterator[Attempt]:
    """Yield the usual interpolations with the usual crops and squashes, other than ``original``."""
    crop = (original.crop[0], original.crop[1])
    # Of square pictures several are one; the first is named.
    own = [original.resize] if isinstance(original, Geometry) else []
    sides = [*own, *(round(min(crop) / share) for share in CROPPED), crop]
    for side, kind in product(dict.fromkeys(sides), INTERPOLATIONS):
        geometry = Geometry(side, crop, kind)
        if geometry != original:
            yield Attempt(geometry, "", geometry.words)


def of_decodings(turned: bool, transparent: bool, geometry: Preprocessing | None) -> Sequence[Attempt]:
    """Return other decodings of files of which some say how they are turned, or are transparent."""
    behind = USUAL_DECODING.behind, *(("black", "nothing") if transparent else ())
    kinds = [Decoding(upright, page) for upright, page in product((True, False) if turned else (True,), behind)]
    return [Attempt(geometry, decoding=kind) for kind in kinds if kind != USUAL_DECODING]
