"""What a user should do with a measure: rules and their reasons in words.

use        the interval of tau over images and encoders is above 0, and so is that of the partial tau given clean accuracy
           and the scale of the codes; so is that of tau among undefended encoders alone or among those trained against
           attacks alone; every family may be left out; and the permutation test holds after Holm
some       the interval of tau is above 0, but one of the others is not so
none       the interval contains 0
against    the interval is below 0: the measure points the wrong way
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studies.agreement.collected import Found
from studies.agreement.conclusions import BOTH, Agreement, oriented
from studies.agreement.measures import Headline
from studies.agreement.rankings import LEVEL
from studies.agreement.references import PRIMARY


@dataclass(frozen=True)
class Verdict:
    """What is said of a measure, and why."""

    measure: str
    kind: str
    reasons: tuple[str, ...] = ()


def verdict(one: Agreement, alone: Sequence[tuple[float, float]]) -> Verdict:
    """Return what the agreement with the primary reference allows to say.

    ``alone`` are the intervals of tau among encoders of one kind of training, without and with attacks: what holds only
    between the kinds may be no more than who was trained how.
    """
    low, high = one.over_both
    if not np.isfinite([one.tau, low, high]).all():
        return Verdict(one.measure, "unknown", ("too few encoders have a value",))
    if high < 0:
        return Verdict(one.measure, "against")
    if low <= 0:
        return Verdict(one.measure, "none")
    doubts = []
    if not one.given[BOTH][1] > 0:
        doubts.append("given clean accuracy and the scale of the codes, its interval contains 0")
    if not any(least > 0 for least, _ in alone):
        doubts.append(
            "neither among undefended encoders nor among those trained against attacks is its interval above 0"
        )
    if not one.families[0] > 0:
        doubts.append("it rests on one family")
    if not one.adjusted < LEVEL:
        doubts.append(f"within families it may be chance (p = {one.adjusted:.2f} after Holm)")
    return Verdict(one.measure, "some" if doubts else "use", tuple(doubts))


@dataclass(frozen=True)
class Deceived:
    """A degenerate encoder that a measure puts before all trained ones of its data set, one of which serves better."""

    case: str
    serves: float
    """Its primary reference."""
    best: float
    """That of the best trained encoder."""


def deceived(found: Found, headline: Headline) -> list[Deceived]:
    """Return the encoders that win under a measure and learned nothing."""
    x, y, won = oriented(found, headline), found.values[PRIMARY], []
    for dataset in np.unique(found.dataset):
        mine = (found.dataset == dataset) & np.isfinite(x)
        trained = mine & ~found.degenerate
        for place in np.flatnonzero(mine & found.degenerate) if trained.any() else ():
            if x[place] > x[trained].max() and y[place] < y[trained].max():
                won.append(Deceived(found.members[place].case, float(y[place]), float(y[trained].max())))
    return won


def tied(found: Found, headline: Headline) -> float:
    """Return the share of pairs within a data set that the measure cannot tell apart."""
    x, group = found.values[headline.name], found.dataset
    gaps = (x[:, None] - x[None, :])[np.triu(group[:, None] == group, 1)]
    known = gaps[np.isfinite(gaps)]
    return float((known == 0).mean()) if len(known) else 0.0
