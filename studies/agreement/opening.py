"""What the page begins with: one picture, and five sentences that a person who chooses an encoder can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan

from studies.agreement import figures
from studies.agreement.collected import Found
from studies.agreement.conclusions import Agreement
from studies.agreement.confirmation import BEYOND, Confirmed
from studies.agreement.judged import Confirmation, Judged
from studies.agreement.limits import UNDEFENDED
from studies.agreement.measures import BASELINES, CLEAN, HEADLINES, JUDGED, RADIUS, SCALE
from studies.agreement.rankings import LEVEL, Interval
from studies.agreement.real_networks import ALL
from studies.agreement.references import PRIMARY
from studies.agreement.threats import GRADIENTS, THREATS
from studies.agreement.verdicts import deceived, tied
from studies.agreement.words import Agreements, listed, primary, value

PICTURE = "images/study/opening.svg"
KNOWN = "training radius, clean accuracy and the median distance of codes"
NOT_TESTED = "was not put to the test"
ADDED = "fine-tuned"
"""The threat that was added when the others had been seen."""


def opening(judged: Judged) -> tuple[list[str], dict[str, str]]:
    """Return the first lines of the page, and their picture by path."""
    lines = ["", f"![What ranked encoders, and whether it did so again]({PICTURE})", "", _scope(judged), ""]
    lines += [f"{place}. {sentence}" for place, sentence in enumerate(sentences(judged), 1)]
    heads = f"{len(judged.trained.members)} encoders: advice", f"{_apart(judged)} others: its test"
    return lines, {PICTURE: figures.twice(_rows(judged), heads)}


def _scope(judged: Judged) -> str:
    """Return which encoders all of this is about, and what the others say."""
    if judged.real is None:
        return "All of this is about small networks and images of 28 or 32 pixels."
    count, taus = judged.real.strata[ALL]
    above = [f"{h.name} ({value(*taus[h.name])})" for h in JUDGED if taus[h.name][1].above]
    return (
        "All of this is about small networks and images of 28 or 32 pixels (MNIST, CIFAR-10, Fashion-MNIST). Among "
        f"[{count} networks trained on ImageNet](#real-networks), which are 3 and what was made of them, "
        f"{listed(above) if above else 'no number'} ranked them as probes under attack do, one by one and beyond "
        "their Monte Carlo error."
    )


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
        return NOT_TESTED
    return f"{'held' if claim.held else 'did not hold'} among {claim.encoders} kept apart ({value(claim.value, claim.ends)})"


def _first(judged: Judged) -> str:
    radius, again = judged.found[RADIUS, PRIMARY], judged.again
    found, beyond, where = (
        (again.found, again.beyond, again.trained) if again else (judged.found, judged.beyond, judged.trained)
    )
    return (
        "**Ask first how an encoder was trained.** The radius of the attacks in its recipe ranks encoders as probes under "
        f"attack do (tau {value(radius.tau, radius.over_both)} of {radius.n}); this {_outcome(judged, RADIUS, 'agrees')}, "
        f"where {larger_than_radius(found, beyond, where)}."
    )


def larger_than_radius(found: Agreements, beyond: Mapping[str, Interval], where: Found) -> str:
    """Return which measures have a larger tau than the training radius, and whether by more than chance allows."""
    larger = [h.name for h in HEADLINES if found[h.name, PRIMARY].tau > found[RADIUS, PRIMARY].tau]
    ahead = [h.name for h in HEADLINES if beyond[h.name].above]
    told = 1 - tied(where, BASELINES[0])
    return (
        f"{listed(larger) if larger else f'none of {len(HEADLINES)} measures'} had a larger one; if all pairs count alike, "
        f"of which it tells {told:.0%} apart, {listed(ahead) if ahead else 'none'} "
        f"{'are' if len(ahead) > 1 else 'is'} ahead by more than chance allows"
    )


def _undefended(judged: Judged) -> str:
    count, taus = judged.strata[UNDEFENDED]
    before = f"; before, it had tau {value(*taus[CLEAN])} among {count}" if taus else ""
    if judged.again is None:
        outcome = f"**If none was trained against attacks**, that clean accuracy ranks such encoders {NOT_TESTED}"
        return f"{outcome}{before}."
    alone, claim = judged.again.undefended, judged.again.claim(CLEAN, "undefended")
    held = claim is not None and claim.held
    better = [h.name for h in JUDGED if alone.beyond[h.name].above]
    act = "take the most accurate" if held else "do not go by accuracy alone"
    why = "" if held else ", whose accuracies its images mostly cannot tell apart"
    simple = [h.name for h in HEADLINES if alone.beyond_scale[h.name].above]
    return (
        f"**If none was trained against attacks, {act}**: that clean accuracy, with labels, ranks such encoders "
        f"{_outcome(judged, CLEAN, 'undefended')}{why}{before}. Of numbers, "
        f"{listed(better) if better else 'none'} ranked the {alone.count} better than it by more than chance allows, one by "
        f"one, and {listed(simple) if simple else 'no measure'} better than the {SCALE} of two clean codes "
        f"({value(*alone.taus[SCALE])}), which takes no attack."
    )


def _measures(judged: Judged) -> str:
    backed = [one.measure for one in judged.verdicts if one.kind in ("use", "some")]
    if not backed:
        use = "**No number without labels held**"
    elif judged.again is None:
        use = f"**Of numbers without labels, look at {listed(backed)}**, which {NOT_TESTED}"
    else:
        use = f"**Of numbers without labels, look at {listed(backed)}**, which held among encoders kept apart"
        use += _once_more(judged.second, backed) + _only_with_defended(judged.again, backed)
    failed = [one.claim.name for one in judged.again.claims if _lost(one)] if judged.again else []
    lost = f"; {listed(failed)} did not and {'are' if len(failed) > 1 else 'is'} no longer advised" if failed else ""
    beyond = [f"that {name} says more than {KNOWN} together {_outcome(judged, name, 'beyond')}" for name in BEYOND]
    return f"{use}{lost}; {listed(beyond)}{_held_later(judged)}."


def _held_later(judged: Judged) -> str:
    """Return what of this held with second trainings alone."""
    if judged.again is None or judged.second is None:
        return ""
    later = [
        f"what {first.claim.name} says more" if first.claim.kind == "beyond" else first.claim.name
        for first, second in zip(judged.again.claims, judged.second.claims, strict=True)
        if second.held and not first.held
    ]
    return f"; with second trainings alone {listed(later)} did hold, which changes no grade" if later else ""


def _once_more(second: Confirmation | None, backed: Sequence[str]) -> str:
    """Return which of the advised numbers held when encoders kept apart were trained once more."""
    held = [name for name in backed if second and (claim := second.claim(name, "agrees")) and claim.held]
    who = (
        "both" if len(held) == len(backed) == 2 else "all" if held == list(backed) else listed(held) if held else "none"
    )
    return f", {who} again when these were trained once more" if second else ""


def _only_with_defended(again: Confirmation, backed: Sequence[str]) -> str:
    """Return which of the advised numbers were not shown to rank encoders of which none was trained against attacks."""
    taus = again.undefended.taus
    unsure = [f"{name} ({value(*taus[name])})" for name in backed if not taus[name][1].above]
    return f" (not shown of {listed(unsure)} where none was trained against attacks)" if unsure else ""


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
    planned = [threat.name for threat in THREATS if threat.name != ADDED]
    ranked = {h.name: [name for name in foreseen(again, h.name) if name != ADDED] for h in JUDGED}
    order = sorted((name for name in ranked if ranked[name]), key=lambda name: -len(ranked[name]))
    said = listed([f"{name} ({len(ranked[name])})" for name in order]) if order else "nothing"
    seen = {name for names in ranked.values() for name in names}
    none = [name for name in planned if name not in seen]
    left = f"; under {listed(none)} no number did" if none else ""
    return (
        f"**Under how many of {len(planned)} other threats** numbers ranked encoders: {said}{left}. "
        f"{len(seen & set(GRADIENTS))} of {len(seen)} under which some did are gradient attacks, as those of the {PRIMARY} "
        "are: no separate confirmations."
    )


def _never(judged: Judged) -> str:
    zoos = [judged.everyone, *([judged.again.everyone] if judged.again else [])]
    won = [h.name for h in HEADLINES if any(deceived(zoo, h) for zoo in zoos)]
    tested = {one.claim.name for one in judged.again.claims} if judged.again else set()
    nothing = [one.measure for one in judged.verdicts if one.kind == "none" and one.measure not in tested]
    return (
        f"**Never choose by one number alone**: an encoder that learned nothing came out first by {len(won)} of "
        f"{len(HEADLINES)}, and that {listed(nothing)} rank small encoders as probes under attack do was not seen"
        f"{_turned(judged, nothing)}."
    )


def _turned(judged: Judged, names: Sequence[str]) -> str:
    """Return which measures ranked encoders the other way round, and where."""
    apart = [name for name in names if judged.again and judged.again.found[name, PRIMARY].over_both.below]
    real = [name for name in names if judged.real and judged.real.strata[ALL][1][name][1].below]
    places = [(apart, "those kept apart"), (real, "ImageNet networks")]
    said = [f"{listed(found)} among {where}" for found, where in places if found]
    return f" ({listed(said)} even the other way round)" if said else ""
