"""What follows from what was observed of an encoder: its results, full or partial."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import final

from holdfast.core.run_settings import Observed
from holdfast.execution.cells import Cells
from holdfast.execution.computing import Computing
from holdfast.execution.engines.ranks import leads
from holdfast.execution.shards import first_held, observe
from holdfast.execution.steps import FEWEST
from holdfast.execution.subject import Subject
from holdfast.protocol.evaluation import Evaluation, learning
from holdfast.protocol.observation import Observation
from holdfast.store.provenance import provenance
from holdfast.store.store import key_of


@final
@dataclass(frozen=True)
class Sample:
    """What was seen of an observation."""

    rows: Sequence[int]
    planned: int
    """So many rows were to be seen."""
    observed: Observed
    """Of ``rows``; nothing where they are too few."""
    since: datetime
    """When what was left of it was begun."""

    @property
    def whole(self) -> bool:
        """Whether all was seen."""
        return len(self.rows) == self.planned

    @classmethod
    def of(cls, subject: Subject, observation: Observation, work: Computing) -> Sample:
        """Return what there is of ``observation``: all of it, which is computed now, unless there is a budget.

        Raises:
            Exception: it cannot be made.
        """
        since, planned = datetime.now(UTC), observation.rows(subject.population)
        if work.budget is None:
            work.forward(subject, {observation: subject.groups[observation]})
        if error := subject.why_not(observation):
            raise error
        rows = planned if work.budget is None else first_held(observation, subject.population, work.store)
        enough = len(rows) in (len(planned), *range(FEWEST, len(planned)))
        observed = observe(observation, subject.population, rows, work.store) if enough else {}
        return cls(rows, len(planned), observed, since)


def finish(subject: Subject, cells: Cells) -> None:
    """Conclude all that was observed of an encoder, unless another rank does."""
    for fit in subject.fits:
        subject.learned.setdefault(fit, cells.work.spent())  # else it would be learned now
    subject.rest()
    for observation, group in subject.groups.items() if leads(cells.work.engine) else ():
        with cells.failing(subject.encoder, subject.images.name, group):
            sample = Sample.of(subject, observation, cells.work)
            for evaluation in group:
                with cells.failing(subject.encoder, subject.images.name, [evaluation]):
                    conclude(subject, evaluation, sample, cells)


def conclude(subject: Subject, evaluation: Evaluation, sample: Sample, cells: Cells) -> None:
    """Add the result of ``evaluation`` to the table and the store.

    Raises:
        BudgetSpentError: too little was seen, or no more than before.
    """
    work, piece, since = cells.work, (subject.encoder.name, evaluation), monotonic()
    if not sample.whole:
        known = cells.partial.get(piece)
        if not (evaluation.partial and len(sample.rows) >= FEWEST):
            raise work.spent()
        if known is not None and len(known.findings.ids) >= len(sample.rows):
            raise work.spent()
    work.tell(f"{subject.encoder.name}: {evaluation.name}, conclusion")
    # Pictures may take as long as what was observed; those of a partial result come with the full one.
    result = evaluation.result(subject.population, sample.rows, sample.observed, illustrated=sample.whole)
    planned = None if sample.whole else sample.planned
    result = result.model_copy(update={"provenance": provenance(cells.run, sample.since), "planned": planned})
    work.store.finish(
        key_of(evaluation, subject.encoder, subject.images, cells.run, subject.population.bank_images), result
    )
    cells.results.append(result)
    work.forecast.tell(piece, 1, monotonic() - since, 1, 1)


def rehearse(subject: Subject, work: Computing) -> None:
    """Conclude what there is of an encoder so far, only to know how long conclusions will take in the end."""
    for observation, group in subject.groups.items():
        ready = [each for each in group if each.partial and subject.learned.keys() >= {*learning(each)}]
        rows = first_held(observation, subject.population, work.store) if ready else []
        if len(rows) < FEWEST or subject.why_not(observation):
            continue
        observed = observe(observation, subject.population, rows, work.store)
        for evaluation in ready:
            since = monotonic()
            with suppress(Exception):  # said when it is concluded indeed
                evaluation.result(subject.population, rows, observed, illustrated=False)
                work.forecast.tell((subject.encoder.name, evaluation), 1, monotonic() - since, 0, 1)
