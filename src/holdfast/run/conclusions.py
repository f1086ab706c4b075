"""Results of the cells of a table: full and partial results, and failures with reasons."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from time import monotonic
from typing import final

from holdfast.attacks.presets import attacks_in_balls
from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.measure.evaluation import Evaluation, components, fits_of, parts, with_bank
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.measure.store import StoreError, failure_of, key_of, provenance
from holdfast.run.computing import Computing, EncoderState
from holdfast.run.engines.base import Local
from holdfast.run.engines.processes import Automatic, Processes
from holdfast.run.engines.ranks import is_main
from holdfast.run.forecast import pictured
from holdfast.run.shards import cell_of, in_random_order, read_observed, stored_prefix

log = logging.getLogger("holdfast")


@final
@dataclass(frozen=True)
class MissingCells:
    """Missing cells of one encoder."""

    encoder: Encoder
    images: Images
    bank: Images | None
    evaluations: Sequence[Evaluation]
    """Evaluations without a stored result, or with a partial one."""

    @property
    def searched(self) -> Images | None:
        """Reference set, if a missing evaluation needs one."""
        return self.bank if any(with_bank(evaluation) for evaluation in self.evaluations) else None


@final
@dataclass
class Cells:
    """The results and failures of a table; each cell ends up among one of them."""

    run: RunSettings
    work: Computing
    encoders: Sequence[Encoder]
    """All encoders of the table."""
    reason_for_radii: str = ""
    """Why attacks are measured at these radii."""
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    partial: dict[tuple[str, Evaluation], Result] = field(default_factory=dict)
    """Results of some of the samples that the store holds, by the encoder's name."""
    concluded: dict[tuple[str, Evaluation], Result] = field(default_factory=dict)
    """Full results that were concluded before the end of the run."""

    def look_up(
        self, encoder: Encoder, images: Images, bank: Images | None, evaluations: Sequence[Evaluation]
    ) -> MissingCells:
        """Take what the store holds of ``encoder``, and return what it does not, which is expected from now on."""
        store, forecast, missing = self.work.store, self.work.forecast, []
        for evaluation in evaluations:
            known = store.result(key_of(evaluation, encoder, images, self.run, bank))
            if known is not None and known.planned is None:
                self.results.append(known)
                continue
            missing.append(evaluation)
            if known is not None:
                self.partial[encoder.name, evaluation] = known
        store.expect([cell_of(evaluation, encoder, images, self.run, bank) for evaluation in evaluations])
        for evaluation in missing:
            for what in components(evaluation):
                forecast.expect((encoder.name, what))
        return MissingCells(encoder, images, bank, missing)

    @contextmanager
    def failing(self, encoder: Encoder, images: str, evaluations: Sequence[Evaluation]) -> Iterator[None]:
        """Record whatever goes wrong inside as the failure of ``evaluations``, and go on; but a full disk ends all."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            log.debug("%s failed", encoder.name, exc_info=True)
            for evaluation in evaluations:
                if (encoder.name, evaluation) in self.work.forecast.waiting:
                    for what in components(evaluation):
                        self.work.forecast.drop((encoder.name, what))
                known = self.partial.get((encoder.name, evaluation))
                if known is not None and isinstance(error, BudgetSpentError):
                    self.results.append(known)  # it got no further than before
                    continue
                failure = failure_of(evaluation.name, encoder.name, images, error, self.run, datetime.now(UTC))
                if is_main(self.work.engine):
                    self.work.store.fail(failure)
                self.failures.append(failure)


HASTE = 2.0
"""Longest conclusion in seconds after the user stopped the run; slower ones are skipped."""


@final
@dataclass(frozen=True)
class Sample:
    """Observed rows of an observation."""

    rows: Sequence[int]
    """None where they would be too few."""
    planned: int
    """Number of planned rows."""
    observed: Observed
    """Observed tensors of ``rows``."""
    since: datetime
    """When it was looked up."""

    @property
    def whole(self) -> bool:
        """Whether all planned rows were observed."""
        return len(self.rows) == self.planned

    @classmethod
    def of(cls, subject: EncoderState, observation: Observation, work: Computing, without_last: int = 0) -> Sample:
        """Return what there is of ``observation``, or all but the last rows of it.

        Raises:
            Exception: it cannot be made.
        """
        since, planned = datetime.now(UTC), observation.rows(subject.population)
        if error := subject.failure_of(observation):
            raise error
        rows = stored_prefix(observation, subject.population, work.store)
        if without_last:
            last = in_random_order(rows, observation, subject.population)[len(rows) - without_last :]
            rows = [row for row in rows if row not in last]
        if len(rows) < min(Evaluation.fewest, len(planned)):
            return cls([], len(planned), {}, since)
        return cls(rows, len(planned), read_observed(observation, subject.population, rows, work.store), since)


@final
@dataclass(frozen=True)
class Outcome:
    """Outcome of a conclusion."""

    result: Result | Exception
    seconds: float


def conclude(population: Population, task: tuple[Evaluation, Sample]) -> Outcome:
    """Return the conclusion of an evaluation from its observed rows, or the reason for none."""
    (evaluation, sample), since = task, monotonic()
    try:
        # Pictures may take as long as what was observed; those of a partial result come with the full one.
        result = evaluation.result(population, sample.rows, sample.observed, illustrated=sample.whole)
    except Exception as error:
        return Outcome(error, monotonic() - since)
    return Outcome(result, monotonic() - since)


def finish(subject: EncoderState, cells: Cells) -> None:
    """Conclude all that was observed of an encoder, unless another rank does; without what takes long in a stopped run.

    Processes of this machine take part, except in a stopped run, whose processes Ctrl-C has reached, too.
    """
    for fit in subject.fits:
        subject.learned.setdefault(fit, cells.work.spent())  # else it would be learned now
    subject.release()
    if not is_main(cells.work.engine):
        return
    results = {each: cells.concluded.get((subject.encoder.name, each)) for each in chain(*subject.groups.values())}
    for (evaluation, sample), outcome in _spread(_waiting(subject, cells), subject, cells):
        with cells.failing(subject.encoder, subject.images.name, [evaluation]):
            results[evaluation] = keep(subject, evaluation, sample, outcome, cells)
    cells.results += [result for result in results.values() if result is not None]


Task = tuple[Evaluation, Sample]


def _spread(tasks: Iterator[Task], subject: EncoderState, cells: Cells) -> Iterator[tuple[Task, Outcome]]:
    """Yield what comes of each task, concluded side by side where processes of this machine compute."""
    engine = cells.work.engine
    if cells.work.stopped or not isinstance(engine, (Automatic, Processes)):
        engine = Local()
    return engine.map(conclude, subject.population, tasks)


def _waiting(subject: EncoderState, cells: Cells) -> Iterator[Task]:
    """Yield what is to be concluded with its observations, the longest first; record why others cannot be."""
    for observation, group in sorted(
        subject.groups.items(), key=lambda item: -_expected(subject, item[0], item[1], cells.work)
    ):
        left = [evaluation for evaluation in group if (subject.encoder.name, evaluation) not in cells.concluded]
        sample = None
        with cells.failing(subject.encoder, subject.images.name, left):
            sample = Sample.of(subject, observation, cells.work) if left else None
        if sample is None:
            continue
        for evaluation in left:
            with cells.failing(subject.encoder, subject.images.name, [evaluation]):
                last = sample
                if cells.work.stopped and sample.whole:  # neither conclusions nor pictures that take long
                    if evaluation.concluding(subject.planning) > HASTE:
                        raise cells.work.spent()
                    if _pictures(subject, observation, evaluation, cells.work) > HASTE:
                        last = Sample.of(subject, observation, cells.work, without_last=1)
                check_enough(subject, evaluation, last, cells)
                yield evaluation, last


def _expected(subject: EncoderState, observation: Observation, group: Sequence[Evaluation], work: Computing) -> float:
    """Return the expected seconds of all conclusions from one observation, pictures included."""
    seconds = 0.0
    for evaluation in group:
        with suppress(Exception):  # said when it is concluded
            known = work.forecast.seconds((subject.encoder.name, evaluation), 1)
            seconds += known or evaluation.concluding(subject.planning)
        seconds += _pictures(subject, observation, evaluation, work)
    return seconds


def _pictures(subject: EncoderState, observation: Observation, evaluation: Evaluation, work: Computing) -> float:
    count, name = pictured(evaluation), subject.encoder.name
    return sum((work.forecast.expected((name, part), count) for part in parts(observation) if count), 0.0)


def check_enough(subject: EncoderState, evaluation: Evaluation, sample: Sample, cells: Cells) -> None:
    """Raise unless enough was seen for a result, and more than before; say that it is concluded.

    Raises:
        BudgetSpentError: too little was seen, or no more than before.
    """
    if not sample.whole:
        known = cells.partial.get((subject.encoder.name, evaluation))
        if not (evaluation.partial and len(sample.rows) >= evaluation.fewest):
            raise cells.work.spent()
        if known is not None and known.looked_at >= len(sample.rows):
            raise cells.work.spent()
    cells.work.tell(f"{subject.encoder.name}: {evaluation.name}, conclusion")


def keep(subject: EncoderState, evaluation: Evaluation, sample: Sample, outcome: Outcome, cells: Cells) -> Result:
    """Return the result of ``evaluation``, which the store then holds.

    Raises:
        Exception: there is none, and why.
    """
    work, piece = cells.work, (subject.encoder.name, evaluation)
    if isinstance(outcome.result, Exception):
        raise outcome.result
    partial = {} if sample.whole else {"planned": sample.planned, "seen": len(sample.rows)}
    radii = {"radii": cells.reason_for_radii} if cells.reason_for_radii and attacks_in_balls(type(evaluation)) else {}
    origin = provenance(cells.run, sample.since) | radii
    result = outcome.result.model_copy(update={"provenance": origin, **partial})
    work.store.finish(
        key_of(evaluation, subject.encoder, subject.images, cells.run, subject.population.bank_images), result
    )
    timed = int(not (sample.whole and pictured(evaluation)))  # pictures are forecast by themselves
    work.forecast.tell(piece, timed, outcome.seconds, int(sample.whole), 1)
    return result


def conclude_so_far(subject: EncoderState, cells: Cells) -> None:
    """Keep what follows from what more was seen of an encoder: of all its images, or of some; other cells wait."""
    for (evaluation, sample), outcome in _spread(_ready(subject, cells), subject, cells):
        with passing():
            result = keep(subject, evaluation, sample, outcome, cells)
            (cells.concluded if sample.whole else cells.partial)[subject.encoder.name, evaluation] = result


def _ready(subject: EncoderState, cells: Cells) -> Iterator[Task]:
    """Yield with its observations what can be concluded from more samples than before."""
    for observation, group in subject.groups.items():
        ready = [
            evaluation
            for evaluation in group
            if (subject.encoder.name, evaluation) not in cells.concluded
            and all(isinstance(subject.learned.get(fit), dict) for fit in fits_of(evaluation))
        ]
        if not ready:
            continue
        with passing():
            sample = Sample.of(subject, observation, cells.work)
            for evaluation in ready:
                with passing():
                    check_enough(subject, evaluation, sample, cells)
                    yield evaluation, sample


@contextmanager
def passing() -> Iterator[None]:
    """Pass over whatever goes wrong inside, which is said when it is concluded in the end; but a full disk ends all."""
    try:
        yield
    except StoreError:
        raise
    except Exception:
        log.debug("not concluded yet", exc_info=True)
