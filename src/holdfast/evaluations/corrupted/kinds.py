"""The common corruptions of ImageNet-C by name, in severities: Hendrycks and Dietterich 2019."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.transforms.base import transforms
from holdfast.transforms.imagenet_c.severity import CommonCorruption

SEVERITIES = (1, 2, 3, 4, 5)


def require_kinds(evaluation: str, kinds: Sequence[str]) -> None:
    """Raise unless ``kinds`` are common corruptions."""
    known = [name for name, kind in transforms().items() if issubclass(kind, CommonCorruption)]
    for name in kinds:
        if name not in known:
            raise HoldfastError(
                f"{evaluation}.kinds: there is no common corruption {name!r}; {did_you_mean(name, known)}"
            )


def in_severities(name: str, severities: Sequence[int]) -> tuple[CommonCorruption, ...]:
    """Return the corruption called ``name`` in each of ``severities``."""
    kind = transforms()[name]
    assert issubclass(kind, CommonCorruption)
    return tuple(kind(severity) for severity in severities)
