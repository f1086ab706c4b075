"""What is found and may be said of each measure: from this the page is written, and the file that reports quote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path

from studies.agreement.collected import Found, read, read_kept, read_real
from studies.agreement.conclusions import Resampled, among, beyond, ceiling, concluded
from studies.agreement.confirmation import Confirmed, confirmed, lowered
from studies.agreement.kept_apart import ENOUGH
from studies.agreement.limits import EQUAL, TRAINED, UNDEFENDED, Strata, stratified
from studies.agreement.measures import BASELINES, CLEAN, HEADLINES, RADIUS, SCALE, Headline
from studies.agreement.rankings import Interval
from studies.agreement.real_networks import RealNetworks, real_networks
from studies.agreement.references import PRIMARY, REFERENCES
from studies.agreement.threats import THREATS
from studies.agreement.verdicts import Verdict, deceived, verdict
from studies.agreement.words import Agreements

DIGITS = 4


@dataclass(frozen=True)
class Undefended:
    """What encoders say none of which was trained against attacks."""

    count: int
    taus: Mapping[str, tuple[float, Interval]]
    beyond: Mapping[str, Interval]
    """Tau of each number less that of clean accuracy."""
    beyond_scale: Mapping[str, Interval]
    """The same less that of the median distance."""
    ceiling: float
    """What tau of clean accuracy can at most be expected to be, for chance in images."""


@dataclass(frozen=True)
class Confirmation:
    """Results of encoders that were held out until the advice was fixed."""

    everyone: Found
    found: Agreements
    """Of trained ones, also under threats that no measure was computed with."""
    beyond: Mapping[str, Interval]
    """Tau of each measure less that of the training radius."""
    undefended: Undefended
    claims: Sequence[Confirmed]

    @property
    def trained(self) -> Found:
        """Return what was found of the encoders that learned something."""
        return self.everyone.only(~self.everyone.degenerate)

    def claim(self, name: str, kind: str) -> Confirmed | None:
        """Return what became of a claim, if it was made."""
        return next((one for one in self.claims if (one.claim.name, one.claim.kind) == (name, kind)), None)


@dataclass(frozen=True)
class Judged:
    """All encoders that were measured, and what they say of the measures."""

    everyone: Found
    found: Agreements
    """Of trained encoders."""
    beyond: Mapping[str, Interval]
    """Tau of each measure less that of the training radius."""
    strata: Strata
    verdicts: Sequence[Verdict]
    """One for each headline number, in their order, none better than held-out encoders allow."""
    again: Confirmation | None = None
    """None where too few of these were measured."""
    second: Confirmation | None = None
    """What second trainings of the same say, which decides nothing; None where too few of these were measured."""
    apart: int = 0
    """How many of these were measured that learned something."""
    real: RealNetworks | None = None
    """None where too few of these were measured."""

    @property
    def trained(self) -> Found:
        """Return what was found of the encoders that learned something."""
        return self.everyone.only(~self.everyone.degenerate)


def judged(folder: Path) -> Judged:
    """Return what the results in ``folder`` allow to say."""
    everyone = read(folder / "zoo")
    resampled = Resampled.of(everyone)
    trained = resampled.only(~everyone.degenerate)
    found, strata = concluded(trained), stratified(resampled)
    verdicts = [
        verdict(
            found[headline.name, PRIMARY],
            [strata[kind][1][headline.name][1] for kind in (UNDEFENDED, TRAINED) if strata[kind][1]],
            strata[EQUAL][1][headline.name][1],
        )
        for headline in HEADLINES
    ]
    kept = read_kept(folder / "kept", 0)
    again, second = confirmation(kept), confirmation(read_kept(folder / "kept", 1))
    verdicts = lowered(verdicts, again.claims if again else [])
    apart = sum(not member.degenerate for member in kept.members)
    real = real_networks(read_real(folder / "real"))
    return Judged(everyone, found, beyond(trained, RADIUS), strata, verdicts, again, second, apart, real)


def confirmation(everyone: Found) -> Confirmation | None:
    """Return what held-out encoders allow to say, None where they are too few."""
    if sum(~everyone.degenerate) < ENOUGH:
        return None
    kept = Resampled.of(everyone.only(~everyone.degenerate), (REFERENCES[0], *THREATS))
    return Confirmation(everyone, concluded(kept), beyond(kept, RADIUS), undefended(kept), confirmed(kept))


def undefended(resampled: Resampled) -> Undefended:
    """Return what those say that were not trained against attacks."""
    chosen = resampled.found.eps == 0
    alone = resampled.only(chosen)
    return Undefended(
        int(chosen.sum()), among(alone), beyond(alone, CLEAN), beyond(alone, SCALE), ceiling(alone, CLEAN)
    )


def quoted(one: Judged) -> str:
    """Return what reports quote, as JSON: the measures under the names that the library has for them."""
    said = {
        "encoders": len(one.trained.members),
        "kept_apart": len(one.again.trained.members) if one.again else 0,
        "learned_nothing": len(one.everyone.members) - len(one.trained.members),
        "reference": "robust-accuracy",
        "baselines": [_baseline(one, headline.name) for headline in BASELINES],
        "undefended": _undefended(one),
        "measures": [_quoted(one, headline, found) for headline, found in zip(HEADLINES, one.verdicts, strict=True)],
    }
    return json.dumps(said, indent=1) + "\n"


def _baseline(one: Judged, name: str) -> dict[str, object]:
    """Return what is known without a measure: among all encoders, and among those not trained against attacks."""
    alone = one.strata[UNDEFENDED][1]
    undefended = alone[name][0] if alone else nan
    return {"name": name, **_taus(one, name), "undefended": round(undefended, DIGITS) if isfinite(undefended) else None}


def _undefended(one: Judged) -> dict[str, object] | None:
    count, found = one.strata[UNDEFENDED]
    names = [headline.name for headline in HEADLINES if found and found[headline.name][1].above]
    return {"encoders": count, "names": names} if found else None


def _taus(one: Judged, name: str) -> dict[str, float | None]:
    agreement = one.found[name, PRIMARY]
    values = {"tau": agreement.tau, "low": agreement.over_both.low, "high": agreement.over_both.high}
    return {key: round(value, DIGITS) if isfinite(value) else None for key, value in values.items()}


def _quoted(one: Judged, headline: Headline, said: Verdict) -> dict[str, object]:
    return {
        "evaluation": headline.evaluation,
        "quantity": headline.quantity or headline.name.replace(" ", "_"),
        "advice": said.kind,
        **_taus(one, headline.name),
        "encoders": one.found[headline.name, PRIMARY].n,
        "again": _again(one, headline.name),
        "won": [winner.case for winner in deceived(one.everyone, headline)],
    }


def _again(one: Judged, name: str) -> dict[str, object] | None:
    """Return what held-out encoders said of a measure; whether it held is known of those with evidence alone."""
    if one.again is None:
        return None
    agreement, claim = one.again.found[name, PRIMARY], one.again.claim(name, "agrees")
    values = {"tau": agreement.tau, "low": agreement.over_both.low, "high": agreement.over_both.high}
    numbers = {key: round(value, DIGITS) if isfinite(value) else None for key, value in values.items()}
    return {"encoders": agreement.n, **numbers, "held": claim.held if claim else None}
