"""Whether robustness moved, from radii that are written down."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.commands.parity_sides import change
from holdfast.core.records import Claim, Findings, Result, Series

NAMES = tuple(f"image{k:02}" for k in range(20))
RADII = {name: 0.01 * (k + 1) for k, name in enumerate(NAMES)}


def radii(factor: float, names: tuple[str, ...] = NAMES) -> Result:
    series = Series(
        quantity="attack_radius",
        values=tuple(factor * RADII[name] for name in names),
        unit="pixel value",
        claim=Claim.UPPER,
        of="",
    )
    return Result.model_construct(findings=Findings(ids=names, series=(series,)))


def test_a_candidate_with_larger_radii_gains() -> None:
    """By hand: the median of 0.01 to 0.2 is 0.105, and doubling it adds as much."""
    gained, lost = change(radii(1.0), radii(2.0)), change(radii(2.0), radii(1.0))
    assert not isinstance(gained, str)
    assert not isinstance(lost, str)
    assert gained.better == "higher"
    assert gained.value == pytest.approx(0.105)
    assert 0 < gained.low < gained.value < gained.high
    assert (lost.value, lost.low, lost.high) == pytest.approx((-gained.value, -gained.high, -gained.low))


def test_radii_are_paired_by_name_wherever_they_stand() -> None:
    turned = tuple(NAMES[k] for k in np.random.default_rng(0).permutation(20))
    assert change(radii(1.0), radii(2.0, turned)) == change(radii(1.0), radii(2.0))
    part = change(radii(1.0), radii(2.0, turned[:12]))
    assert not isinstance(part, str)
    assert part.n == 12
    assert part.value == pytest.approx(np.median([RADII[name] for name in turned[:12]]))
