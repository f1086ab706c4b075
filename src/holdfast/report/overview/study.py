"""What a study of many small encoders found of the numbers a report shows: which of them foresee robust later use.

``study.json`` is written from the study's stored results together with docs/study.md, which explains it. Tau is Kendall's:
1 if a number ranks encoders as probes under attack do, -1 if the other way round, 0 if neither.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from holdfast.core.records import Number, Record
from holdfast.report import text

PAGE = "docs/study.md"
LABELS = {
    "use": "evidence",
    "some": "some evidence",
    "none": "no evidence",
    "against": "points the wrong way",
    "unknown": "not known",
}
FINDINGS = {
    "use": "ranked them much as robust probes did",
    "some": "ranked them somewhat as robust probes did, with doubts",
    "none": "gave no evidence of how robust probes on them are",
    "against": "ranked them the other way round than robust probes did",
    "unknown": "had too few values to be judged",
}


class Evidence(Record):
    """What the study found of one number."""

    evaluation: str
    quantity: str
    advice: Literal["use", "some", "none", "against", "unknown"]
    """``use`` passed all its tests, ``some`` not all of them; the interval of ``none`` contains 0."""
    tau: Number
    low: Number
    high: Number
    encoders: int
    won: tuple[str, ...]
    """Encoders that learned nothing, but would be chosen by this number where a trained one serves better."""

    @property
    def place(self) -> tuple[int, float]:
        """Return what sorts numbers: by evidence, then the largest tau first; 0 and 3 are for what was not looked at."""
        kinds = ("use", "some")
        return (1 + kinds.index(self.advice), -self.tau) if self.advice in kinds else (4, 0.0)

    @property
    def badge(self) -> str:
        """Return how sure the study makes one of such a number, in two or three words."""
        return LABELS[self.advice] if self.advice == "unknown" else f"{LABELS[self.advice]}: tau {_signed(self.tau)}"

    def sentence(self, quantity: str) -> str:
        """Return what was found as a sentence; of another ``quantity`` than the study's, as one of a relative."""
        whose = "this number" if quantity == self.quantity else f"its {text.words(self.quantity)}"
        tau = f"tau {_signed(self.tau)} [{_signed(self.low)}, {_signed(self.high)}]"
        evidence = FINDINGS[self.advice] + (f" ({tau})" if self.advice != "unknown" else "")
        alone = f"{len(self.won) or 'none'} of {study().learned_nothing} encoders that learned nothing won by it"
        return f"In a study of {self.encoders} small encoders {whose} {evidence}; {alone}."


class Undefended(Record):
    """What ranked encoders as the probes did among those of which none was trained against attacks."""

    encoders: int
    names: tuple[str, ...]
    """As the study calls its numbers."""

    @property
    def sentence(self) -> str:
        """Return it in words."""
        among = f"Among the {self.encoders} of which none was trained against attacks"
        if not self.names:
            return f"{among}, no number did."
        who = text.listed(list(self.names))
        return f"{among}, {who} did, by intervals not corrected for how many numbers were looked at."


class Study(Record):
    """All of the study that the library knows."""

    encoders: int
    learned_nothing: int
    """So many more encoders that learned nothing were measured apart."""
    reference: str
    """The evaluation with labels that the numbers were compared with."""
    undefended: Undefended | None
    """None where there were too few such encoders to be looked at."""
    measures: tuple[Evidence, ...]

    def of(self, evaluation: str, quantity: str) -> Evidence | None:
        """Return what is known of a number: of itself, or of the one number of its evaluation that was looked at."""
        measures = [measure for measure in self.measures if measure.evaluation == evaluation]
        return next(
            (measure for measure in measures if measure.quantity == quantity),
            measures[0] if len(measures) == 1 else None,
        )

    def advice(self, evaluation: str, quantity: str) -> str:
        """Return whether a number may decide between encoders: use, some, none, ..., or nothing if it was not looked at.

        What is measured with labels is what the others were compared with, and may.
        """
        measure = self.of(evaluation, quantity)
        return "use" if evaluation == self.reference else measure.advice if measure else ""

    @property
    def best(self) -> tuple[str, ...]:
        """Return the evaluations whose numbers passed all tests, the largest tau first."""
        return tuple(
            measure.evaluation
            for measure in sorted(self.measures, key=lambda measure: measure.place)
            if measure.advice == "use"
        )

    @property
    def order(self) -> str:
        """Return why rows stand in the order they do."""
        sentence = (
            f"The order of rows, and the word evidence, come from a study of {self.encoders} small encoders ({PAGE}): did a "
            "number rank encoders as probes under attack later did? Below the radius at which images are mistaken come such "
            "probes themselves, if they were measured; then what did, by tau (1: the same order, 0: neither); what did with "
            "doubts; what was not looked at; last what gave no evidence."
        )
        return f"{sentence} {self.undefended.sentence}" if self.undefended else sentence


@cache
def study() -> Study:
    """Return the study that came with this version of the library."""
    return Study.model_validate_json(files("holdfast.report.overview").joinpath("study.json").read_bytes())


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
