"""The advice put to the test on held-out encoders, images and a data set.

``ADVICE`` is what the page said before any of these encoders was trained, and ``CLAIMS`` what follows from it and may fail.
A claim *held* if its number is above 0 at 95% for all claims together: p of the bootstrap over families, encoders and images
is twice the share of replicates on the wrong side, with its Monte Carlo error, and Holm's method corrects for their number.
Grades may only fall: a measure with evidence whose agreement did not hold is said to have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from studies.agreement import rankings
from studies.agreement.conclusions import ALL, GIVEN, Resampled
from studies.agreement.measures import CLEAN, RADIUS
from studies.agreement.rankings import LEVEL, Interval, interval
from studies.agreement.references import PRIMARY
from studies.agreement.verdicts import Verdict

ADVICE = {
    "attack radius": "some",
    "universal quantile": "some",
    "overlap": "some",
    "certified radius": "some",
    "SynBench": "some",
    "center smoothing": "none",
    "SPADE": "none",
    "CLEVER": "none",
    "divergence radius": "none",
    "corruption retrieval": "none",
    "uniformity": "none",
    "RankMe": "none",
    "hubness": "not judged",
}
BEYOND = ("overlap",)
"""Measures that said more than clean accuracy, median distance and training radius together."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the advice: a number that has to be above 0."""

    name: str
    kind: Literal["agrees", "beyond", "undefended"]


CLAIMS = (
    Claim(RADIUS, "agrees"),
    *(Claim(name, "agrees") for name, grade in ADVICE.items() if grade == "some"),
    *(Claim(name, "beyond") for name in BEYOND),
    Claim(CLEAN, "undefended"),
)


@dataclass(frozen=True)
class Confirmed:
    """A claim and its result on held-out encoders."""

    claim: Claim
    encoders: int
    value: float
    ends: Interval
    p: float
    adjusted: float = 1.0

    @property
    def held(self) -> bool:
        """Return whether it is above 0, for all claims together."""
        return self.value > 0 and self.adjusted <= LEVEL


def confirmed(kept: Resampled) -> list[Confirmed]:
    """Return each of ``CLAIMS`` on trained held-out encoders."""
    undefended = kept.only(kept.found.eps == 0)
    tested = [_tested(claim, undefended if claim.kind == "undefended" else kept) for claim in CLAIMS]
    adjusted = rankings.holm([one.p for one in tested])
    return [replace(one, adjusted=p) for one, p in zip(tested, adjusted, strict=True)]


def _tested(claim: Claim, kept: Resampled) -> Confirmed:
    seen, drawn = kept.taus
    pair = kept.names.index(claim.name), kept.names.index(PRIMARY)
    if claim.kind == "beyond":
        others = [kept.names.index(name) for name in GIVEN[ALL]]
        value, values = float(rankings.partial(seen, *pair, others)), rankings.partial(drawn, *pair, others)
    else:
        value, values = float(seen[pair]), drawn[:, pair[0], pair[1]]
    return Confirmed(claim, len(kept.found.members), value, interval(values), tail(values))


def tail(values: Float[np.ndarray, "b"]) -> float:
    """Return the two-sided p of 0 among bootstrap replicates, with its Monte Carlo error.

    Example:
        >>> round(tail(np.arange(-10, 990) / 1000), 3), tail(-np.ones(9))
        (0.042, 1.0)
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return 1.0
    share = (1 + float((known <= 0).sum())) / (1 + len(known))
    return min(1.0, 2 * rankings.at_most(share, len(known)))


def lowered(verdicts: Sequence[Verdict], tested: Sequence[Confirmed]) -> list[Verdict]:
    """Return the verdicts, none where the agreement of a measure with evidence did not hold."""
    failed = {one.claim.name for one in tested if one.claim.kind == "agrees" and not one.held}
    return [
        replace(one, kind="none", reasons=(*one.reasons, "not confirmed on held-out encoders"))
        if one.kind in ("use", "some") and one.measure in failed
        else one
        for one in verdicts
    ]
