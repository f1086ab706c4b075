"""Which cases of a law are fast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def rest_slow(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """Mark all ``cases`` slow but the first few: these keep watch, and all of them say the same of other numbers."""
    chosen = list(cases)
    return chosen[:fast] + [_slow(case) for case in chosen[fast:]]


def _slow(case: Any) -> Any:
    values: Sequence[Any] = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
