"""What comes next of each observation: a few images first, then twice as many, and again.

So all questions have an answer as early as possible, and all answers become better together. What must be learned for an
observation belongs to its next step, and is learned only when its turn comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

from holdfast.core.errors import BudgetSpentError
from holdfast.measure.evaluation import Evaluation, fits_of, parts
from holdfast.measure.observation import Observation
from holdfast.measure.population import Fit
from holdfast.run.computing import Computing, EncoderState
from holdfast.run.forecast import Piece
from holdfast.run.shards import rows_in_shards, stored_prefix

LITTLE = 0.1
"""Pictures that take a smaller share of what an observation may take at once need no step of their own."""


@final
@dataclass(frozen=True)
class Step:
    """What brings an observation to its next answer."""

    observation: Observation
    rows: int
    """So many rows are seen then, the first in random order."""
    whole: bool
    """Whether fewer would say nothing."""
    fits: tuple[Fit[Any], ...]
    """Learned first."""
    seconds: float
    """What all of it is expected to take, with conclusions that take long."""
    concluding: dict[Piece, float] = field(default_factory=dict)
    """Those."""
    pictures: dict[Piece, dict[Piece, int]] = field(default_factory=dict)
    """What the pictures of full results take once more, beside the conclusions."""
    alone: bool = True
    """Whether it is taken by itself, only if there is time for all of it."""


@final
@dataclass(frozen=True)
class Coverage:
    """How far an observation is."""

    observation: Observation
    count: int
    """So many rows are seen."""
    total: int
    row: float
    """The seconds that are expected to pass for another one."""
    fits: tuple[Fit[Any], ...]
    """Not learned yet."""
    learning: float
    """The seconds that these are expected to take."""

    def next(self, subject: EncoderState, work: Computing) -> Step | None:
        """Return the step to the next answer, to the full one if little is left."""
        group = subject.groups[self.observation]
        ample = work.deadline.seconds_of_turn / (2 * max(1, len(subject.groups)))
        partial = any(evaluation.partial for evaluation in group)
        fewest = min(self.total, Evaluation.fewest if partial else self.total)
        # What is nearly nothing beside the others is done at once.
        little = self.count >= fewest and (self.total - self.count) * self.row <= ample
        rows = self.total if little else min(self.total, max(fewest, 2 * self.count))
        if work.deadline.budget is None:
            rows = max(_in_shards(rows, part, subject) for part in parts(self.observation))
        if rows < self.total:
            return self._to(rows, fewest)
        last = self._last(subject, fewest, ample)
        if not last.pictures or not partial or self.total <= fewest or work.deadline.affords(last.seconds):
            return last
        # All rows but one make a partial result, whose pictures come with the full one.
        return self._to(self.total - 1, fewest) if self.count < self.total - 1 or self.fits else None

    def _to(self, rows: int, fewest: int) -> Step:
        seconds = self.learning + max(0, rows - self.count) * self.row
        return Step(self.observation, rows, self.count < fewest, self.fits, seconds, alone=bool(self.fits))

    def _last(self, subject: EncoderState, fewest: int, ample: float) -> Step:
        """Return the step to the full answer, its conclusions and pictures included."""
        name, group = subject.encoder.name, subject.groups[self.observation]
        dear = _dear(name, group, subject)
        pictures = pictures_of(name, self.observation, group, self.total)
        shown = sum((self.row * max(rows.values()) for rows in pictures.values()), 0.0)
        after = sum(dear.values()) + shown
        seconds = self.learning + (self.total - self.count) * self.row + after
        alone = bool(self.fits or dear) or shown > LITTLE * ample
        return Step(self.observation, self.total, self.count < fewest, self.fits, seconds, dear, pictures, alone)


def _dear(name: str, group: Iterable[Evaluation], subject: EncoderState) -> dict[Piece, float]:
    """Return the seconds of the conclusions that take long."""
    return {(name, each): long for each in group if (long := each.concluding(subject.planning))}


def _in_shards(rows: int, part: Observation, subject: EncoderState) -> int:
    population = subject.planning
    return rows_in_shards(rows, part.rows(population), part, population)


def steps(subject: EncoderState, work: Computing) -> Iterator[Step]:
    """Yield the next step of every observation of an encoder that is not complete; what cannot be planned has failed."""
    for observation in subject.groups:
        try:
            step = None if subject.failure_of(observation) else next_step(subject, observation, work)
        except Exception as error:  # what it needs could not be learned, say
            subject.failed[parts(observation)[0]] = error
            continue
        if step:
            yield step


def next_step(subject: EncoderState, observation: Observation, work: Computing) -> Step | None:
    """Return what comes next of ``observation``; nothing if it is complete, or if what is left takes too long."""
    name, group, population = subject.encoder.name, subject.groups[observation], subject.planning
    needed = dict.fromkeys(fit for evaluation in group for fit in fits_of(evaluation))
    fits = tuple(fit for fit in needed if fit not in subject.learned)
    learned_in = sum((work.forecast.expected((name, fit), 1) for fit in fits), 0.0)
    try:
        total, count = len(observation.rows(population)), len(stored_prefix(observation, population, work.store))
    except BudgetSpentError:  # which images it looks at is learned, too
        return Step(observation, 0, True, fits, learned_in)
    if count == total and not fits:
        return None
    if fits and any(evaluation.partial and not evaluation.fewest for evaluation in group):
        dear = _dear(name, group, subject)
        return Step(observation, 0, True, fits, learned_in + sum(dear.values()), dear)
    row = sum((work.forecast.row((name, part)) for part in parts(observation)), 0.0)
    row *= work.forecast.side_by_side
    return Coverage(observation, count, total, row, fits, learned_in).next(subject, work)


def pictures_of(
    name: str, observation: Observation, group: Iterable[Evaluation], total: int
) -> dict[Piece, dict[Piece, int]]:
    """Return how many rows of the parts of an observation the pictures of full results take once more."""
    return {
        (name, each): {(name, part): count for part in parts(observation)}
        for each in group
        if (count := min(total, pictured(each)))
    }


def pictured(evaluation: Evaluation) -> int:
    """Return how many rows' worth of its observation the pictures of a full result take."""
    return 0 if type(evaluation).illustrate is Evaluation.illustrate else evaluation.pictured
