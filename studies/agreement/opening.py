"""What the page begins with: one picture, and five sentences that a person who chooses an encoder can act on."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan

from studies.agreement import figures
from studies.agreement.conclusions import Agreement
from studies.agreement.confirmation import BEYOND, Confirmed
from studies.agreement.judged import Confirmation, Judged
from studies.agreement.limits import UNDEFENDED
from studies.agreement.measures import BASELINES, CLEAN, HEADLINES, RADIUS
from studies.agreement.rankings import LEVEL
from studies.agreement.references import PRIMARY
from studies.agreement.threats import GRADIENTS, THREATS
from studies.agreement.verdicts import deceived
from studies.agreement.words import Agreements, listed, primary, value

PICTURE = "images/study/opening.svg"
KNOWN = "training radius, clean accuracy and the median distance of codes"
MOST = 5
"""Threats of ten for which a measure must have an interval above 0 to be named."""


def opening(judged: Judged) -> tuple[list[str], dict[str, str]]:
    """Return the first lines of the page, and their picture by path."""
    lines = ["", f"![What ranked encoders, and whether it did so again]({PICTURE})", ""]
    lines += [f"{place}. {sentence}" for place, sentence in enumerate(sentences(judged), 1)]
    heads = f"{len(judged.trained.members)} encoders: advice", f"{_apart(judged)} others: its test"
    return lines, {PICTURE: figures.twice(_rows(judged), heads)}


def _apart(judged: Judged) -> int:
    """Return how many encoders were kept apart and measured."""
    return len(judged.again.trained.members) if judged.again else 0


def _rows(judged: Judged) -> list[tuple[str, figures.Ends, figures.Ends, str]]:
    again, rows = judged.again, []
    for one in primary(judged.found):
        after = (nan, nan, nan) if again is None else _ends(again.found[one.measure, PRIMARY])
        claim = again.claim(one.measure, "agrees") if again else None
        outcome = "not tested" if claim is None else "held" if claim.held else "did not hold"
        rows.append((one.measure, _ends(one), after, outcome))
    return rows


def _ends(one: Agreement) -> figures.Ends:
    return one.tau, one.over_both.low, one.over_both.high


def sentences(judged: Judged) -> Iterator[str]:
    """Yield the five sentences, each with what encoders kept apart said of it."""
    yield _first(judged)
    yield _undefended(judged)
    yield _measures(judged)
    yield _threats(judged.again)
    yield _never(judged)


def _outcome(judged: Judged, name: str, kind: str) -> str:
    claim = judged.again.claim(name, kind) if judged.again else None
    if claim is None:
        return "was not put to the test"
    return f"{'held' if claim.held else 'did not hold'} among {claim.encoders} kept apart ({value(claim.value, claim.ends)})"


def _first(judged: Judged) -> str:
    radius, found = judged.found[RADIUS, PRIMARY], judged.again.found if judged.again else judged.found
    beaten = beyond_radius(found)
    return (
        "**Ask first how an encoder was trained.** The radius of the attacks in its recipe ranks encoders as probes under "
        f"attack do (tau {value(radius.tau, radius.over_both)} of {radius.n}); this "
        f"{_outcome(judged, RADIUS, 'agrees')}, and {beaten}."
    )


def beyond_radius(found: Agreements) -> str:
    """Return which measures have a larger tau than the training radius, and whether by more than chance allows."""
    radius = found[RADIUS, PRIMARY]
    larger = [h.name for h in HEADLINES if found[h.name, PRIMARY].tau > radius.tau]
    told = [name for name in larger if found[name, PRIMARY].over_both.low > radius.over_both.high]
    if not larger:
        return f"none of {len(HEADLINES)} measures had a larger one there"
    chance = f"{listed(told)} by more" if told else "none by more"
    return f"{listed(larger)} had a larger one there, {chance} than chance allows"


def _undefended(judged: Judged) -> str:
    count, taus = judged.again.undefended if judged.again else judged.strata[UNDEFENDED]
    claim = judged.again.claim(CLEAN, "undefended") if judged.again else None
    better = [h.name for h in HEADLINES if taus[h.name][0] > taus[CLEAN][0]]
    above = [h.name for h in HEADLINES if taus[h.name][1].above]
    act = "take the most accurate" if claim is None or claim.held else "accuracy is no safe guide"
    beside = f"{len(better)} of {len(HEADLINES)} measures had a larger tau" if better else "no measure had a larger tau"
    more = f"the intervals of {listed(above)} lie above 0 one by one" if above else "no interval of theirs lies above 0"
    return (
        f"**If none was trained against attacks, {act}**: the claim that clean accuracy, with labels, ranks such "
        f"encoders {_outcome(judged, CLEAN, 'undefended')}; of {count}, {beside}, and {more}."
    )


def _measures(judged: Judged) -> str:
    backed = [one.measure for one in judged.verdicts if one.kind in ("use", "some")]
    failed = [one.claim.name for one in judged.again.claims if _lost(one)] if judged.again else []
    tested = ", which held among encoders kept apart" if judged.again else ", which were not put to the test"
    use = (
        f"**Of numbers without labels, look at {listed(backed)}**{tested}"
        if backed
        else "**No number without labels held**"
    )
    lost = f"; {listed(failed)} did not and {'are' if len(failed) > 1 else 'is'} no longer advised" if failed else ""
    beyond = [f"that {name} says more than {KNOWN} together {_outcome(judged, name, 'beyond')}" for name in BEYOND]
    return f"{use}{lost}; {listed(beyond)}."


def _lost(one: Confirmed) -> bool:
    return one.claim.kind == "agrees" and one.claim.name != RADIUS and not one.held


def foreseen(again: Confirmation, name: str) -> list[str]:
    """Return the threats for which a measure or baseline has an interval above 0 and a p below .05 after correction."""
    fit = [again.found[name, threat.name] for threat in THREATS]
    return [one.reference for one in fit if one.over_both.above and one.adjusted < LEVEL]


def _threats(again: Confirmation | None) -> str:
    if again is None:
        return (
            "**Under other threats than the attack they are computed with, nothing is known** of these numbers: they were "
            "compared with probes under attacks of the same program in the same kind of ball."
        )
    counts = {h.name: len(foreseen(again, h.name)) for h in (*BASELINES, *HEADLINES)}
    most = sorted((name for name, count in counts.items() if count >= MOST), key=lambda name: -counts[name])
    said = listed([f"{name} ({counts[name]})" for name in most]) if most else "nothing"
    ranked = {name for h in (*BASELINES, *HEADLINES) for name in foreseen(again, h.name)}
    none = [threat.name for threat in THREATS if threat.name not in ranked]
    alike = len(ranked & set(GRADIENTS))
    left = f"; under {listed(none)} no number did" if none else ""
    return (
        f"**Under {len(THREATS)} other threats**, {said} ranked encoders under {MOST} or more{left}. {alike} of "
        f"{len(ranked)} under which some did are gradient attacks, as those of the {PRIMARY} are: no separate "
        "confirmations."
    )


def _never(judged: Judged) -> str:
    zoos = [judged.everyone, *([judged.again.everyone] if judged.again else [])]
    won = [h.name for h in HEADLINES if any(deceived(zoo, h) for zoo in zoos)]
    tested = {one.claim.name for one in judged.again.claims} if judged.again else set()
    nothing = [one.measure for one in judged.verdicts if one.kind == "none" and one.measure not in tested]
    return (
        f"**Never choose by one number alone**: an encoder that learned nothing came out first by {len(won)} of "
        f"{len(HEADLINES)}, and that {listed(nothing)} rank encoders as probes under attack do was not seen at all."
    )
