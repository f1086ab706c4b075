"""How much of an evaluation each suite asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """What the suites set in place of an evaluation's defaults, by field; the suite ``standard`` sets nothing."""

    quick: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    large: Mapping[str, Any] = field(default_factory=dict)
    """What quick sets for large encoders, beside its counts of images, which it lowers by itself unless they are named."""
    heavy: Mapping[str, Any] = field(default_factory=dict)
    """What quick sets beside ``large`` for encoders of a tenth of a second: this evaluation's part of a fixed total."""
    small_only: bool = False
    """Whether quick leaves the evaluation out for large encoders, unless it is asked for by name."""
