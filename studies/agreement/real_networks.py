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
    """Yield the results on real networks."""
    yield from ("", "## Real networks", "")
    if real is None:
        yield "None was measured: this page is about small encoders of small images."
        return
    trained = real.trained
    kinds = list(dict.fromkeys(map(_kind, trained.members)))
    yield (
        f"All of the above is about small networks. {len(trained.members)} others are EfficientNet-Lite 0, 1 and 2, trained "
        f"on ImageNet, at {photographed.SIDE} pixels: {listed(kinds)}. `holdfast harden` made the hardened ones in "
        f"{photographed.EPOCHS} epochs of 288 quarters of crops of 19 photographs. The same quarters are the reference set "
        "of the probes. Metrics use up to 144 other quarters, and probes further ones; the label is the photograph."
    )
    yield ""
    yield (
        "Networks and settings were fixed in code before the measurement. They were reduced once, for lack of time, when "
        f"one network had been measured. Not measured, because proofs take too long here: {listed(NOT_MEASURED)}."
    )
    yield from _table(real)
    yield ""
    yield (
        f"τ is over pairs of these networks; *{WITHIN}* compares each network with its own copies and trainings only. "
        f"Intervals redraw images and {len(NETWORKS)} families (a network with everything made from it), which are few. "
        "They treat quarters of one photograph as independent. *Images*: number of images behind a number; the "
        f"{PRIMARY} has {_images(real.trained, PRIMARY)}."
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
    heads = ["metric", *(f"{name} ({count})" for name, (count, _) in real.strata.items()), "networks", "images"]
    yield from table(f"τ with {PRIMARY} among real networks", heads, rows)
    silent = [one.name for one in order if one.name not in NOT_MEASURED and real.known(one.name) < FEWEST]
    if silent:
        yield ""
        yield f"Not listed: {listed([f'{name} (known for {real.known(name)} networks)' for name in silent])}."
    equal = [one.name for one in order if real.known(one.name) and np.nanstd(real.trained.values[one.name]) == 0]
    if equal:
        yield ""
        yield f"Unknown, because equal for all networks: {listed(equal)}."


def _images(found: Found, name: str) -> str:
    """Return how many images a number is made of, where it is made of images."""
    known = next((one for one in found.series.get(name, ()) if one is not None), None)
    return "" if known is None else str(known.shape[-1])


def _sentences(real: RealNetworks) -> Iterator[str]:
    taus, alone = real.strata[ALL][1], real.strata[UNDEFENDED][1]
    claimed = [one.name for one in CLAIMS if one.kind == "agrees" and one.name not in NOT_MEASURED]
    above = [name for name in claimed if taus[name][1].above]
    below = [name for name in claimed if name not in above]
    yield (
        f"- Claims of the advice with τ above 0 here: {listed(above) if above else 'none'}; without: "
        f"{listed(below) if below else 'none'}. Each was tested by itself, beyond its Monte Carlo error, not corrected for "
        "their number."
    )
    if alone:
        names = [one.name for one in HEADLINES if alone[one.name][1].above]
        yield (
            f"- Without adversarial training, {CLEAN} (with labels) has τ {value(*alone[CLEAN])}. Metrics with an interval "
            f"above 0 there: {listed(names) if names else 'none'}."
        )
    lost = {choice.by: choice.mean for choice in choices(real.trained)}
    ways = [*dict.fromkeys((RADIUS, CLEAN, *claimed)), "random"]
    said = [f"{lost[by]:.3f} {'at' if by == 'random' else 'by'} {by}" for by in ways]
    yield f"- {PRIMARY.capitalize()} lost by choosing one: {listed(said)}."
    yield first_by_nothing(real.everyone)
    yield from _served_by_nothing(real.everyone)
    yield f"- Measuring took {np.median(real.everyone.values[SECONDS]):.0f} seconds of one core per network (median)."


def _served_by_nothing(everyone: Found) -> Iterator[str]:
    """Yield which trivial encoders come before all networks by the reference itself."""
    served, accuracy = everyone.values[PRIMARY], everyone.values[CLEAN]
    best = served[~everyone.degenerate].max()
    above = [
        f"{member.case} ({robust:.3f}, {CLEAN} {right:.2f})"
        for member, robust, right in zip(everyone.members, served, accuracy, strict=True)
        if member.degenerate and robust > best
    ]
    if above:
        yield (
            f"- Trivial encoders with a larger {PRIMARY} than the best network ({best:.3f}): {listed(above)}. Compare only "
            f"encoders of similar {CLEAN} by {PRIMARY}."
        )
