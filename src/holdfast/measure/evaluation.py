"""Evaluations: what they observe, what they conclude, and their sizes in each suite.

Also here: which transforms among the settings of an evaluation apply to the inputs of an encoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import numpy as np

from holdfast.core.encoder import Encoder
from holdfast.core.errors import OutOfRange, check_given_once, check_not_empty
from holdfast.core.images import Images
from holdfast.core.pictures import SHOWN
from holdfast.core.records import Conditions, Findings, Picture, Question, Result
from holdfast.core.run_settings import Observed, RunSettings, without_tf32
from holdfast.core.settings import Searching, convert, fields_of, is_text, types_of
from holdfast.core.statistics.groups import with_groups
from holdfast.measure.bank import alongside, apart
from holdfast.measure.observation import Joint, Observation, Pairs, SharedSettings, named
from holdfast.measure.population import Fit, Population, whitenings
from holdfast.transforms.base import Transform, versions
from holdfast.transforms.severity import edits_named

LATER = {"later": True}
"""Metadata of a field that was added after results had been stored."""
STATED = ("version", "title", "meaning", "headline", "questions", "heading", "robustness", "bank_title")
"""What an evaluation states of itself and its results repeat."""


@dataclass(frozen=True)
class Sizes:
    """Settings that suites use instead of an evaluation's defaults, by field.

    The suite ``standard`` sets nothing.
    """

    quick: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the suite ``quick``."""
    full: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the suite ``full``."""
    large: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``quick`` for large encoders; counts of images are lowered without being named here."""
    heavy: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``quick``, beside ``large``, for encoders that take a tenth of a second per image."""
    small_only: bool = False
    """True if ``quick`` leaves the evaluation out for large encoders, unless the user names it."""


Measured = TypeVar("Measured", bound="Evaluation")


def check_needs_no_classes(setting: str, value: object) -> None:
    """Check that the attacks of a setting can aim at an embedding.

    Raises:
        OutOfRange: One of them looks at the classes of a classifier.
    """
    for search in _listed(value):
        if isinstance(search, Searching) and search.needs_classes:
            fix = "name it in robust-accuracy.attacks, where it attacks probes"
            raise OutOfRange(setting, str(search), "an attack that needs no classes, such as adaptive", fix)


@dataclass(frozen=True)
class Evaluation(ABC):
    """Measurement of an encoder on unlabelled images; the fields are its settings.

    Defaults are those of the paper.
    """

    sizes: ClassVar[Sizes] = Sizes()
    name: ClassVar[str]
    version: ClassVar[int]
    """Version of the evaluation; it rises whenever the numbers change."""
    uses_labels: ClassVar[bool] = False
    """True if ``conclude`` reads labels, which are then part of the key of results."""
    uses_bank: ClassVar[bool] = False
    """True if ``conclude`` reads the reference set, if there is one; it is then part of the key."""
    compares_bank: ClassVar[bool] = False
    """True if images and reference set are two samples to compare, so that copies stay in both."""
    needs_bank: ClassVar[bool] = False
    """True if the evaluation needs a reference set."""
    needs_labels: ClassVar[bool] = False
    """True if the evaluation needs labels of the images, and of the reference set if it needs one."""
    needs_others: ClassVar[bool] = False
    """True if the evaluation needs other encoders, which ``among`` then takes note of."""
    by_name: ClassVar[bool] = False
    """True if no suite includes the evaluation: a command of its own, or the user, names it."""
    needs_gradients: ClassVar[bool] = False
    """True if the encoder must pass gradients or be traced, whatever the attacks are."""
    changes: ClassVar[str] = ""
    """Setting that holds transforms or names of their families; a run leaves out transforms that do not apply to the
    encoder's inputs."""
    needs_changes: ClassVar[bool] = True
    """True if the evaluation needs at least one of these transforms."""
    at_classes: ClassVar[tuple[str, ...]] = ()
    """Settings whose attacks aim at a classifier, so that they may look at its classes."""
    robustness: ClassVar[bool] = True
    """True if the numbers measure robustness and so count for the verdict of a report."""
    partial: ClassVar[bool] = False
    """True if ``conclude`` is valid on a random subset of rows. If the budget runs out, such an evaluation reports a
    partial result; others report none."""
    fewest: ClassVar[int] = 4
    """Smallest number of rows of a partial result; 0 if ``conclude`` needs no rows, because fits alone are informative."""
    pictured: ClassVar[int] = 2 * SHOWN
    """Rows that ``illustrate`` observes again, about; plans use this number."""
    title: ClassVar[str]
    heading: ClassVar[str] = ""
    """Heading of a report on this evaluation alone, with ``{encoders}``, ``{images}`` and ``{bank}``; empty:
    *Robustness*."""
    bank_title: ClassVar[str] = "Bank"
    """Name of the reference set in reports."""
    meaning: ClassVar[str]
    """Meaning of the numbers in two sentences, printed by reports."""
    headline: ClassVar[tuple[str, ...]]
    """Main metrics, shown in summary tables."""
    questions: ClassVar[tuple[Question, ...]] = ()
    """Questions that the evaluation answers; a question may ask for a row of the report's first screen."""
    words: ClassVar[Pairs] = ()
    """Print forms of metrics, or of words in their names: ``(("rankme", "RankMe"),)``."""
    aims: ClassVar[Pairs] = ()
    """Goals of attacks in words, by their name in conditions: ``retrieval`` in ``adaptive at retrieval``."""

    def __post_init__(self) -> None:
        """Read settings that are given as text, ``balls=("linf:8/255",)``."""
        for name, kind in types_of(type(self)).items():
            if is_text(kind):
                object.__setattr__(self, name, convert(getattr(self, name), kind, f"{self.name}.{name}"))
        for own in fields(self):
            check_not_empty(f"{self.name}.{own.name}", getattr(self, own.name), own.default)
            check_given_once(f"{self.name}.{own.name}", getattr(self, own.name))
            if own.name not in self.at_classes:
                check_needs_no_classes(f"{self.name}.{own.name}", getattr(self, own.name))

    def fits(self) -> tuple[Fit[Any], ...]:
        """Fits that ``conclude`` and ``illustrate`` need beside those of the observation.

        By default, the fits of divergences among the settings.
        """
        return whitenings(self)

    def among(self, encoders: Sequence[Encoder]) -> Evaluation:
        """This evaluation as part of a run of ``encoders``; by default unchanged.

        Raises:
            HoldfastError: The settings name an encoder that is not in the run.
        """
        return self

    @abstractmethod
    def observation(self) -> Observation:
        """Return what must be seen of each sample."""

    @abstractmethod
    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        """Compute the findings from what was observed of ``rows``.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.
            observed: Tensors that ``observe`` returned, whose first axis runs over ``rows``.
        """

    def concluding(self, population: Population) -> float:
        """Seconds that ``conclude`` takes, about, where it takes long; budgets use this number."""
        return 0.0

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Draw pictures of the samples that a reader would ask to see; none by default.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.
            observed: Tensors that ``observe`` returned, whose first axis runs over ``rows``.
            findings: Findings of ``conclude``.
        """
        return ()

    def __call__(
        self,
        encoder: Encoder,
        images: Images,
        run: RunSettings | None = None,
        bank: Images | None = None,
        others: Sequence[Encoder] = (),
    ) -> Result:
        """Measure ``encoder`` on ``images`` in this process.

        Args:
            encoder: to measure.
            images: on these.
            run: seed, device, precision and batch size.
            bank: to learn from or to search.
            others: further encoders, for evaluations that compare what is made on one with what it does to another.
        """
        run = run or RunSettings()
        beside = alongside if self.compares_bank else apart
        bank_population = None if bank is None else Population(encoder, beside(bank, images), run)
        population = Population(encoder, images, run, bank=bank_population, other_encoders=others)
        return (self.among((encoder, *others)) if others else self).measured(population)

    def measured(self, population: Population, illustrated: bool = True) -> Result:
        """Measure ``population`` in this process and in memory.

        Args:
            population: Images of the run with their clean embeddings.
            illustrated: True to draw pictures as well.
        """
        observation = self.observation()
        rows = observation.rows(population)
        observed = observation.in_batches(population, rows)
        observed = {name: values.to(population.run.device) for name, values in observed.items()}  # as runs read them
        return self.result(population, rows, observed, illustrated)

    @without_tf32()
    def result(
        self, population: Population, rows: Sequence[int], observed: Observed, illustrated: bool = True
    ) -> Result:
        """Findings with pictures and everything that identifies them.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.
            observed: Tensors that ``observe`` returned, whose first axis runs over ``rows``.
            illustrated: True to draw pictures as well.
        """
        findings = self.conclude(population, rows, observed)
        if population.images.groups is not None and not findings.groups:
            groups = dict(zip(population.images.ids, population.images.groups, strict=True))
            if all(name in groups for name in findings.ids):  # samples need not be images
                findings = findings.model_copy(update={"groups": tuple(groups[name] for name in findings.ids)})
        findings = named(with_groups(findings), self.words, self.aims)
        pictures = self.illustrate(population, rows, observed, findings) if illustrated else ()
        return Result(
            evaluation=self.name,
            **{name: getattr(self, name) for name in STATED},
            encoder=population.encoder_info,
            images=population.images_info,
            bank=population.bank.images_info if with_bank(self) and population.bank_images else None,
            settings=protocol(self, population),
            findings=findings.model_copy(update={"pictures": pictures}),
        )


def settings(thing: Evaluation | Observation | Fit[Any]) -> dict[str, Any]:
    """Settings of ``thing`` as JSON values, with settings objects in text form.

    Settings that came ``LATER`` are left out at their default, so that results stored before keep their keys.
    """
    values = {each.name: getattr(thing, each.name) for each in fields(thing)}
    for each in fields(thing):
        if LATER.items() <= each.metadata.items() and values[each.name] == each.default:
            del values[each.name]
    shared = [value for value in values.values() if isinstance(value, SharedSettings)]
    plain_values = {name: plain(value) for name, value in values.items() if not isinstance(value, SharedSettings)}
    return plain_values | {field.name: plain(getattr(part, field.name)) for part in shared for field in fields(part)}


def protocol(evaluation: Evaluation, population: Population) -> dict[str, Any]:
    """All that decides the numbers of an evaluation except encoder, images and version."""
    run = population.run
    facts: dict[str, Any] = {**settings(evaluation), "seed": run.seed, "precision": run.precision}
    for what in components(evaluation):
        facts |= key_facts(what, population.images, run, population.bank_images)
    return facts


def key_facts(
    what: Evaluation | Observation | Fit[Any], images: Images, run: RunSettings, bank: Images | None
) -> dict[str, Any]:
    """Circumstances beside settings that decide numbers, where they depart from the usual.

    Results stored before there were such circumstances keep their keys.
    """
    facts: dict[str, Any] = {}
    if what.uses_labels and images.labels_fingerprint:
        facts["labels"] = images.labels_fingerprint
    grouped = regards_groups(what) and images.groups_fingerprint
    if grouped:
        facts["groups"] = images.groups_fingerprint
    if what.uses_bank and bank is not None:
        facts["bank"] = bank.fingerprint
    # Fits compare the groups of both sets, and whatever searches the bank leaves out images of the own group.
    regarded = grouped or (isinstance(what, Fit) and what.uses_groups)
    if what.uses_bank and regarded and bank is not None and bank.groups_fingerprint:
        facts["bank_groups"] = bank.groups_fingerprint
    if what.uses_bank and what.uses_labels and bank is not None and bank.labels_fingerprint:
        facts["bank_labels"] = bank.labels_fingerprint
    if run.attack_seed not in (None, run.seed):
        facts["attack_seed"] = run.attack_seed
    values = [value for field in fields(what) for value in _listed(getattr(what, field.name))]
    if changes := [versions(value) for value in values if isinstance(value, Transform)]:
        facts["transform_versions"] = changes
    if newer := {str(value): value.version for value in values if isinstance(value, Fit) and value.version > 1}:
        facts["fit_versions"] = newer
    searches = [value for value in values if isinstance(value, Searching)]
    if newer := {str(value): value.version for value in searches if value.version > 1}:
        facts["search_versions"] = newer
    return facts


def regards_groups(what: Evaluation | Observation | Fit[Any]) -> bool:
    """True if numbers depend on groups; every evaluation has intervals over them."""
    if isinstance(what, Observation):
        return what.uses_groups or any(fit.uses_groups for fit in what.fits())
    return isinstance(what, Evaluation) or what.uses_groups


def of_embeddings_alone(evaluation: Measured, encoders: Sequence[Encoder], *fields_without: str) -> Measured:
    """Evaluation without entries in some fields, if all encoders are stored embeddings."""
    if not encoders or not all(encoder.codes_only for encoder in encoders):
        return evaluation
    return with_settings(evaluation, **dict.fromkeys(fields_without, ()))


def with_settings(evaluation: Measured, **values: Any) -> Measured:
    """Evaluation with other settings, which a run decides on and which may be empty."""
    changed = copy(evaluation)  # not made anew: a user's empty list is a mistake, which is refused
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


def with_bank(evaluation: Evaluation) -> bool:
    """Return whether anything that ``evaluation`` is made of looks at a bank."""
    return any(what.uses_bank for what in components(evaluation))


def parts(observation: Observation) -> tuple[Observation, ...]:
    """Return the observations that are computed and kept one by one."""
    return (
        tuple(p for part in observation.parts for p in parts(part))
        if isinstance(observation, Joint)
        else (observation,)
    )


def fits_of(evaluation: Evaluation) -> tuple[Fit[Any], ...]:
    """Fits that ``evaluation`` and its observations need, each once."""
    return tuple(dict.fromkeys((*evaluation.observation().fits(), *evaluation.fits())))


def components(evaluation: Evaluation) -> tuple[Evaluation | Observation | Fit[Any], ...]:
    """The evaluation, its observations and the fits of both."""
    return (evaluation, *parts(evaluation.observation()), *fits_of(evaluation))


def lacks_bank(evaluation: Evaluation) -> bool:
    """True if ``evaluation`` measures nothing without a reference set."""
    if not evaluation.needs_bank:
        return False
    fits = fits_of(evaluation)
    return not fits or any(fit.uses_bank for fit in fits)


def answerable(evaluation: Evaluation, encoder: Encoder, images: Images) -> bool:
    """True if ``evaluation`` can be measured on ``encoder``: for stored embeddings, not always.

    Stored embeddings answer what reads embeddings alone and, with their inputs, what compares the two.
    """
    looking: tuple[Observation | Fit[Any], ...] = (*parts(evaluation.observation()), *fits_of(evaluation))
    known = ("codes",) if images.inputs is None else ("codes", "inputs")
    return not encoder.codes_only or all(what.looks_at() in known for what in looking)


def plain(value: Any) -> Any:
    """Return a setting as JSON holds it, settings objects in their text form."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


Change = Transform | str
"""A transform, or the name of a family."""


def inapplicable(evaluation: Evaluation, encoder: Encoder) -> dict[Change, str]:
    """Transforms of an evaluation that do not apply to an encoder, with what each needs."""
    return _unmet(evaluation, _chosen(evaluation), encoder)


def restricted(evaluation: Evaluation, excluded: Collection[Change]) -> Evaluation | None:
    """Evaluation without some transforms; None if it then measures nothing."""
    rest = tuple(change for change in _chosen(evaluation) if change not in excluded)
    if not rest and evaluation.needs_changes:
        return None
    return with_settings(evaluation, **{evaluation.changes: rest})


def changes_by_default(evaluation: Evaluation) -> bool:
    """True if the transforms of ``evaluation`` are the defaults, not chosen by the user."""
    return _chosen(evaluation) == _default(evaluation)


def without(evaluation: Evaluation, encoder: Encoder) -> Conditions:
    """Condition of a mean that lacks default transforms which do not apply; usually empty.

    A mean over fewer transforms is another number, which is never compared with that over all of them.
    """
    lacking = _unmet(evaluation, _default(evaluation), encoder)
    rest = tuple(change for change in _default(evaluation) if change not in lacking)
    return {"without": ", ".join(map(str, lacking))} if lacking and _chosen(evaluation) == rest else {}


def _unmet(evaluation: Evaluation, changes: Iterable[Change], encoder: Encoder) -> dict[Change, str]:
    domain, needs = encoder.domain, dict[Change, str]()
    for change in () if encoder.codes_only else changes:
        transform = change if isinstance(change, Transform) else edits_named(evaluation.name, (change,))[0]
        if needed := transform.needs(domain.shape):
            needs[change] = needed
        elif (domain.low, domain.high) != (0, 1):
            needs[change] = "pixels in [0, 1] (put the scaling into the encoder)"
    return needs


def _chosen(evaluation: Evaluation) -> tuple[Change, ...]:
    return _listed(getattr(evaluation, evaluation.changes)) if evaluation.changes else ()


def _default(evaluation: Evaluation) -> tuple[Change, ...]:
    return _listed(fields_of(type(evaluation))[evaluation.changes].default) if evaluation.changes else ()


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
