"""What a user should do with a measure: rules and their reasons in words.

use        the interval of tau over images and encoders is above 0, and so is that of the partial tau given clean accuracy,
           the scale of the codes and the radius of adversarial training; so is that of tau among encoders of one data set
           and radius, and among undefended encoders alone or those trained against attacks alone; every family may be left
           out; and the permutation test holds after Holm
some       the interval of tau is above 0, but one of the others is not so
none       the interval contains 0
against    the interval is below 0: the measure points the wrong way
not judged too few encoders have a value, or the measure does not agree with itself on two halves of its images

*Above 0* allows for the Monte Carlo error of the bootstrap, and p for that of the shuffles: a grade that another seed might
change is the lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studies.agreement.collected import Found
from studies.agreement.conclusions import ALL, Agreement, oriented
from studies.agreement.measures import CLEAN, RADIUS, SCALE, Headline
from studies.agreement.rankings import LEVEL, Interval
from studies.agreement.references import PRIMARY

NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Verdict:
    """What is said of a measure, and why."""

    measure: str
    kind: str
    reasons: tuple[str, ...] = ()


def verdict(one: Agreement, alone: Sequence[Interval], equal: Interval | None) -> Verdict:
    """Return what the agreement with the primary reference allows to say.

    ``alone`` are the intervals of tau among encoders of one kind of training, without and with attacks, and ``equal`` that
    among encoders of one data set and radius: what holds only between these may be no more than who was trained how.
    """
    if not np.isfinite([one.tau, one.over_both.low, one.over_both.high]).all():
        return Verdict(one.measure, NOT_JUDGED, ("too few encoders have a value",))
    if one.ceiling <= 0:
        return Verdict(one.measure, NOT_JUDGED, ("no agreement with itself on two halves of its images",))
    if one.over_both.below:
        return Verdict(one.measure, "against")
    if not one.over_both.above:
        return Verdict(one.measure, "none")
    doubts = []
    if not one.given[ALL][1].above:
        doubts.append(f"interval contains 0 given {CLEAN}, {SCALE} and {RADIUS}")
    if equal is None or not equal.above:
        doubts.append("interval contains 0 at equal data set and radius")
    if not any(ends.above for ends in alone):
        doubts.append(
            "interval not above 0 beyond its Monte Carlo error, neither among undefended encoders nor among adversarially "
            "trained ones"
        )
    if not one.families[0] > 0:
        doubts.append("rests on one family")
    if not one.adjusted < LEVEL:
        doubts.append(f"not significant within families (p = {one.adjusted:.2f} after Holm)")
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
    """Return the trivial encoders that a metric ranks first."""
    x, y, won = oriented(found, headline), found.values[PRIMARY], []
    for dataset in np.unique(found.dataset):
        mine = (found.dataset == dataset) & np.isfinite(x)
        trained = mine & ~found.degenerate
        for place in np.flatnonzero(mine & found.degenerate) if trained.any() else ():
            if x[place] > x[trained].max() and y[place] < y[trained].max():
                won.append(Deceived(found.members[place].case, float(y[place]), float(y[trained].max())))
    return won


def tied(found: Found, headline: Headline) -> float:
    """Return the fraction of pairs within a data set that the metric cannot tell apart."""
    x, group = found.values[headline.name], found.dataset
    gaps = (x[:, None] - x[None, :])[np.triu(group[:, None] == group, 1)]
    known = gaps[np.isfinite(gaps)]
    return float((known == 0).mean()) if len(known) else 0.0
