"""What the page begins with: one picture, and five sentences that a person who chooses an encoder can act on."""

from __future__ import annotations

from collections.abc import Iterator

from studies.agreement import figures
from studies.agreement.conclusions import Agreement
from studies.agreement.confirmation import BEYOND, Confirmed
from studies.agreement.judged import Confirmation, Judged
from studies.agreement.measures import BASELINES, CLEAN, HEADLINES, RADIUS
from studies.agreement.rankings import LEVEL
from studies.agreement.references import PRIMARY
from studies.agreement.threats import THREATS
from studies.agreement.verdicts import deceived
from studies.agreement.words import listed, primary, value

PICTURE = "images/study/opening.svg"
MOST = 5
"""Threats of nine for which a measure must have an interval above 0 to be named."""


def opening(judged: Judged) -> tuple[list[str], dict[str, str]]:
    """Return the first lines of the page, and their picture by path."""
    again = judged.again
    if again is None:
        return ["", "Encoders kept apart were not measured, so that nothing below was put to the test."], {}
    lines = ["", f"![What ranked encoders, and whether it did so again]({PICTURE})", ""]
    lines += [f"{place}. {sentence}" for place, sentence in enumerate(sentences(judged, again), 1)]
    return lines, {PICTURE: figures.twice(_rows(judged, again), _heads(judged, again))}


def _heads(judged: Judged, again: Confirmation) -> tuple[str, str]:
    return (f"{len(judged.trained.members)} encoders: advice", f"{len(again.trained.members)} others: its test")


def _rows(judged: Judged, again: Confirmation) -> list[tuple[str, figures.Ends, figures.Ends, str]]:
    rows = []
    for one in primary(judged.found):
        claim = again.claim(one.measure, "agrees")
        outcome = "not claimed" if claim is None else "held" if claim.held else "did not hold"
        rows.append((one.measure, _ends(one), _ends(again.found[one.measure, PRIMARY]), outcome))
    return rows


def _ends(one: Agreement) -> figures.Ends:
    return one.tau, one.over_both.low, one.over_both.high


def sentences(judged: Judged, again: Confirmation) -> Iterator[str]:
    """Yield the five sentences, each with what encoders kept apart said of it."""
    yield _first(judged, again)
    yield _undefended(judged, again)
    yield _measures(judged, again)
    yield _threats(again)
    yield _never(judged, again)


def _outcome(claim: Confirmed | None) -> str:
    if claim is None:
        return "was not put to the test"
    return f"{'held' if claim.held else 'did not hold'} among {claim.encoders} kept apart ({value(claim.value, claim.ends)})"


def _first(judged: Judged, again: Confirmation) -> str:
    radius, claim = judged.found[RADIUS, PRIMARY], again.claim(RADIUS, "agrees")
    larger = [h.name for h in HEADLINES if again.found[h.name, PRIMARY].tau > again.found[RADIUS, PRIMARY].tau]
    beaten = f"{listed(larger)} ranked those better" if larger else "no measure ranked those better"
    return (
        f"**Ask first how an encoder was trained.** The radius of the attacks in its recipe ranks encoders as probes under "
        f"attack do (tau {value(radius.tau, radius.over_both)} of {radius.n}); this {_outcome(claim)}, and {beaten}."
    )


def _undefended(judged: Judged, again: Confirmation) -> str:
    claim, (count, taus) = again.claim(CLEAN, "undefended"), again.undefended
    better = [h.name for h in HEADLINES if taus[h.name][0] > taus[CLEAN][0]]
    above = [h.name for h in HEADLINES if taus[h.name][1].above]
    act = "take the most accurate" if claim and claim.held else "accuracy is no safe guide"
    beside = f"{len(better)} of {len(HEADLINES)} measures had a larger tau" if better else "no measure had a larger tau"
    more = (
        f", and the intervals of {listed(above)} lie above 0 one by one" if above else ", and no interval lies above 0"
    )
    return (
        f"**If none was trained against attacks, {act}**: the claim that clean accuracy, with labels, ranks such "
        f"encoders {_outcome(claim)}; of these {count}, {beside}{more}."
    )


def _measures(judged: Judged, again: Confirmation) -> str:
    agreeing = [one for one in again.claims if one.claim.kind == "agrees" and one.claim.name != RADIUS]
    held = [one.claim.name for one in agreeing if one.held]
    failed = [one.claim.name for one in agreeing if not one.held]
    use = (
        f"**Of numbers without labels, look at {listed(held)}**, which held"
        if held
        else "**No number without labels held**"
    )
    lost = f"; {listed(failed)} did not and {'are' if len(failed) > 1 else 'is'} no longer advised" if failed else ""
    beyond = [f"{name} {_outcome(again.claim(name, 'beyond'))}" for name in BEYOND]
    return (
        f"{use} among encoders kept apart{lost}; the claim that one says more than radius, accuracy and the scale of codes "
        f"together: {listed(beyond)}."
    )


def foreseen(again: Confirmation, name: str) -> list[str]:
    """Return the threats for which a measure or baseline has an interval above 0 and a p below .05 after correction."""
    fit = [again.found[name, threat.name] for threat in THREATS]
    return [one.reference for one in fit if one.over_both.above and one.adjusted < LEVEL]


def _threats(again: Confirmation) -> str:
    counts = {h.name: len(foreseen(again, h.name)) for h in (*BASELINES, *HEADLINES)}
    most = sorted((name for name, count in counts.items() if count >= MOST), key=lambda name: -counts[name])
    named = [f"{name} ({counts[name]})" for name in most]
    said = (
        f"{listed(named)} ranked encoders under {MOST} or more"
        if named
        else f"nothing ranked encoders under {MOST} or more"
    )
    return (
        f"**Under other threats than the attack they are computed with**, {said} of {len(THREATS)} (other balls, a patch, "
        "transferred and query-only attacks, another program's, corruptions, edited copies)."
    )


def _never(judged: Judged, again: Confirmation) -> str:
    won = [h.name for h in HEADLINES if deceived(judged.everyone, h) or deceived(again.everyone, h)]
    grades = {one.measure: one.kind for one in judged.verdicts}
    nothing = [name for name, grade in grades.items() if grade not in ("use", "some")]
    return (
        f"**Never choose by one number alone**: an encoder that learned nothing came out first by {len(won)} of "
        f"{len(HEADLINES)}, and of {listed(nothing)} there is no evidence here at all."
    )
