"""``builtin:digits-robust``: five small encoders of 8 x 8 digits that come with the library.

They share one network, the architecture ``digits``: they differ by training alone and are small enough for complete
certification. Each is a folder written by ``holdfast train`` with the recipe of the same name. The weights of
``digits-random`` are drawn by torch after ``manual_seed(0)``; all others but ``digits-certified`` start from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, check_known, readable
from holdfast.encoders import trained
from holdfast.encoders.by_name import Options, split

SOURCE = "builtin"
DOMAIN = Domain((1, 8, 8))
TOUR = ("digits-random", "digits-supervised", "digits-contrastive", "digits-robust")
"""What is measured where no one names an encoder."""
NAMES = (*TOUR, "digits-certified")
WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Settings:
    """A built-in encoder has no settings."""


def names() -> list[str]:
    """Return the names of the built-in encoders, from untrained to certified."""
    return list(NAMES)


def load(name: str, options: Options | None = None) -> Encoder:
    """Built-in encoder by its name.

    Example:
        >>> load("digits-robust").parameters
        3328
    """
    name, _ = split(name, Settings)
    check_known("built-in encoder", name, names())
    if options and options.size not in (None, 8):
        raise HoldfastError(f"builtin:{name} takes images of 8 x 8 pixels, got size={options.size}; leave the size out")
    with readable(f"builtin:{name}", "install holdfast again", HoldfastError):
        encoder = trained.load(str(WEIGHTS / name), Options())
    encoder.source = f"{SOURCE}:{name}"
    return encoder


def card(name: str) -> trained.Card:
    """Return how the encoder called ``name`` was trained.

    Example:
        >>> card("digits-robust").recipe["adversary"]
        'loss:ball=linf:0.15'
        >>> card("digits-robst")
        Traceback (most recent call last):
        holdfast.core.errors.UnknownName: ... Did you mean 'digits-robust'? Known: ...
    """
    check_known("built-in encoder", name, names())
    return trained.read_card(WEIGHTS / name)
