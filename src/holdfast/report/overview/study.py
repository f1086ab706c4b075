"""Results of a study of small encoders: which metrics of a report predict downstream robustness.

``study.json`` is written from the study's stored results together with docs/study.md, which explains it. Tau is Kendall's:
1 if a metric ranks encoders as probes under attack do, -1 if in reverse, 0 if the two orders are unrelated.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Literal

from holdfast.core.records import Number, Record
from holdfast.report import text

LABELS = {
    "use": "predicted it",
    "some": "predicted it, with doubts",
    "none": "no evidence",
    "against": "points the wrong way",
    "not judged": "not judged",
}
ELSEWHERE = {("attack-radius", "attack_radius"): ("breakaway", "attack_radius")}
"""Numbers that the study took by another evaluation than the one that reports them now."""


class Again(Record):
    """Result of a number on held-out encoders."""

    encoders: int
    tau: Number
    low: Number
    high: Number
    held: bool | None
    """Whether it was confirmed, for all claims together; None for numbers without evidence."""

    @property
    def words(self) -> str:
        """Return its tau with the interval."""
        return _interval(self)


class Evidence(Record):
    """Result of the study for one number."""

    evaluation: str
    quantity: str
    advice: Literal["use", "some", "none", "against", "not judged"]
    """``use`` passed all its tests, ``some`` not all of them; the interval of ``none`` contains 0."""
    tau: Number
    low: Number
    high: Number
    encoders: int
    again: Again | None = None
    """None where no encoders were held out."""
    won: tuple[str, ...]
    """Trivial encoders that would be chosen by this number where a trained one serves better."""

    @property
    def place(self) -> tuple[int, float]:
        """Return the sort key of a number: evidence, then τ descending."""
        kinds = ("use", "some")
        return (1 + kinds.index(self.advice), -self.tau) if self.advice in kinds else (4, 0.0)

    @property
    def words(self) -> str:
        """Return its tau with the interval."""
        return _interval(self) if self.advice != "not judged" else "–"

    @property
    def verdict(self) -> str:
        """Return the verdict in two or three words."""
        if self.again and self.again.held is not None:
            return "confirmed" if self.again.held else "not confirmed"
        return LABELS[self.advice]


class Baseline(Record):
    """Baseline of the study: a fact about encoders that needs no metric, and its τ with robust probes."""

    name: str
    tau: Number
    low: Number
    high: Number
    undefended: Number
    """Its tau among encoders of which none was trained against attacks; nan where it is the same for all of these."""


class Undefended(Record):
    """Numbers that ranked encoders without adversarial training as robust probes did."""

    encoders: int
    names: tuple[str, ...]
    """As the study calls its numbers."""

    @property
    def sentence(self) -> str:
        """Return it in words."""
        among = f"Among the {self.encoders} encoders that were not trained against attacks"
        if not self.names:
            return f"{among}, no number passed the study's test."
        who = text.listed(self.names)
        return f"{among}, {who} predicted it, by intervals not corrected for how many numbers were looked at."


class Study(Record):
    """All of the study that the library knows."""

    encoders: int
    kept_apart: int = 0
    """Encoders that had no part in the advice and tested it; evidence that did not hold among them is none."""
    learned_nothing: int
    """Trivial encoders that were measured besides."""
    reference: str
    """The evaluation with labels that the numbers were compared with."""
    baselines: tuple[Baseline, ...]
    """Baselines that a number has to beat."""
    undefended: Undefended | None
    """None where there were too few such encoders to be looked at."""
    measures: tuple[Evidence, ...]

    def of(self, evaluation: str, quantity: str) -> Evidence | None:
        """Return the evidence for exactly this number of an evaluation."""
        number = ELSEWHERE.get((evaluation, quantity), (evaluation, quantity))
        return next((each for each in self.measures if (each.evaluation, each.quantity) == number), None)

    def advice(self, evaluation: str, quantity: str) -> str:
        """Return whether a number may decide between encoders: use, some, none, ..., or nothing if it was not looked at.

        What is measured with labels is what the others were compared with, and may.
        """
        measure = self.of(evaluation, quantity)
        return "use" if evaluation == self.reference else measure.advice if measure else ""

    @property
    def best(self) -> tuple[str, ...]:
        """Return the evaluations whose numbers have the most evidence there is, the largest tau first."""
        most = next((kind for kind in ("use", "some") if any(measure.advice == kind for measure in self.measures)), "")
        measures = sorted(self.measures, key=lambda measure: measure.place)
        return tuple(dict.fromkeys(measure.evaluation for measure in measures if measure.advice == most))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the sentences that explain the table."""
        baselines = text.listed([f"{baseline.name} (τ {_interval(baseline)})" for baseline in self.baselines])
        alone = [
            f"The {baseline.name} has τ {_signed(baseline.undefended)} there."
            for baseline in self.baselines
            if self.undefended and isfinite(baseline.undefended)
        ]
        parts = (
            "τ is Kendall's rank agreement with robust probe accuracy: 1 is the same order, 0 is unrelated. "
            "Confirmed: τ above 0 on held-out encoders after correction for all numbers tested.",
            f"Known without any measure: {baselines}." if baselines else "",
            " ".join([self.undefended.sentence, *alone]) if self.undefended else "",
        )
        return tuple(filter(None, parts))


@cache
def study() -> Study:
    """Return the study that came with this version of the library."""
    return Study.model_validate_json(files("holdfast.report.overview").joinpath("study.json").read_bytes())


def _interval(found: Again | Evidence | Baseline) -> str:
    return f"{_signed(found.tau)} [{_signed(found.low)}, {_signed(found.high)}]"


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
