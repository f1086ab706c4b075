"""Users' functions that build networks, and torchvision beside builds of torch it does not know."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn
from torch.library import Library

from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import HoldfastError, first_line
from holdfast.encoders.loading.inputs import InputSettings, encoder_of
from holdfast.encoders.wrappers import seeded

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
