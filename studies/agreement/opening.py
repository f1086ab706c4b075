"""The top of the page: one picture, and five points for the choice of an encoder."""

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
KNOWN = "training radius, clean accuracy and median distance"
NOT_TESTED = "not tested on held-out encoders"
CONFIRMED = {True: "confirmed", False: "not confirmed"}
ADDED = "fine-tuned"
"""Threat that was added after the others were measured."""


def opening(judged: Judged) -> tuple[list[str], dict[str, str]]:
    """Return the first lines of the page, and their picture by path."""
    lines = ["", f"![Agreement of each metric with robust area, twice]({PICTURE})", "", _scope(judged), ""]
    lines += [f"{place}. {point}" for place, point in enumerate(points(judged), 1)]
    heads = f"{len(judged.trained.members)} encoders: advice", f"{_held_out(judged)} held out: its test"
    return lines, {PICTURE: figures.twice(_rows(judged), heads)}


def _scope(judged: Judged) -> str:
    """Return which encoders the page is about, and what real networks add."""
    if judged.real is None:
        return "All encoders are small networks, and images have 28 or 32 pixels."
    count, taus = judged.real.strata[ALL]
    above = [f"{h.name} ({value(*taus[h.name])})" for h in JUDGED if taus[h.name][1].above]
    return (
        "Most encoders are small networks, and images have 28 or 32 pixels (MNIST, CIFAR-10, Fashion-MNIST). "
        f"There are also [{count} ImageNet networks](#real-networks) of 3 families. τ above 0 among these, each tested "
        f"by itself: {listed(above) if above else 'none'}."
    )


def _held_out(judged: Judged) -> int:
    """Return the number of measured held-out encoders."""
    return len(judged.again.trained.members) if judged.again else 0


def _rows(judged: Judged) -> list[tuple[str, figures.Ends, figures.Ends, str]]:
    again, rows = judged.again, []
    for one in primary(judged.found):
        after = (nan, nan, nan) if again is None else _ends(again.found[one.measure, PRIMARY])
        claim = again.claim(one.measure, "agrees") if again else None
        rows.append((one.measure, _ends(one), after, "not tested" if claim is None else CONFIRMED[claim.held]))
    return rows


def _ends(one: Agreement) -> figures.Ends:
    return one.tau, one.over_both.low, one.over_both.high


def points(judged: Judged) -> Iterator[str]:
    """Yield the five points, each with its result on held-out encoders."""
    yield _first(judged)
    yield _undefended(judged)
    yield _measures(judged)
    yield _threats(judged.again)
    yield _never(judged)


def _outcome(judged: Judged, name: str, kind: str) -> str:
    claim = judged.again.claim(name, kind) if judged.again else None
    if claim is None:
        return NOT_TESTED
    return f"{CONFIRMED[claim.held]} on {claim.encoders} held-out encoders (τ {value(claim.value, claim.ends)})"


def _first(judged: Judged) -> str:
    radius, again = judged.found[RADIUS, PRIMARY], judged.again
    found, beyond, where = (
        (again.found, again.beyond, again.trained) if again else (judged.found, judged.beyond, judged.trained)
    )
    return (
        f"**Ask first how an encoder was trained.** The {RADIUS} is the ε of the attacks in its recipe. It ranks encoders "
        f"as attacked probes do: τ {value(radius.tau, radius.over_both)} (n = {radius.n}). This was "
        f"{_outcome(judged, RADIUS, 'agrees')}. {larger_than_radius(found, beyond, where)}"
    )


def larger_than_radius(found: Agreements, beyond: Mapping[str, Interval], where: Found) -> str:
    """Return which metrics have a larger tau than the training radius, and which a significantly larger one."""
    larger = [h.name for h in HEADLINES if found[h.name, PRIMARY].tau > found[RADIUS, PRIMARY].tau]
    ahead = [h.name for h in HEADLINES if beyond[h.name].above]
    told = 1 - tied(where, BASELINES[0])
    return (
        f"Metrics with a larger τ: {listed(larger) if larger else 'none'}. The {RADIUS} tells {told:.0%} of pairs apart. "
        f"Significantly ahead of it if all pairs count alike: {listed(ahead) if ahead else 'none'}."
    )


def _undefended(judged: Judged) -> str:
    count, taus = judged.strata[UNDEFENDED]
    before = f" Its τ was {value(*taus[CLEAN])} among the first {count} such encoders." if taus else ""
    outcome = f"That {CLEAN} (with labels) ranks such encoders was {_outcome(judged, CLEAN, 'undefended')}."
    if judged.again is None:
        return f"**If no encoder was trained against attacks:** {outcome}{before}"
    alone, claim = judged.again.undefended, judged.again.claim(CLEAN, "undefended")
    held = claim is not None and claim.held
    better = [h.name for h in JUDGED if alone.beyond[h.name].above]
    act = "take the most accurate" if held else "do not go by accuracy alone"
    why = "" if held else " The images mostly cannot tell their accuracies apart."
    simple = [h.name for h in HEADLINES if alone.beyond_scale[h.name].above]
    return (
        f"**If no encoder was trained against attacks, {act}.** {outcome}{why}{before} Significantly better than {CLEAN} on "
        f"the {alone.count}, each tested by itself: {listed(better) if better else 'none'}. Significantly better than the "
        f"{SCALE} of two clean embeddings (τ {value(*alone.taus[SCALE])}), which needs no attack: "
        f"{listed(simple) if simple else 'none'}."
    )


def _measures(judged: Judged) -> str:
    backed = [one.measure for one in judged.verdicts if one.kind in ("use", "some")]
    if not backed:
        use = "**No metric without labels was confirmed.**"
    elif judged.again is None:
        use = f"**Of metrics without labels, look at {listed(backed)}.** This was {NOT_TESTED}."
    else:
        use = f"**Of metrics without labels, look at {listed(backed)}.** Confirmed on held-out encoders: {listed(backed)}."
        use += _once_more(judged.second, backed) + _only_with_defended(judged.again, backed)
    failed = [one.claim.name for one in judged.again.claims if _lost(one)] if judged.again else []
    lost = f" Not confirmed, and no longer advised: {listed(failed)}." if failed else ""
    beyond = [
        f" That {name} says more than {KNOWN} together was {_outcome(judged, name, 'beyond')}." for name in BEYOND
    ]
    return f"{use}{lost}{''.join(beyond)}{_held_later(judged)}"


def _held_later(judged: Judged) -> str:
    """Return the claims that only second trainings confirm."""
    if judged.again is None or judged.second is None:
        return ""
    later = [
        f"{first.claim.name} (beyond the three)" if first.claim.kind == "beyond" else first.claim.name
        for first, second in zip(judged.again.claims, judged.second.claims, strict=True)
        if second.held and not first.held
    ]
    return f" Confirmed by second trainings only, which changes no grade: {listed(later)}." if later else ""


def _once_more(second: Confirmation | None, backed: Sequence[str]) -> str:
    """Return which of the advised metrics second trainings of the held-out encoders confirm."""
    held = [name for name in backed if second and (claim := second.claim(name, "agrees")) and claim.held]
    return f" Confirmed by second trainings of these encoders: {listed(held) if held else 'none'}." if second else ""


def _only_with_defended(again: Confirmation, backed: Sequence[str]) -> str:
    """Return which of the advised metrics were not shown to rank encoders without adversarial training."""
    taus = again.undefended.taus
    unsure = [f"{name} ({value(*taus[name])})" for name in backed if not taus[name][1].above]
    return f" Not shown if no encoder was trained against attacks: {listed(unsure)}." if unsure else ""


def _lost(one: Confirmed) -> bool:
    return one.claim.kind == "agrees" and one.claim.name != RADIUS and not one.held


def threats_ranked(again: Confirmation, name: str) -> list[str]:
    """Return the threats under which a metric has an interval above 0 and a corrected p below .05."""
    fit = [again.found[name, threat.name] for threat in THREATS]
    return [one.reference for one in fit if one.over_both.above and one.adjusted < LEVEL]


def _threats(again: Confirmation | None) -> str:
    if again is None:
        return (
            "**Other threats: nothing is known.** These metrics were compared with probes under attacks of the same "
            "program in the same kind of ball."
        )
    planned = [threat.name for threat in THREATS if threat.name != ADDED]
    ranked = {h.name: [name for name in threats_ranked(again, h.name) if name != ADDED] for h in JUDGED}
    order = sorted((name for name in ranked if ranked[name]), key=lambda name: -len(ranked[name]))
    said = listed([f"{name} ({len(ranked[name])})" for name in order]) if order else "none"
    seen = {name for names in ranked.values() for name in names}
    none = [name for name in planned if name not in seen]
    left = f" No metric did under {listed(none)}." if none else ""
    return (
        f"**Other threats.** Number of threats, of {len(planned)}, under which a metric ranked encoders: {said}.{left} "
        f"{len(seen & set(GRADIENTS))} of the {len(seen)} others are gradient attacks like those of the {PRIMARY}, so they "
        "are not independent confirmations."
    )


def _never(judged: Judged) -> str:
    zoos = [judged.everyone, *([judged.again.everyone] if judged.again else [])]
    won = [h.name for h in HEADLINES if any(deceived(zoo, h) for zoo in zoos)]
    tested = {one.claim.name for one in judged.again.claims} if judged.again else set()
    nothing = [one.measure for one in judged.verdicts if one.kind == "none" and one.measure not in tested]
    return (
        "**Never choose by one metric alone.** A trivial encoder (pixels, PCA, untrained, collapsed) ranked first by "
        f"{len(won)} of {len(HEADLINES)} metrics. No evidence for: {listed(nothing)}.{_turned(judged, nothing)}"
    )


def _turned(judged: Judged, names: Sequence[str]) -> str:
    """Return which metrics ranked encoders in reverse, and where."""
    apart = [name for name in names if judged.again and judged.again.found[name, PRIMARY].over_both.below]
    real = [name for name in names if judged.real and judged.real.strata[ALL][1][name][1].below]
    places = [(apart, "held-out encoders"), (real, "ImageNet networks")]
    said = [f"{listed(found)} among {where}" for found, where in places if found]
    return f" In reverse order: {listed(said)}." if said else ""
