"""Observations and fits of one encoder, computed within the budget and stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from time import monotonic
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Codes, Encoder
from holdfast.core.errors import BudgetSpentError
from holdfast.core.images import Images
from holdfast.core.records import grouped
from holdfast.core.run_settings import Observed, RunSettings, without_tf32
from holdfast.measure.evaluation import Evaluation, fits_of, parts
from holdfast.measure.observation import Observation
from holdfast.measure.population import Fit, Population
from holdfast.measure.store import Store, StoreError, key_of
from holdfast.run.engines.base import Engine, Output, Unit
from holdfast.run.engines.ranks import Ranks
from holdfast.run.forecast import Deadline, Forecast
from holdfast.run.progress import Display
from holdfast.run.shards import CleanCodes, Turns, clean_codes, compute, stored_prefix


@final
@dataclass
class EncoderState:
    """An encoder whose embeddings and fits are known, and what is to be observed of it."""

    encoder: Encoder
    images: Images
    bank: tuple[Images, Float[Tensor, "m d"]] | None
    codes: Float[Tensor, "n d"]
    learned: dict[Fit[Any], Observed | Exception]
    run: RunSettings
    other_encoders: Sequence[Encoder] = ()
    """Those of the run beside it, where attacks on them are shown to it."""
    groups: dict[Observation, list[Evaluation]] = field(default_factory=dict)
    """The evaluations that share each observation."""
    failed: dict[Observation, Exception] = field(default_factory=dict)
    """Why parts of the observations cannot be made."""

    @cached_property
    def population(self) -> Population:
        """The images with all that is known of them."""
        return Population(
            self.encoder, self.images, self.run, self.codes, self.learned, self._bank(), self.other_encoders
        )

    @cached_property
    def planning(self) -> Population:
        """The population to plan with: what is not learned yet is refused, where it would be learned at once."""
        pending = dict.fromkeys(self.fits, BudgetSpentError("not learned yet"))
        known = {**pending, **self.learned}
        return Population(self.encoder, self.images, self.run, self.codes, known, self._bank(), self.other_encoders)

    def _bank(self) -> Population | None:
        return self.bank and Population(self.encoder, self.bank[0], self.run, self.bank[1])

    @property
    def fits(self) -> tuple[Fit[Any], ...]:
        """Fits that the evaluations need, each once."""
        return tuple(dict.fromkeys(fit for group in self.groups.values() for each in group for fit in fits_of(each)))

    def release(self) -> None:
        """Let go of what is on the device, until the next turn."""
        for population in ("population", "planning"):
            self.__dict__.pop(population, None)

    def failure_of(self, observation: Observation) -> Exception | None:
        """Return why ``observation`` cannot be made, if it is known not to be."""
        return next((self.failed[part] for part in parts(observation) if part in self.failed), None)


PAUSE = 0.2
"""Seconds between two shown forecasts; each goes through all waiting work."""


@dataclass
class Done:
    """Outcome of computing shards."""

    failed: dict[Observation, Exception] = field(default_factory=dict)
    """Observations that failed, with their errors."""
    computed_rows: int = 0
    missing_rows: int = 0


@final
@dataclass
class Computing:
    """Computes what a store lacks on an engine, within a budget."""

    store: Store
    engine: Engine
    progress: Display | None
    deadline: Deadline
    finished: float = 0.0
    """The fraction of all work that is done."""
    stopped: bool = False
    """Whether the user stopped the run."""
    _foreseen: tuple[float, float] = field(default=(-inf, inf), init=False, repr=False)
    """When the last forecast that was told was made, and the seconds that were left."""

    @property
    def forecast(self) -> Forecast:
        """Forecast of the time that waiting work takes."""
        return self.deadline.forecast

    def codes(self, population: Population, doing: str) -> Codes:
        """Return the clean embeddings of all images."""
        self.compute(CleanCodes(), population, doing)
        return clean_codes(population, self.store)

    def compute(self, observation: Observation, population: Population, doing: str, first: int | None = None) -> None:
        """Compute what the store does not hold of ``observation``, or of its ``first`` rows in random order.

        Raises:
            BudgetSpentError: there is no time for all of it.
            Exception: what went wrong with a part of it.
        """
        done = self.shards(population, {observation: doing}, None if first is None else {observation: first})
        for part in parts(observation):  # the rest of it is not asked for again
            self.forecast.drop((population.encoder.name, part))
        for error in done.failed.values():
            raise error
        if first is not None and done.missing_rows:
            wanted = min(first, len(observation.rows(population)))
            done.missing_rows = max(0, wanted - len(stored_prefix(observation, population, self.store)))
        if done.missing_rows:
            raise self.spent()

    def shards(
        self,
        population: Population,
        doing: Mapping[Observation, str],
        first: Mapping[Observation, int] | None = None,
        whole: Collection[Observation] = (),
    ) -> Done:
        """Compute the missing shards of observations, while there is time.

        Args:
            doing: observations, with their names in the progress display.
            first: number of rows per observation, the first in random order; without a budget the whole shards that
                hold them.
            whole: observations without a result before all of these rows are done.
        """
        called = {part: sentence for observation, sentence in doing.items() for part in parts(observation)}
        name = population.encoder.name
        turns = Turns(
            list(doing),
            lambda part, count: self.forecast.expected((name, part), count),
            self.deadline.affords,
            whole,
            lambda: self.forecast.side_by_side,
            self.deadline.budget is None,
        )
        tally = Tally(self, name, called, turns)
        pieces = [(part, part.rows(population)) for part in called]
        most = grouped((part, count) for observation, count in (first or {}).items() for part in parts(observation))
        with suppress(BudgetSpentError):
            patient = partial(self.deadline.affords, 0.0)
            compute(
                pieces,
                population,
                self.store,
                self.engine,
                turns.choose,
                tally,
                tally.done.failed,
                patient,
                {part: max(counts) for part, counts in most.items()},
                recut=self.deadline.budget is not None,
            )
        return tally.done

    def forward(
        self,
        subject: EncoderState,
        groups: Mapping[Observation, Sequence[Evaluation]],
        first: Mapping[Observation, int] | None = None,
        whole: Collection[Observation] = (),
    ) -> bool:
        """Compute what the store does not hold for ``groups``, and return whether any of it was; what fails is noted."""
        sound = {
            observation: " and ".join(evaluation.name for evaluation in group)
            for observation, group in groups.items()
            if not subject.failure_of(observation)
        }
        done = self.shards(subject.population, sound, first, whole)
        subject.failed |= done.failed
        return done.computed_rows > 0

    def spent(self) -> BudgetSpentError:
        """Return why something is not run."""
        why = "the run was stopped" if self.stopped else "the budget was spent"
        return BudgetSpentError(f"not run: {why}; run the same command again to continue")

    def tell(self, doing: str) -> None:
        """Report progress, if anyone listens."""
        now = monotonic()
        when, left = self._foreseen
        if now - when > PAUSE or not any(self.forecast.waiting.values()):
            left = self.deadline.seconds_left
            self._foreseen = now, left
        spent = now - self.deadline.began
        if left < inf and (self.forecast.worked or not left):  # plans alone are too rough for what never falls
            self.finished = max(self.finished, spent / (spent + left) if left else 1.0)
        if self.progress:
            self.progress(doing, self.finished, left)


@final
@dataclass
class Tally:
    """Counts the rows of an encoder as they come, and tells how far they are."""

    work: Computing
    name: str
    called: Mapping[Observation, str]
    """Name of each part in the progress display."""
    turns: Turns
    done: Done = field(default_factory=Done)
    counts: dict[Observation, int] = field(default_factory=dict)
    since: float = field(default_factory=lambda: monotonic())
    """When the last of them came."""
    late_shards: int = 0
    """Number of shards that ended after their time."""

    def __call__(self, part: Observation, count: int, total: int, seconds: float | None) -> None:
        """Take note that ``count`` of ``total`` rows of a part are done; see ``shards.OnProgress``.

        Raises:
            BudgetSpentError: there is no time for what was handed out.
        """
        forecast, piece, now = self.work.forecast, (self.name, part), monotonic()
        fresh = count - self.counts.get(part, count)
        measured = 0 if seconds is None else fresh  # another rank's pace is taken for one's own
        seconds = (forecast.seconds(piece, fresh) or 0.0) if seconds is None else seconds
        forecast.tell(piece, measured, seconds, count, total)
        forecast.pass_time(seconds, now - self.since if fresh else 0.0)
        self.done.missing_rows += total - count if part not in self.counts else -fresh
        self.done.computed_rows += fresh
        self.counts[part], self.since = count, now
        if fresh or count < total:
            self.work.tell(f"{self.name}: {self.called[part]}, {count} of {total}")
        # What was handed out is abandoned if it would end too late. At the first shard that ends too late nobody has been
        # refused yet, who asks for one at a time.
        deadline = self.work.deadline
        self.late_shards += fresh > 0 and now > deadline.last_beginning_of_turn
        if self.late_shards and ((self.late_shards > 1 and not self.turns.refused) or now > deadline.last_overrun):
            raise self.work.spent()


log = logging.getLogger("holdfast")


def learn_all(
    work: Computing, population: Population, fits: Sequence[Fit[Any]], learned: dict[Fit[Any], Observed | Exception]
) -> None:
    """Note in ``learned`` what each of ``fits`` learns, or why it could not; ranks learn different ones."""
    if not isinstance(work.engine, Ranks):
        for fit in fits:
            learned[fit] = learn(work, population, fit)
        return
    keys = {
        fit: key_of(fit, population.encoder, population.images, population.run, population.bank_images) for fit in fits
    }
    units = {key.stem: fit for fit, key in keys.items()}
    for fit, learned_here in work.engine.share(
        partial(learn, work),
        population,
        units,
        is_kept=lambda fit: work.store.learned(keys[fit]) is not None,
        patient=lambda: work.deadline.affords(0.0),
    ):
        learned[fit] = learn(work, population, fit) if learned_here is None else learned_here
    for fit in fits:
        if fit not in learned:
            learned[fit] = work.spent()


def learn(work: Computing, population: Population, fit: Fit[Any]) -> Observed | Exception:
    """Compute ``fit`` and return its tensors, or the error, which fails only the cells that need the fit."""
    encoder, piece, since = population.encoder, (population.encoder.name, fit), monotonic()
    key = key_of(fit, encoder, population.images, population.run, population.bank_images)
    try:
        learned = work.store.learned(key)
        if learned is None:
            work.tell(f"{encoder.name}: learning {fit.name.replace('-', ' ')}")
            if not work.deadline.affords(work.forecast.expected(piece, 1)):
                raise work.spent()
            tensors = once(work.engine, tensors_of, population, fit)
            if isinstance(tensors, Exception):
                raise tensors
            learned = tensors
            work.store.keep_learned(key, learned)
            work.forecast.tell(piece, 1, monotonic() - since, 1, 1)
    except StoreError:
        raise
    except Exception as error:
        log.debug("%s: %s could not be learned", encoder.name, fit.name, exc_info=True)
        return error
    finally:
        work.forecast.drop(piece)
    return learned


@without_tf32()
def tensors_of(population: Population, fit: Fit[Any]) -> Observed | Exception:
    """Return the tensors of ``fit``, or the error; engines map this function over fits."""
    try:
        return {name: values.cpu() for name, values in fit.learn(population.at_work()).items()}
    except Exception as error:
        return error


def once(engine: Engine, task: Callable[[Population, Unit], Output], population: Population, what: Unit) -> Output:
    """Return ``task(population, what)``, computed where ``engine`` computes shards."""
    ((_, done),) = engine.map(task, population, [what])
    return done
