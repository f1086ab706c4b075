"""Suites: how thorough an evaluation is. They change settings alone, to the sizes that each evaluation states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.sizes import Sizes

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Suite:
    """What a suite is for, and which of an evaluation's sizes replace its defaults."""

    meaning: str
    sizes: Callable[[Sizes], Mapping[str, Any]]


SUITES = {
    "quick": Suite(
        "published and adaptive attacks on few images: minutes, wide intervals",
        lambda sizes: sizes.quick,
    ),
    "standard": Suite(
        "every evaluation with its own defaults: the published protocol, and the adaptive attack beside it",
        lambda sizes: {},
    ),
    "full": Suite(
        "more images, restarts, a score-only attack and scale-free divergences: the numbers to publish",
        lambda sizes: sizes.full,
    ),
}
LARGE = 1_000_000
"""From so many operations an image on, quick asks less of an encoder on a CPU: in full, it would take hours."""
REACH = 12_000_000
"""An encoder of so many operations gets the counts of quick in full, one of twice as many half of them."""
HEAVY = 100_000_000
"""From so many operations on, quick asks the same of every encoder: ``TOTAL`` forwards, shared by its questions."""
TOTAL = 26_500
"""Forwards of an image that quick asks of a heavy encoder at most, a gradient counted as three, beside those that grow with
the number of images: their clean codes, and what probes learn from a bank. Eleven minutes of processor time at 25 ms."""
COUNTS = ("samples", "random")
LEAST = 8


def suite_settings(suite: str, kinds: Collection[type[Evaluation]], operations: int = 0) -> Settings:
    """Return what ``suite`` sets, by evaluation and field; evaluations without an entry keep their defaults.

    The sizes of quick are those for encoders of so many ``operations`` an image.

    Example:
        >>> from holdfast.evaluations.attacked.overlap import Overlap
        >>> sizes = (suite_settings("quick", [Overlap], n) for n in (0, 12_000_000, 60_000_000, 10**10))
        >>> [of["overlap"]["samples"] for of in sizes]
        [100, 100, 20, 30]
    """
    settings = {kind.name: SUITES[suite].sizes(kind.sizes) for kind in kinds}
    if suite == "quick" and operations > LARGE:
        settings = {kind.name: _reduced(kind.sizes, operations) for kind in kinds}
    return {name: fields for name, fields in settings.items() if fields}


def left_out(suite: str, kind: type[Evaluation], operations: int) -> bool:
    """Return whether ``suite`` asks nothing of this ``kind`` of an encoder of so many ``operations``."""
    return suite == "quick" and operations > LARGE and kind.sizes.small_only


def share(operations: int) -> float:
    """Return the share of its counts that quick asks of a large encoder."""
    return min(1.0, REACH / operations)


def _reduced(sizes: Sizes, operations: int) -> dict[str, Any]:
    """Return the sizes of quick with counts in proportion to what the encoder allows; a heavy one has sizes of its own."""
    counts = {
        name: max(LEAST, round(value * share(operations)))
        for name, value in sizes.quick.items()
        if name in COUNTS and isinstance(value, int)
    }
    return {**sizes.quick, **counts, **sizes.large, **(sizes.heavy if operations >= HEAVY else {})}
