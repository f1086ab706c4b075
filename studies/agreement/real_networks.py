"""The part of the page about real networks: whether what was found of small encoders is seen among them too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from studies.agreement import photographed
from studies.agreement.collected import SECONDS, Found
from studies.agreement.conclusions import FEWEST, Resampled, among, choices
from studies.agreement.confirmation import CLAIMS
from studies.agreement.limits import Strata, encoders, first_by_nothing
from studies.agreement.measures import CLEAN, HEADLINES, JUDGED, RADIUS
from studies.agreement.members import Member
from studies.agreement.photographed import NETWORKS, REAL
from studies.agreement.references import PRIMARY
from studies.agreement.words import listed, value
from studies.common import table

ALL, UNDEFENDED, WITHIN = "all", "not trained against attacks", "within a network"
NOT_MEASURED = ("certified radius",)


@dataclass(frozen=True)
class RealNetworks:
    """What was found of real networks, and how far measures rank them as probes under attack do."""

    everyone: Found
    strata: Strata

    @property
    def trained(self) -> Found:
        """Return what was found of those that learned something."""
        return self.everyone.only(~self.everyone.degenerate)

    def known(self, name: str) -> int:
        """Return of how many of them a measure says anything."""
        return int(np.isfinite(self.trained.values[name]).sum())


def real_networks(everyone: Found) -> RealNetworks | None:
    """Return what real networks allow to say, None where too few were measured."""
    if sum(~everyone.degenerate) < FEWEST:
        return None
    resampled = Resampled.of(everyone.only(~everyone.degenerate))
    found = resampled.found
    undefended = found.eps == 0
    strata = {
        ALL: (len(found.members), among(resampled)),
        UNDEFENDED: (int(undefended.sum()), among(resampled.only(undefended)) if sum(undefended) >= FEWEST else {}),
        WITHIN: (len(found.members), among(resampled, found.family)),
    }
    return RealNetworks(everyone, strata)


def section(real: RealNetworks | None) -> Iterator[str]:
    """Yield what is seen of real networks."""
    yield from ("", "## Real networks", "")
    if real is None:
        yield "None was measured: all that is said here is of small encoders of small images."
        return
    trained = real.trained
    kinds = list(dict.fromkeys(map(_kind, trained.members)))
    yield (
        f"All of the above is of small networks. {len(trained.members)} others are EfficientNet-Lite 0, 1 and 2, trained on "
        f"ImageNet, at {photographed.SIDE} pixels: {listed(kinds)}. `holdfast harden` made the hardened ones "
        f"in {photographed.EPOCHS} epochs of 288 quarters of crops of 19 photographs, which are also the bank that probes "
        "learn from. Measures look at up to 144 other quarters, probes at others again, whose labels say which photograph "
        "they are of. Their list and settings were fixed in code "
        "before they were measured, and shortened once, for want of time, when one of them had been; "
        f"{listed(NOT_MEASURED)} was left out, for nothing is proved of such networks in a time "
        "that many are given."
    )
    yield from _table(real)
    yield ""
    yield (
        f"Tau is over pairs of these networks; *{WITHIN}* compares each with its own copies and trainings alone. Intervals "
        f"redraw images and {len(NETWORKS)} families, a network with what is made of it, which are few, and treat quarters "
        "of one photograph as if they were independent. *Images*: those that a number is made of, where it is made of such; "
        f"the {PRIMARY} has {_images(real.trained, PRIMARY)}."
    )
    yield ""
    yield from _sentences(real)
    yield from encoders(real.everyone, REAL, "The real networks", 1)


def _kind(member: Member) -> str:
    """Return in words what was done to a network."""
    if member.weights:
        return "as published"
    if member.copy:
        return f"with {member.copy}"
    return f"hardened at {255 * member.eps:g}/255" if member.eps else "hardened for noise"


def _table(real: RealNetworks) -> Iterator[str]:
    taus = real.strata[ALL][1]
    order = sorted(JUDGED, key=lambda one: -np.nan_to_num(taus[one.name][0], nan=-2))
    rows = [
        [
            one.name,
            *(value(*found[one.name]) if found else "too few" for _, found in real.strata.values()),
            str(real.known(one.name)),
            _images(real.trained, one.name),
        ]
        for one in order
        if real.known(one.name) >= FEWEST
    ]
    heads = ["measure", *(f"{name} ({count})" for name, (count, _) in real.strata.items()), "known of", "images"]
    yield from table(f"Tau with {PRIMARY} among real networks", heads, rows)
    silent = [one.name for one in order if one.name not in NOT_MEASURED and real.known(one.name) < FEWEST]
    if silent:
        yield ""
        yield f"Not listed: {listed([f'{name}, which is known of {real.known(name)} of them' for name in silent])}."
    equal = [one.name for one in order if real.known(one.name) and np.nanstd(real.trained.values[one.name]) == 0]
    if equal:
        yield ""
        yield f"Unknown because it is the same for all of them: {listed(equal)}."


def _images(found: Found, name: str) -> str:
    """Return how many images a number is made of, where it is made of images."""
    known = next((one for one in found.series.get(name, ()) if one is not None), None)
    return "" if known is None else str(known.shape[-1])


def _sentences(real: RealNetworks) -> Iterator[str]:
    taus, alone = real.strata[ALL][1], real.strata[UNDEFENDED][1]
    claimed = [one.name for one in CLAIMS if one.kind == "agrees" and one.name not in NOT_MEASURED]
    above = [name for name in claimed if taus[name][1].above]
    below = [name for name in claimed if name not in above]
    seen = f"{listed(above)} {'have' if len(above) > 1 else 'has'} an interval above 0" if above else "none is above 0"
    rest = f"; {listed(below)} not" if above and below else ""
    yield (
        f"- Of what the advice once claimed, {seen} here{rest} (one by one, beyond their Monte Carlo error, not corrected "
        "for their number)."
    )
    if alone:
        names = [one.name for one in HEADLINES if alone[one.name][1].above]
        yield (
            f"- Among those not trained against attacks {CLEAN}, with labels, has tau {value(*alone[CLEAN])}; "
            + (
                f"the intervals of {listed(names)} lie above 0 there."
                if names
                else "no measure has an interval above 0."
            )
        )
    lost = {choice.by: choice.mean for choice in choices(real.trained)}
    ways = [*dict.fromkeys((RADIUS, CLEAN, *claimed)), "random"]
    said = [f"{lost[by]:.3f} {'at' if by == 'random' else 'by'} {by}" for by in ways]
    yield f"- {PRIMARY.capitalize()} lost by choosing one: {listed(said)}."
    yield first_by_nothing(real.everyone)
    yield from _served_by_nothing(real.everyone)
    yield f"- Measuring one took {np.median(real.everyone.values[SECONDS]):.0f} seconds of one core (median)."


def _served_by_nothing(everyone: Found) -> Iterator[str]:
    """Yield which encoders that learned nothing come before all networks by the reference itself."""
    served, accuracy = everyone.values[PRIMARY], everyone.values[CLEAN]
    best = served[~everyone.degenerate].max()
    above = [
        f"{member.case} ({robust:.3f}, of {right:.2f} clean)"
        for member, robust, right in zip(everyone.members, served, accuracy, strict=True)
        if member.degenerate and robust > best
    ]
    if above:
        yield (
            f"- By the {PRIMARY} itself {listed(above)} come before all of these networks, the best of which has "
            f"{best:.3f}: compare only encoders of like {CLEAN} by it."
        )
