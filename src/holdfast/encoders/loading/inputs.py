"""What a file of weights does not say about its inputs: shape, range and normalisation, stated in the reference."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import get_args

from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.geometry import Interpolation
from holdfast.encoders.wrappers import Pooled


@dataclass(frozen=True)
class InputSettings:
    """Settings of a reference that describe the inputs: ``?shape=3x224x224&mean=0.5,0.5,0.5&std=0.5,0.5,0.5``."""

    shape: str | None = None
    mean: str | None = None
    """Per-channel mean that the module expects to be subtracted, one number for all or one each."""
    std: str | None = None
    low: float = 0.0
    high: float = 1.0


def encoder_of(
    module: nn.Module, name: str, settings: InputSettings, known: tuple[int | None, ...], size: int | None
) -> Encoder:
    """Return ``module`` as an encoder; ``known`` is what the file says of the shape, None where it leaves it open."""
    shape = _shape(name, settings.shape, known, size)
    if (settings.mean is None) != (settings.std is None):
        raise HoldfastError(f"{name!r} needs both mean and std in its settings, or neither")
    caution = ""
    if settings.mean is None and len(shape) == 3 and shape[0] == 3:
        caution = (
            f"{name!r} says nothing of normalisation, so pixels in [{settings.low:g}, {settings.high:g}] reach it as "
            "they are; if it was trained on normalised images add ?mean=...&std=... (mean=0&std=1 says that it was not)"
        )
        warnings.warn(caution, HoldfastWarning, stacklevel=3)
    return Encoder(
        module.eval(),
        name,
        Domain(shape, settings.low, settings.high),
        mean=numbers(settings.mean, shape[0]) if settings.mean is not None else None,
        std=numbers(settings.std, shape[0]) if settings.std is not None else None,
        pooling=module.how if isinstance(module, Pooled) else "inside the module",
        caution=caution,
    )


def _shape(name: str, stated: str | None, known: tuple[int | None, ...], size: int | None) -> tuple[int, ...]:
    shape: tuple[int | None, ...] = sizes(stated) if stated else known
    if size and len(shape) == 3:
        shape = (shape[0], size, size)
    if not shape or None in shape:
        raise HoldfastError(f"the shape of an input of {name!r} is unknown; state it: ?shape=3x224x224")
    fixed = tuple(size for size in shape if size)
    fits = not known or (len(known) == len(fixed) and all(k in (None, f) for k, f in zip(known, fixed, strict=True)))
    if not fits:
        raise HoldfastError(f"{name!r} takes inputs of shape {known} (None is free), so it cannot take {fixed}")
    return fixed


def sizes(text: str) -> tuple[int, ...]:
    """Return the shape that ``text`` spells.

    Example:
        >>> sizes("1x28x28")
        (1, 28, 28)
    """
    try:
        return tuple(int(size) for size in text.split("x"))
    except ValueError as error:
        raise HoldfastError(f"shapes are spelled like 3x224x224, got {text!r}") from error


def numbers(text: str, count: int) -> tuple[float, ...]:
    """Return ``count`` numbers spelled with commas; one alone is meant for all.

    Example:
        >>> numbers("0.5", 3)
        (0.5, 0.5, 0.5)
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise HoldfastError(f"expected numbers separated by commas, got {text!r}") from error
    if len(values) not in (1, count):
        raise HoldfastError(f"expected 1 or {count} numbers (one per channel), got {text!r}")
    return values * count if len(values) == 1 else values


def known_interpolation(interpolation: str, name: str) -> Interpolation:
    """Return the interpolation that the configuration of ``name`` asks for."""
    for known in get_args(Interpolation):
        if interpolation == known:
            return known
    raise HoldfastError(f"{name} asks for {interpolation!r} interpolation; known: {', '.join(get_args(Interpolation))}")
