"""What a study of many small encoders found of the numbers a report shows: which of them foresee robust later use.

``study.json`` is written from the study's stored results together with docs/study.md, which explains it. Tau is Kendall's:
1 if a number ranks encoders as probes under attack do, -1 if the other way round, 0 if the two orders are unrelated.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Literal

from holdfast.core.records import Number, Record
from holdfast.report import text

PAGE = "docs/study.md"
LABELS = {
    "use": "evidence",
    "some": "some evidence",
    "none": "no evidence",
    "against": "points the wrong way",
    "not judged": "not judged",
}
FINDINGS = {
    "use": "ranked them much as robust probes did",
    "some": "ranked them somewhat as robust probes did, with doubts",
    "none": "gave no evidence of how robust probes on them are",
    "against": "ranked them the other way round than robust probes did",
    "not judged": "could not be judged: too few encoders had a value, or it did not agree with itself on half of the images",
}


class Again(Record):
    """What a number did among encoders that were kept apart until the advice was fixed."""

    encoders: int
    tau: Number
    low: Number
    high: Number
    held: bool | None
    """Whether its evidence held, for all claims together; None of numbers without any."""

    @property
    def words(self) -> str:
        """Return it as part of a sentence."""
        tau = f"{_signed(self.tau)} [{_signed(self.low)}, {_signed(self.high)}]"
        outcome = (
            f"tau was {tau}" if self.held is None else f"this {'held' if self.held else 'did not hold'} (tau {tau})"
        )
        return f"among {self.encoders} encoders kept apart until then {outcome}"


class Evidence(Record):
    """What the study found of one number."""

    evaluation: str
    quantity: str
    advice: Literal["use", "some", "none", "against", "not judged"]
    """``use`` passed all its tests, ``some`` not all of them; the interval of ``none`` contains 0."""
    tau: Number
    low: Number
    high: Number
    encoders: int
    again: Again | None = None
    """None where no encoders were kept apart."""
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
        return LABELS[self.advice] if self.advice == "not judged" else f"{LABELS[self.advice]}: tau {_signed(self.tau)}"

    @property
    def sentence(self) -> str:
        """Return what was found as a sentence."""
        tau = f"tau {_signed(self.tau)} [{_signed(self.low)}, {_signed(self.high)}]"
        refuted = self.again is not None and self.again.held is False
        evidence = FINDINGS["some" if refuted else self.advice] + (f" ({tau})" if self.advice != "not judged" else "")
        again = f"; {self.again.words}" if self.again and self.advice != "not judged" else ""
        alone = f"{len(self.won) or 'none'} of {study().learned_nothing} encoders that learned nothing won by it"
        return f"In a study of {self.encoders} small encoders this number {evidence}{again}; {alone}."


class Baseline(Record):
    """What is known of encoders without any measure of robustness, and how far that ranked them as the probes did."""

    name: str
    tau: Number
    low: Number
    high: Number
    undefended: Number
    """Its tau among encoders of which none was trained against attacks; nan where it is the same for all of these."""

    @property
    def tau_in_words(self) -> str:
        """Return what was found."""
        return f"{self.name} (tau {_signed(self.tau)} [{_signed(self.low)}, {_signed(self.high)}])"


class Undefended(Record):
    """What ranked encoders as the probes did among those of which none was trained against attacks."""

    encoders: int
    names: tuple[str, ...]
    """As the study calls its numbers."""

    @property
    def sentence(self) -> str:
        """Return it in words."""
        among = f"Among the {self.encoders} encoders that were not trained against attacks"
        if not self.names:
            return f"{among}, no number predicted it."
        who = text.listed(list(self.names))
        return f"{among}, {who} predicted it, by intervals not corrected for how many numbers were looked at."


class Study(Record):
    """All of the study that the library knows."""

    encoders: int
    kept_apart: int = 0
    """Encoders that had no part in the advice and tested it; evidence that did not hold among them is none."""
    learned_nothing: int
    """So many more encoders that learned nothing were measured apart."""
    reference: str
    """The evaluation with labels that the numbers were compared with."""
    baselines: tuple[Baseline, ...]
    """What a number has to be better than."""
    undefended: Undefended | None
    """None where there were too few such encoders to be looked at."""
    measures: tuple[Evidence, ...]

    def of(self, evaluation: str, quantity: str) -> Evidence | None:
        """Return what is known of a number: of exactly this one, for another of its evaluation may say something else."""
        return next(
            (measure for measure in self.measures if (measure.evaluation, measure.quantity) == (evaluation, quantity)),
            None,
        )

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
    def order(self) -> str:
        """Return why rows stand in the order they do."""
        refuted = (
            f", or whose evidence did not hold among {self.kept_apart} encoders kept apart" if self.kept_apart else ""
        )
        sentence = (
            f"The order of rows and the word evidence come from a study of {self.encoders} small encoders ({PAGE}): which "
            "numbers predict robust accuracy, that of probes under attack? Rows are ordered: first the attack radius, then "
            "robust accuracy, if they were measured; then numbers that predicted it in the study, the largest tau first (1: "
            "same order, 0: unrelated); then those that did so with doubts, likewise; then numbers not studied; last those "
            f"without evidence{refuted}."
        )
        alone = [
            f"The {baseline.name} has tau {_signed(baseline.undefended)} there."
            for baseline in self.baselines
            if self.undefended and isfinite(baseline.undefended)
        ]
        return " ".join(
            filter(None, (sentence, self._beside, self.undefended.sentence if self.undefended else "", *alone))
        )

    @property
    def _beside(self) -> str:
        """Return what ranks encoders without any measure, and how few measures do so better."""
        if not self.baselines:
            return ""
        first = self.baselines[0]
        better = [measure for measure in self.measures if measure.tau > first.tau]
        baselines = text.listed([baseline.tau_in_words for baseline in self.baselines])
        many = text.counted(len(better), "measure") if better else "none of the measures"
        return (
            f"For comparison, what is known without any measure: {baselines}; {many} had a larger tau than "
            f"the {first.name}. A number has evidence only if it says more than these and the scale of codes together."
        )


@cache
def study() -> Study:
    """Return the study that came with this version of the library."""
    return Study.model_validate_json(files("holdfast.report.overview").joinpath("study.json").read_bytes())


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
