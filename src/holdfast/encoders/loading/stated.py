"""What a reference states about preprocessing where a file of weights does not: ``?mean=.5&std=.5&resize=squash``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.encoders.loading.inputs import numbers

NOT_STATED = "not stated"
FITS = ("shortest", "longest", "squash")


@dataclass(frozen=True)
class PreprocessingSettings:
    """Settings of a reference that replace the preprocessing which the source assumes."""

    mean: str | None = None
    """Per-channel mean of pixels in [0, 1], one number for all channels or one each."""
    std: str | None = None
    interpolation: str | None = None
    """The filter that resizes, as the source names it: bilinear, bicubic ..."""
    resize: str | None = None
    """``shortest``, ``longest`` or ``squash``: what is resized to the input's size. ``timm`` also takes the number of pixels
    to which the shorter side is resized before the centre is cropped."""

    def normalisation(self, name: str, channels: int) -> dict[str, tuple[float, ...]]:
        """Return ``mean`` and ``std`` if they are stated."""
        if (self.mean is None) != (self.std is None):
            raise HoldfastError(f"{name!r} needs both mean and std in its settings, or neither")
        if self.mean is None or self.std is None:
            return {}
        return {"mean": numbers(self.mean, channels), "std": numbers(self.std, channels)}

    def checked_resize(self, name: str, sizes: bool) -> str | None:
        """Return ``resize`` if it is one of the known ways or, where ``sizes`` are taken, a number of pixels."""
        if self.resize is not None and self.resize not in FITS and not (sizes and self.resize.isdecimal()):
            raise HoldfastError(
                f"{name!r}: resize must be {', '.join(FITS)}{' or a number of pixels' if sizes else ''}, got {self.resize!r}"
            )
        return self.resize

    def missing(self, name: str, source: str) -> str:
        """Return a sentence on the preprocessing that is not stated; empty if all of it is."""
        stated = {"normalisation": self.mean, "interpolation": self.interpolation, "resize": self.resize}
        missing = [what for what, value in stated.items() if value is None]
        if not missing:
            return ""
        return (
            f"{name!r}: its file of weights does not state {', '.join(missing)}; the default of {source} for this network "
            "is used. State what the weights were trained with: ?mean=...&std=...&interpolation=...&resize=..."
        )


def told(encoder: Encoder) -> Encoder:
    """Return ``encoder`` after a warning of what is not stated, which its record then holds."""
    if encoder.caution:
        warnings.warn(encoder.caution, HoldfastWarning, stacklevel=4)
        if "normalisation" in encoder.caution:
            encoder.normalisation = f"{NOT_STATED} ({encoder.normalisation} is assumed)"
    return encoder
