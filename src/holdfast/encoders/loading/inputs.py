"""Networks from users' functions, and what no file of weights states: shape, range and preprocessing of inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_args

from torch import nn
from torch.library import Library

from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import Conflict, HoldfastError, OutOfRange, first_line, warn
from holdfast.core.geometry import Geometry, Interpolation
from holdfast.core.settings import convert
from holdfast.encoders.wrappers import Pooled, Rearranged, seeded

Shape = tuple[int | None, ...]
"""Sizes without the batch axis; None where the file leaves one open."""


@dataclass(frozen=True)
class InputSettings:
    """Settings that describe inputs: ``?shape=3x224x224&mean=0.5&std=0.5&resize=256``."""

    shape: str | None = None
    """Channels x height x width, whatever ``layout`` is."""
    mean: str | None = None
    """Mean per channel that the module subtracts, for pixels in [0, 1]: one number for all, or one each in the module's
    own order."""
    std: str | None = None
    """Standard deviation per channel by which the module divides, like ``mean``."""
    low: float = 0.0
    """Smallest value of an input."""
    high: float = 1.0
    """Largest value of an input."""
    resize: str | None = None
    """New length of a picture's shorter side in pixels (default: that of the input), or HEIGHTxWIDTH, which changes
    proportions."""
    crop: str | None = None
    """Height and width of the centre to crop, as 224 or 224x160; where the file leaves the size open, also that of the
    input."""
    interpolation: str | None = None
    """Filter for resizing; default bilinear."""
    channels: str = "rgb"
    """Order of the channels that the module expects: rgb or bgr."""
    layout: str = "nchw"
    """Order of the axes that the module expects: nchw or nhwc."""

    def __post_init__(self) -> None:
        for setting, value, known in (
            ("channels", self.channels, ("rgb", "bgr")),
            ("layout", self.layout, ("nchw", "nhwc")),
            ("interpolation", self.interpolation, (None, *get_args(Interpolation))),
        ):
            if value not in known:
                raise HoldfastError(f"{setting}: got {value!r}. Expected {' or '.join(filter(None, known))}.")


def encoder_of(module: nn.Module, name: str, settings: InputSettings, known: Shape, size: int | None) -> Encoder:
    """Module as an encoder, with inputs from its file and from settings.

    Args:
        known: Shape that the file states, in its own layout.
        size: Height and width in pixels; None for the file's own.

    Raises:
        HoldfastError: The settings contradict the file or do not suffice.
    """
    if settings.layout == "nhwc" and known:
        known = (known[-1], *known[:-1])
    crop = pair(settings.crop) if settings.crop else None
    shape = _shape(name, settings.shape, known, size, crop)
    if (settings.mean is None) != (settings.std is None):
        raise Conflict(f"{name!r}", f"mean={settings.mean} and std={settings.std}", "both mean and std, or neither")
    caution = ""
    if settings.mean is None and len(shape) == 3 and shape[0] == 3:
        caution = (
            f"{name!r} says nothing of normalisation, so pixels in [{settings.low:g}, {settings.high:g}] reach it as "
            "they are; if it was trained on normalised images add ?mean=...&std=... (mean=0&std=1 says that it was not)"
        )
        warn(caution, 2)
    backwards = -1 if settings.channels == "bgr" else 1
    rearranged = backwards < 0 or settings.layout == "nhwc"
    if rearranged and len(shape) != 3:
        raise HoldfastError(f"{name!r}: channels and layout describe images, got inputs {shape}; leave them out")
    return Encoder(
        Rearranged(module.eval(), settings.channels, settings.layout) if rearranged else module.eval(),
        name,
        Domain(shape, settings.low, settings.high),
        mean=numbers(settings.mean, shape[0])[::backwards] if settings.mean is not None else None,
        std=numbers(settings.std, shape[0])[::backwards] if settings.std is not None else None,
        geometry=_geometry(name, settings, shape, crop),
        pooling=module.how if isinstance(module, Pooled) else "inside the module",
        caution=caution,
    )


def _geometry(
    name: str, settings: InputSettings, shape: tuple[int, ...], crop: tuple[int, int] | None
) -> Geometry | None:
    if not (settings.resize or crop or settings.interpolation):
        return None
    if len(shape) != 3:
        raise HoldfastError(f"{name!r}: only images are resized, got inputs of shape {shape}; leave resize, crop out")
    height, width = shape[1:]
    if crop not in (None, (height, width)):
        raise HoldfastError(f"{name!r} takes {height} x {width} pixels, got crop={settings.crop}; crop to its inputs")
    resize: int | tuple[int, int] = min(height, width)
    if settings.resize:
        resize = pair(settings.resize) if "x" in settings.resize else pair(settings.resize)[0]
    return Geometry(resize, (height, width), cast(Interpolation, settings.interpolation or "bilinear"))


def _shape(
    name: str, stated: str | None, known: Shape, size: int | None, crop: tuple[int, int] | None
) -> tuple[int, ...]:
    shape: Shape = sizes(stated) if stated else known
    if size and len(shape) == 3:
        shape = (shape[0], size, size)
    if crop and len(shape) == 3:
        shape = (shape[0], shape[1] or crop[0], shape[2] or crop[1])
    if not shape or None in shape:
        raise HoldfastError(f"the shape of an input of {name!r} is unknown; state it: ?shape=3x224x224")
    fixed = tuple(size for size in shape if size)
    fits = not known or (len(known) == len(fixed) and all(k in (None, f) for k, f in zip(known, fixed, strict=True)))
    if not fits:
        raise HoldfastError(f"{name!r} takes inputs of shape {known} (None is free), so it cannot take {fixed}")
    return fixed


def pair(text: str) -> tuple[int, int]:
    """Return the height and width that ``text`` states.

    Example:
        >>> pair("224"), pair("224x160")
        ((224, 224), (224, 160))
    """
    parts = sizes(text)
    if len(parts) > 2 or min(parts) < 1:
        raise HoldfastError(f"a size is a number of pixels or HEIGHTxWIDTH, as in 224 or 224x160, got {text!r}")
    return parts[0], parts[-1]


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
    """Parse numbers separated by commas; a single number stands for all.

    Raises:
        HoldfastError: The text holds something else.

    Example:
        >>> numbers("0.5", 3), numbers("51/255", 1)
        ((0.5, 0.5, 0.5), (0.2,))
    """
    try:
        values = tuple(convert(part, float, text) for part in text.split(","))
    except HoldfastError as error:
        raise OutOfRange("mean and std", text, "numbers separated by commas") from error
    if len(values) not in (1, count):
        raise OutOfRange("mean and std", text, f"1 or {count} numbers (one per channel)")
    return values * count if len(values) == 1 else values


# Torchvision beside a build of torch that it was not compiled for.
#
# Package indexes hold one build of torchvision, for CUDA. Beside a CPU build of torch its compiled operators do not
# load, and its import stops at the first of them that its Python code describes; so do timm's and transformers',
# which import it. Their networks use none of these operators: declaring what they take is enough. Calling one still
# fails, with torchvision's own advice.

DESCRIBED_AT_IMPORT = ("nms", "qnms")


@cache  # what a Library declares lasts as long as the object does
def declare_missing_operators() -> Library | None:
    """Declare operators that importing torchvision needs and that this torch may lack."""
    try:
        import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            return None
        library = Library("torchvision", "DEF")
        for name in DESCRIBED_AT_IMPORT:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def operators_are_declared() -> bool:
    """True if this process declared the operators; processes that read its networks must, too."""
    return declare_missing_operators.cache_info().currsize > 0 and declare_missing_operators() is not None


def build(factory: str, flag: str) -> nn.Module | Encoder:
    """Return what the function ``factory``, spelled ``package.module:factory``, builds.

    Args:
        factory: found on the Python path and in the working directory.
        flag: what the user typed, for errors: ``--arch package.module:factory``.

    Raises:
        HoldfastError: there is no such function, or it fails or returns something else.
    """
    declare_missing_operators()  # many a factory imports timm or torchvision
    function = _function(factory, flag)
    try:
        # The seed fixes what is drawn at random and then neither loaded nor part of a state dict.
        built = seeded(function, 0)
    except (Exception, SystemExit) as error:
        raise HoldfastError(f"{flag} failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(built, nn.Module | Encoder):
        raise HoldfastError(f"{flag} returned {type(built).__name__}; expected an nn.Module or an Encoder")
    return built


def inside(module: nn.Module) -> nn.Module:
    """Return ``module`` without the normalisation around it."""
    return module.module if isinstance(module, Normalised) else module


def encoder_from(
    built: nn.Module | Encoder, name: str, flag: str, settings: InputSettings, size: int | None
) -> Encoder:
    """Encoder from a factory's result, with the inputs that it states or else ``settings``.

    Args:
        size: Height and width in pixels; None for the factory's own.

    Raises:
        HoldfastError: The inputs are stated nowhere, or twice.
    """
    domain: Domain | None = getattr(built, "domain", None)
    if domain is None:
        return encoder_of(inside(built.module) if isinstance(built, Encoder) else built, name, settings, (), size)
    stated = [field.name for field in fields(InputSettings) if getattr(settings, field.name) != field.default]
    if stated:
        raise HoldfastError(f"{flag} states its own inputs; leave {', '.join(stated)} out of the reference")
    if size and domain.shape[1:] != (size, size):
        raise HoldfastError(
            f"{flag} states its own inputs, of shape {domain.shape}, got size={size}; leave the size out, or name a "
            "factory for it"
        )
    if isinstance(built, Encoder):
        kept = {key: getattr(built, key) for key in ("geometry", "pooling", "caution", "texts")}
        return Encoder(built.module, name, domain, **kept)
    return Encoder(built.eval(), name, domain, geometry=getattr(built, "geometry", None))


def _function(factory: str, flag: str) -> Callable[[], Any]:
    home, colon, attribute = factory.partition(":")
    if not (colon and home and attribute):
        raise HoldfastError(f"a factory has the form package.module:factory, got {flag!r}")
    if str(Path.cwd()) not in sys.path:  # a script in the working directory is importable, as under `python -m`
        sys.path.append(str(Path.cwd()))
    try:
        function = getattr(import_module(home), attribute)
    except (ImportError, AttributeError) as error:
        raise HoldfastError(f"{flag}: {first_line(error)}; check the spelling and the Python path") from error
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises is what the reader must hear
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise HoldfastError(f"{flag} cannot be imported ({reason}); fix the module {home}") from error
    if not callable(function):
        raise HoldfastError(f"{flag} is {type(function).__name__}, expected a function without arguments")
    return function
