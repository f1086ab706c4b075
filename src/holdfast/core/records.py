"""Frozen records that evaluations return and the store keeps, with their JSON schema.

Numbers never come alone: a ``Series`` has a unit and a bound type, an ``Estimate`` adds interval, method and n.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import StrEnum
from importlib import import_module
from math import isfinite, isnan, nan
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator

from holdfast.core.errors import BudgetSpentError, HoldfastError

SCHEMA_VERSION = 1
WarningKind = Literal["", "collapsed", "duplicates"]
"""Causes that other code acts on: all images have one embedding; some are exact copies of others."""


Shared = TypeVar("Shared", bound=Hashable)
Item = TypeVar("Item")


def grouped(pairs: Iterable[tuple[Shared, Item]]) -> dict[Shared, list[Item]]:
    """Return what pairs of a key and an item have under each key, in their order.

    Example:
        >>> grouped([("a", 1), ("b", 2), ("a", 3)])
        {'a': [1, 3], 'b': [2]}
    """
    groups: dict[Shared, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def _encode(value: float) -> float | str | None:
    if isfinite(value):
        return value
    return None if isnan(value) else ("Infinity" if value > 0 else "-Infinity")


Number = Annotated[
    float,
    BeforeValidator(lambda value: nan if value is None else value),
    PlainSerializer(_encode, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}, {"enum": ["Infinity", "-Infinity"]}]}),
]
"""A float; JSON has no NaN or infinity, so these are stored as null and as words."""


class Record(BaseModel):
    """A frozen record that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Claim(StrEnum):
    """Bound type of a number: lower bound, upper bound or estimate.

    Attacks bound a robust radius from above, certificates from below.
    """

    LOWER = "lower bound"
    UPPER = "upper bound"
    ESTIMATE = "estimate"


Conditions = dict[str, str]
"""Under which settings a number was taken: ball, attack, divergence ..., each in its text form."""


class Series(Record):
    """One value per sample. A missing value is nan, and ``reasons`` says why (by position)."""

    quantity: str
    """Name of the metric."""
    conditions: Conditions = Field(default_factory=dict)
    """Conditions of the measurement, by name."""
    values: tuple[Number, ...]
    """One value per sample; nan if missing."""
    unit: str
    """Unit of the values."""
    claim: Claim
    """Bound type of the values."""
    of: str
    """Quantity that the values bound or estimate."""
    limits: tuple[Number, Number] | None = None
    """Range of the value of an image not sampled, if the unit does not imply it (fractions: [0, 1])."""
    reasons: dict[int, str] = Field(default_factory=dict)
    """Reason of each missing value, by position."""
    name: str = ""
    """Name in reports; empty where the metric is spelled out."""


class Resolution(Record):
    """How small a p-value of random divisions can be, whatever the images show."""

    tests: int
    """Number of tests by which the p-value is multiplied."""
    draws: int
    """Random divisions that were drawn."""
    by_images: Number
    """Smallest p-value that divisions of this number of images, or groups, allow."""

    @property
    def least(self) -> float:
        """The smallest value there can be."""
        return min(1.0, self.tests * max(1 / (self.draws + 1), self.by_images))


class Estimate(Record):
    """Number about a population with its interval; nan where it is undefined."""

    quantity: str
    """Name of the metric."""
    conditions: Conditions = Field(default_factory=dict)
    """Conditions of the measurement, by name."""
    value: Number
    """Value; nan if undefined."""
    low: Number
    """Lower end of the interval."""
    high: Number
    """Upper end of the interval."""
    n: int
    """Samples that the number is about."""
    method: str
    """Method of the interval."""
    confidence: float = 0.95
    """Confidence of the interval, in (0, 1)."""
    unit: str
    """Unit of the value."""
    claim: Claim
    """Bound type of the value."""
    of: str
    """Quantity that the value bounds or estimates."""
    better: Literal["lower", "higher", "neither"]
    """Whether lower or higher values are better, or neither."""
    series: str | None = None
    """Name of the series that is summarised, so that two encoders can be compared image by image."""
    statistic: Literal["mean", "median", "whole", "other"] = "other"
    """Statistic of the series; ``whole`` needs all inputs at once, so that only its interval can be compared."""
    reason: str | None = None
    """Why the value is undefined, or samples are missing."""
    name: str = ""
    """Name in reports; empty where the metric is spelled out."""
    aim: str = ""
    """Goal of the attack in words, where the conditions name it in short (``adaptive at retrieval``)."""
    resolution: Resolution | None = None
    """Resolution of a p-value of random divisions."""
    most: Number | None = None
    """Largest value that this number of images allows; None if no such limit is known."""


class Verdict(Record):
    """Answer to a yes-or-no question; ``unknown`` is an answer.

    A search that could have refuted it and did not leaves ``no violation found``, which is no proof.
    """

    question: str
    """Question in words."""
    status: Literal["proved", "refuted", "no violation found", "unknown"]
    """Answer."""
    reason: str
    """Reason of the answer."""
    witness: dict[str, str] = Field(default_factory=dict)
    """What shows the answer, by name."""


class Curve(Record):
    """A quantity as a function of another, with a band where there is one."""

    quantity: str
    """Name of the metric."""
    conditions: Conditions = Field(default_factory=dict)
    """Conditions of the measurement, by name."""
    x_label: str
    """Label of the horizontal axis."""
    y_label: str
    """Label of the vertical axis."""
    x: tuple[Number, ...]
    """Horizontal coordinates."""
    y: tuple[Number, ...]
    """Vertical coordinates."""
    low: tuple[Number, ...] = ()
    """Lower edge of the band; empty without a band."""
    high: tuple[Number, ...] = ()
    """Upper edge of the band; empty without a band."""
    reference: tuple[Number, ...] = ()
    """Value of the best possible encoder at each ``x``, where it is known."""
    shaded: bool = False
    """True if the area under the curve is a metric: its fraction of the area under the reference."""
    colours: dict[str, tuple[Number, ...]] = Field(default_factory=dict)
    """Values that colour the points, by name; the points are then a cloud, drawn once per name."""
    name: str = ""
    """Name in reports; empty where the metric is spelled out."""


class Picture(Record):
    """A row of small images that belong together: clean, attacked, target."""

    caption: str
    """Caption of the row."""
    labels: tuple[str, ...]
    """One label per image."""
    pngs: tuple[str, ...]
    """Base64 PNG files, one per label."""


class Warned(str):
    """A sentence of ``Findings.warnings`` that knows its cause."""

    __slots__ = ("kind",)
    kind: WarningKind

    def __new__(cls, sentence: str, kind: WarningKind = "") -> Warned:
        made = super().__new__(cls, sentence)
        made.kind = kind
        return made


class Findings(Record):
    """What an evaluation concluded about one encoder on one set of images."""

    ids: tuple[str, ...]
    """Ids of the samples that every series runs over."""
    series: tuple[Series, ...] = ()
    """Values per sample."""
    estimates: tuple[Estimate, ...] = ()
    """Numbers about the population, with intervals."""
    curves: tuple[Curve, ...] = ()
    """Metrics as functions of another quantity."""
    verdicts: tuple[Verdict, ...] = ()
    """Answers to yes-or-no questions."""
    pictures: tuple[Picture, ...] = ()
    """Pictures of single samples."""
    warnings: tuple[str, ...] = ()
    """Sentences to read beside the numbers, such as about a collapsed encoder or duplicates."""
    kinds: dict[str, WarningKind] = Field(default_factory=dict)
    """Cause of each warning that is ``Warned``, by its sentence."""
    groups: tuple[str, ...] = ()
    """Group of each sample (slide, patient or video); empty if there are no groups."""

    @model_validator(mode="before")
    @classmethod
    def _with_kinds(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        kinds: dict[str, WarningKind] = {}
        for warning in given.get("warnings", ()):
            if isinstance(warning, Warned):
                kinds[str(warning)] = warning.kind
            elif str(warning).startswith("COLLAPSED"):  # as results stored by version 0.2 have them
                kinds[warning] = "collapsed"
            elif str(warning).startswith("DUPLICATES"):
                kinds[warning] = "duplicates"
        return given if not kinds else {**given, "kinds": {**given.get("kinds", {}), **kinds}}

    @property
    def collapsed(self) -> bool:
        """True if the encoder gives one embedding to all images, so that it only looks robust."""
        return any(self.kinds.get(warning) == "collapsed" for warning in self.warnings)


class EncoderInfo(Record):
    """Which encoder was measured."""

    name: str
    """Name in reports."""
    source: str
    """Origin of the encoder."""
    fingerprint: str
    """Hash of everything that decides the embeddings."""
    parameters: int
    """Number of parameters."""
    features: int
    """Features of an embedding."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """How an image becomes an embedding: input, normalisation, resizing and pooling; empty if not recorded."""
    warnings: tuple[str, ...] = ()
    """What is unknown about the encoder and may spoil all of its numbers."""


class ImagesInfo(Record):
    """On which images."""

    name: str
    """Name of the set in reports."""
    fingerprint: str
    """Hash of the images."""
    count: int
    """Number of images."""
    skipped: tuple[str, ...] = ()
    """Files that could not be read, each with the reason."""


class Question(Record):
    """Question that an evaluation answers, with the metrics that answer it.

    If several evaluations ask the same question, the metrics of all answer it.
    """

    text: str
    """Question in plain words."""
    quantities: tuple[str, ...]
    """Metrics that answer: the first one that was measured, or all of them for a check."""
    meaning: str
    """Noun phrase that the number measures; title of its row in the report."""
    place: int = 1000
    """Order of the questions."""
    select: Literal["worst", "first", "best"] = "worst"
    """Setting to show: the first recorded, or (worst, best) the strongest attack or tightest bound at the radius where
    encoders differ most."""
    counts: str = ""
    """What n counts, if not images, such as pairs."""
    check: bool = False
    """True if an encoder passes or fails by itself; a check is no row."""
    first_screen: bool = False
    """True if the number is a row of the report's first screen, which shows at most nine."""


class Result(Record):
    """Findings of one evaluation on one encoder, with everything needed to repeat them."""

    schema_version: int = SCHEMA_VERSION
    """Version of the file format."""
    evaluation: str
    """Name of the evaluation."""
    version: int
    """Version of the evaluation."""
    title: str
    """Title of the evaluation."""
    meaning: str
    """Meaning of the numbers, in two sentences."""
    headline: tuple[str, ...]
    """Main metrics, shown in summary tables."""
    questions: tuple[Question, ...] = ()
    """Questions that the evaluation answers; empty in results of older versions."""
    heading: str = ""
    """Heading of a page of such results, with ``{encoders}``, ``{images}`` and ``{bank}``; empty: *Robustness*."""
    robustness: bool = True
    """True if the numbers measure robustness rather than the health or use of the embedding space."""
    encoder: EncoderInfo
    """Encoder that was measured."""
    images: ImagesInfo
    """Images that were measured."""
    bank: ImagesInfo | None = None
    """Reference set that was learned from or searched; None without."""
    bank_title: str = "Bank"
    """Name of the reference set in reports."""
    settings: dict[str, Any]
    """Settings in text form, seed and precision; results with other settings are not compared."""
    findings: Findings
    """Findings."""
    planned: int | None = None
    """Samples that were planned, if the time budget ran out; None if all were measured. The measured samples are then
    the first in random order, and the same command goes on."""
    seen: int | None = None
    """Samples of ``planned`` that were measured; None if all were."""
    provenance: dict[str, str] = Field(default_factory=dict)
    """Versions, commit, device and times; none of them changes a number."""

    @property
    def looked_at(self) -> int:
        """Return how many samples were looked at."""
        return len(self.findings.ids) if self.seen is None else self.seen

    @property
    def series(self) -> tuple[Series, ...]:
        return self.findings.series

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        return self.findings.estimates

    def estimate(self, quantity: str, **conditions: str) -> Estimate:
        """The one estimate of a metric under given conditions.

        Args:
            quantity: Name of the metric.
            **conditions: Conditions that the estimate must have, such as ``ball="linf:0.05"``.

        Raises:
            HoldfastError: No estimate fits, or more than one does.
        """
        matching = [e for e in self.estimates if e.quantity == quantity and conditions.items() <= e.conditions.items()]
        if len(matching) != 1:
            offered = sorted({f"{e.quantity} {e.conditions}" for e in self.estimates})
            raise HoldfastError(
                f"{len(matching)} estimates fit {quantity} {conditions}; there are: {'; '.join(offered)}"
            )
        return matching[0]

    def plot(self) -> Any:
        """Return its plots, which a notebook shows and ``save(folder)`` writes as SVG files.

        Raises:
            HoldfastError: there is nothing to draw.
        """
        return _notebook().plot([self])

    def _repr_html_(self) -> str:
        return str(_notebook().result_html(self))


def _notebook() -> Any:
    """Return what draws records. By name, since records are beneath it; who only reads them never loads it."""
    return import_module("holdfast.report.notebook")


UNFINISHED = "Unfinished"
"""The error of a failure that stands for everything a stopped run should have measured of an encoder."""


class Failure(Record):
    """A cell that could not be computed, and why; it does not stop the others."""

    evaluation: str
    """Name of the evaluation."""
    encoder: str
    """Name of the encoder."""
    images: str
    """Name of the set of images."""
    error: str
    """Class of the error."""
    reason: str
    """Sentence of the error."""
    provenance: dict[str, str] = Field(default_factory=dict)
    """Versions, commit, device and times."""

    @property
    def state(self) -> Literal["not measured", "failed"]:
        """Return what became of the cell: the run ended before it, or an error ended it."""
        return "not measured" if self.error in (BudgetSpentError.__name__, UNFINISHED) else "failed"
