"""What is found and may be said of each measure: from this the page is written, and the file that reports quote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from studies.agreement.collected import Found, read
from studies.agreement.conclusions import Resampled, concluded
from studies.agreement.limits import TRAINED, UNDEFENDED, Strata, stratified
from studies.agreement.measures import HEADLINES, Headline
from studies.agreement.references import PRIMARY
from studies.agreement.verdicts import Verdict, deceived, verdict
from studies.agreement.words import Agreements

DIGITS = 4


@dataclass(frozen=True)
class Judged:
    """All encoders that were measured, and what they say of the measures."""

    everyone: Found
    found: Agreements
    """Of trained encoders."""
    strata: Strata
    verdicts: Sequence[Verdict]
    """One for each headline number, in their order."""

    @property
    def trained(self) -> Found:
        """Return what was found of the encoders that learned something."""
        return self.everyone.only(~self.everyone.degenerate)


def judged(folder: Path) -> Judged:
    """Return what the results in ``folder`` allow to say."""
    everyone = read(folder)
    resampled = Resampled.of(everyone)
    found, strata = concluded(resampled.only(~everyone.degenerate)), stratified(resampled)
    verdicts = [
        verdict(
            found[headline.name, PRIMARY],
            [strata[kind][1][headline.name][1] for kind in (UNDEFENDED, TRAINED) if strata[kind][1]],
        )
        for headline in HEADLINES
    ]
    return Judged(everyone, found, strata, verdicts)


def quoted(one: Judged) -> str:
    """Return what reports quote, as JSON: the measures under the names that the library has for them."""
    said = {
        "encoders": len(one.trained.members),
        "learned_nothing": len(one.everyone.members) - len(one.trained.members),
        "reference": "robust-accuracy",
        "undefended": _undefended(one),
        "measures": [_quoted(one, headline, found) for headline, found in zip(HEADLINES, one.verdicts, strict=True)],
    }
    return json.dumps(said, indent=1) + "\n"


def _undefended(one: Judged) -> dict[str, object] | None:
    count, found = one.strata[UNDEFENDED]
    return {"encoders": count, "names": [name for name, (_, (low, _)) in found.items() if low > 0]} if found else None


def _quoted(one: Judged, headline: Headline, said: Verdict) -> dict[str, object]:
    agreement = one.found[headline.name, PRIMARY]
    tau, low, high = (
        round(value, DIGITS) if isfinite(value) else None for value in (agreement.tau, *agreement.over_both)
    )
    return {
        "evaluation": headline.evaluation,
        "quantity": headline.quantity or headline.name.replace(" ", "_"),
        "advice": said.kind,
        "tau": tau,
        "low": low,
        "high": high,
        "encoders": agreement.n,
        "won": [winner.case for winner in deceived(one.everyone, headline)],
    }
