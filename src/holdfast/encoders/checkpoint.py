"""``checkpoint:weights.safetensors`` with ``--arch package.module:factory``: your own module, your own weights.

Weights are safetensors, or a state dict that ``torch.load(weights_only=True)`` accepts; there is no unsafe fallback. The
factory takes no arguments and returns an ``nn.Module`` (which may state ``domain: Domain`` and then normalises itself) or
an ``Encoder``. Every weight of the module must be in the file and every weight of the file in the module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.core.encoder import Encoder, Normalised
from holdfast.core.errors import HoldfastError
from holdfast.encoders.checkpoint_weights import WeightSettings, fit, read_weights
from holdfast.encoders.inputs import InputSettings, encoder_of
from holdfast.encoders.reference import Options, existing, first_line, split
from holdfast.encoders.torchvision_operators import declare_missing_operators
from holdfast.encoders.wrappers import seeded

SOURCE = "checkpoint"
TAKES_ARCH = True


@dataclass(frozen=True)
class Settings(InputSettings, WeightSettings):
    """Settings of a checkpoint reference: its inputs, and which of the file's tensors are meant."""


def load(name: str, options: Options) -> Encoder:
    """Return the module that ``options.arch`` builds, with the weights of the file ``name``."""
    name, settings = split(name, Settings)
    path = existing(name)
    if options.arch is None:
        raise HoldfastError(f"{name!r} holds weights alone; say what they belong to: --arch package.module:factory")
    built = build(options.arch)
    module = inside(built.module) if isinstance(built, Encoder) else built
    weights = fit(read_weights(path, settings), module, name)
    module.load_state_dict(weights)
    domain: Any = getattr(built, "domain", None)
    if domain is None:
        return encoder_of(module, name, settings, (), options.size)
    if settings.shape or settings.mean or settings.std:
        raise HoldfastError(f"{options.arch} states its own inputs; leave shape, mean and std out of the reference")
    whole = built.module if isinstance(built, Encoder) else built
    caution = built.caution if isinstance(built, Encoder) else ""
    return Encoder(whole.eval(), name, domain, geometry=getattr(built, "geometry", None), caution=caution)


def inside(module: nn.Module) -> nn.Module:
    """Return ``module`` without the normalisation around it."""
    return module.module if isinstance(module, Normalised) else module


def build(arch: str) -> nn.Module | Encoder:
    """Return what the function ``arch``, spelled ``package.module:factory``, builds."""
    declare_missing_operators()  # many a factory imports timm or torchvision
    factory = _factory(arch)
    try:
        # Weights come from the file; the seed fixes what a module keeps outside of its state dict.
        built = seeded(factory, 0)
    except (Exception, SystemExit) as error:
        raise HoldfastError(f"--arch {arch} failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(built, nn.Module | Encoder):
        raise HoldfastError(f"--arch {arch} returned {type(built).__name__}; expected an nn.Module or an Encoder")
    return built


def _factory(arch: str) -> Callable[[], Any]:
    home, colon, attribute = arch.partition(":")
    if not (colon and home and attribute):
        raise HoldfastError(f"--arch has the form package.module:factory, got {arch!r}")
    if str(Path.cwd()) not in sys.path:  # a script beside the checkpoint is importable, as under `python -m`
        sys.path.append(str(Path.cwd()))
    try:
        factory = getattr(import_module(home), attribute)
    except (ImportError, AttributeError) as error:
        raise HoldfastError(f"--arch {arch}: {first_line(error)}; check the spelling and the Python path") from error
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises is what the reader must hear
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise HoldfastError(f"--arch {arch} cannot be imported ({reason}); mend the module {home}") from error
    if not callable(factory):
        raise HoldfastError(f"--arch {arch} is {type(factory).__name__}, expected a function without arguments")
    return factory
