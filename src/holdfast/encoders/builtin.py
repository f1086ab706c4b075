"""``builtin:digits-robust``: four small encoders of 8 x 8 digits that come with the library.

They share one network, the architecture ``digits``, so that they differ by
training alone and remain small enough to be certified completely. Each has a card with its recipe and its accuracy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, nearest
from holdfast.encoders.architectures.digits import Digits
from holdfast.encoders.reference import Options, split

SOURCE = "builtin"
DOMAIN = Domain((1, 8, 8))
NAMES = ("digits-random", "digits-supervised", "digits-contrastive", "digits-robust")


@dataclass(frozen=True)
class Settings:
    """A built-in encoder has no settings."""


def names() -> list[str]:
    """Return the names of the built-in encoders, from untrained to robust."""
    return list(NAMES)


def load(name: str, options: Options | None = None) -> Encoder:
    """Return the built-in encoder called ``name``.

    Example:
        >>> load("digits-robust").parameters
        3328
    """
    from safetensors.torch import load as tensors

    name, _ = split(name, Settings)
    if options and options.size not in (None, 8):
        raise HoldfastError(f"builtin:{name} takes images of 8 x 8 pixels, got size={options.size}; leave the size out")
    expected = card(name)["weights_sha256"]
    weights = files(__package__).joinpath("weights", f"{name}.safetensors").read_bytes()
    if sha256(weights).hexdigest() != expected:
        raise HoldfastError(f"the weights of builtin:{name} do not match their card; install holdfast again")
    module = Digits().build(DOMAIN)
    module.load_state_dict(tensors(weights))
    return Encoder(module, name, DOMAIN, source=f"{SOURCE}:{name}", pooling="none, the last layer reads all positions")


def card(name: str) -> dict[str, Any]:
    """Return how the encoder called ``name`` was trained, and how accurate it is on the digits it has not seen.

    Example:
        >>> card("digits-robust")["eps"]
        0.15
        >>> card("digits-robst")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: no built-in encoder 'digits-robst'; did you mean 'digits-robust'? known: ...
    """
    if name not in NAMES:
        raise HoldfastError(f"no built-in encoder {name!r}; {nearest(name, names())}")
    return json.loads(files(__package__).joinpath("weights", f"{name}.json").read_text(encoding="utf-8"))
