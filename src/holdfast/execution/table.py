"""Fill the table of encoders and evaluations, cell by cell, keeping every piece of finished work.

Per encoder: is it fit to be measured, its clean codes, what is learned from them (the fits that evaluations name), then
each distinct observation once (evaluations that ask for an equal one share it): a first shard of all, from which the
time left is known, then the rest, then the conclusions.
Whatever the store already holds is not computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Any, TypeVar

from holdfast.core.encoder import Codes, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run import Observed, Run
from holdfast.execution.doctor import IMAGES, examine
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.provenance import provenance
from holdfast.execution.shards import CleanCodes, Shard, cell_of, clean_codes, compute, learn, observe
from holdfast.execution.store import Store, StoreError, key_of
from holdfast.execution.work import Forecast, operations
from holdfast.protocol.evaluation import Evaluation, learning, parts, pieces, with_bank
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Joint, Observation, joined
from holdfast.protocol.population import Population

log = logging.getLogger("holdfast")
What = TypeVar("What")
Done = TypeVar("Done")


Progress = Callable[[str, float, float], None]
"""Told what is being done, which share of all work is finished and how many seconds are left (infinite if unknown)."""
OVERRUN = 1.1
"""How many times the budget a piece of work may be expected to end at and still begin."""


class BudgetSpentError(Exception):
    """The time is up: not a failure of the cell, which the next run computes."""


def evaluate(
    encoders: Sequence[Encoder],
    images_for: Callable[[Encoder], Images],
    evaluations: Sequence[Evaluation],
    run: Run,
    store: Store,
    engine: Engine | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    began: float | None = None,
    bank_for: Callable[[Encoder], Images | None] | None = None,
) -> tuple[list[Result], list[Failure]]:
    """Return the result of every evaluation of every encoder, and why others are missing.

    Args:
        encoders: to measure; their names tell them apart.
        images_for: gives the images for an encoder's domain and geometry.
        evaluations: to run on each.
        run: seed, device, precision and batch size.
        store: keeps what is finished and knows what already is.
        engine: where shards are computed; in this process by default.
        progress: is told how far things are.
        budget: seconds after which no new work begins, nor before if it would end more than a tenth later.
        began: when the budget began to run, by ``time.monotonic``; now by default.
        bank_for: gives the bank for an encoder, apart from its images, if there is one.

    Raises:
        HoldfastError: two encoders have the same name.
        StoreError: the store cannot be written.
    """
    names = [encoder.name for encoder in encoders]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise HoldfastError(f"two encoders are called {twice!r}; name each one once")
    if not evaluations:
        raise HoldfastError("there is nothing to evaluate; name at least one evaluation")
    began = monotonic() if began is None else began
    forecast = Forecast({encoder.name: operations(encoder) for encoder in encoders})
    table = _Table(evaluations, run, store, engine or Local(), progress, budget, began, forecast, bank_for)
    for encoder in encoders:
        table.look_up(encoder, images_for)
    for encoder in encoders:
        table.fill(encoder)
    if progress:
        progress("all cells", 1.0, 0.0)
    return table.results, table.failures


def collect(
    observation: Observation,
    population: Population,
    store: Store,
    engine: Engine | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    began: float | None = None,
    codes: bool = True,
) -> tuple[Population, list[int], Observed]:
    """Return the population with its clean codes, the rows of ``observation`` that ``store`` then holds, and those.

    Computes what is missing, shard by shard, as ``evaluate`` does; fewer rows than asked for mean a spent budget.
    ``codes`` says whether the clean codes of all images are needed.

    Raises:
        HoldfastError: the encoder cannot be measured like this.
        StoreError: the store cannot be written.
    """
    encoder, images, run = population.encoder, population.images, population.run
    began = monotonic() if began is None else began
    forecast = Forecast({encoder.name: operations(encoder)})
    table = _Table((), run, store, engine or Local(), progress, budget, began, forecast)
    for piece in (CleanCodes(), observation) if codes else (observation,):
        forecast.expect((encoder.name, piece))
    rows, ids = observation.rows(population), observation.ids(population)
    with suppress(BudgetSpentError):
        if codes:
            population = Population(encoder, images, run, table.codes(population, "codes"))
        table.compute(observation, population, rows, observation.name)
    held, observed = store.observed(key_of(observation, encoder, images, run), [ids[row] for row in rows])
    known = set(held)
    return population, [row for row in rows if ids[row] in known], observed


@dataclass
class _Table:
    """One pass over the table."""

    evaluations: Sequence[Evaluation]
    run: Run
    store: Store
    engine: Engine
    progress: Progress | None
    budget: float | None
    began: float
    forecast: Forecast
    bank_for: Callable[[Encoder], Images | None] | None = None
    share: float = 0.0
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    missing: dict[str, tuple[Images, Images | None, list[Evaluation]]] = field(default_factory=dict)
    """By encoder, its images, its bank and the evaluations that the store does not hold."""

    def look_up(self, encoder: Encoder, images_for: Callable[[Encoder], Images]) -> None:
        """Take what the store holds of ``encoder``, and plan what it does not."""
        for evaluation in self.evaluations:
            self.store.clear_failure(evaluation.name, encoder.name)
        with self.failing(encoder, "unknown", self.evaluations):
            images, bank = images_for(encoder), None
            if self.bank_for and any(with_bank(evaluation) for evaluation in self.evaluations):
                bank = self.bank_for(encoder)
            known = [self.store.result(key_of(e, encoder, images, self.run, bank)) for e in self.evaluations]
            self.results += [result for result in known if result is not None]
            missing = [e for e, result in zip(self.evaluations, known, strict=True) if result is None]
            self.missing[encoder.name] = images, bank, missing
            self.store.expect([cell_of(evaluation, encoder, images, self.run, bank) for evaluation in self.evaluations])
            for evaluation in missing:
                for what in pieces(evaluation):
                    self.forecast.expect((encoder.name, what))

    def fill(self, encoder: Encoder) -> None:
        """Compute what is missing of ``encoder``: each evaluation ends up among the results or among the failures."""
        images, bank, missing = self.missing.get(encoder.name, (None, None, []))
        if images is None or not missing:
            return
        with self.failing(encoder, images.name, missing):
            population = Population(encoder, images, self.run)
            if problem := unfit(population, self.engine):
                raise HoldfastError(problem)
            codes, held = self.codes(population, "codes"), None
            if bank is not None and any(with_bank(evaluation) for evaluation in missing):
                held = Population(population.encoder, bank, self.run)
                held = Population(population.encoder, bank, self.run, self.codes(held, "codes of the bank"))
            population = Population(population.encoder, images, self.run, codes, bank=held)
            fits = dict.fromkeys(fit for evaluation in missing for fit in learning(evaluation))
            known = {fit: self.learn(fit, population) for fit in fits}
            population = Population(population.encoder, images, self.run, codes, known, held)
            groups: dict[Observation, list[Evaluation]] = {}
            for evaluation in missing:
                groups.setdefault(evaluation.observation(), []).append(evaluation)
            measured = [group for group in groups.items() if self.measure(population, *group)]
            if not isinstance(self.engine, Local):
                self.together(population, [observation for observation, _ in measured])
            for observation, group in measured:
                with self.failing(encoder, images.name, group):
                    self.conclude(population, observation, group)

    def learn(self, fit: Fit[Any], population: Population) -> Observed | Exception:
        """Return what ``fit`` learns, or why it could not: that fails the cells that ask for it, and no others."""
        encoder, piece, since = population.encoder, (population.encoder.name, fit), monotonic()
        key = key_of(fit, encoder, population.images, self.run, population.bank_images)
        try:
            learned = self.store.learned(key)
            if learned is None:
                self.tell(f"{encoder.name}: learning {fit.name.replace('-', ' ')}", self.forecast.seconds(piece, 1))
                found = _once(self.engine, learn, population, fit)
                if isinstance(found, Exception):
                    raise found
                learned = found
                self.store.keep_learned(key, learned)
                self.forecast.tell(piece, 1, monotonic() - since, 1, 1)
        except StoreError:
            raise
        except Exception as error:
            log.debug("%s: %s could not be learned", encoder.name, fit.name, exc_info=True)
            return error
        finally:
            self.forecast.drop(piece)
        return learned

    def measure(self, population: Population, observation: Observation, group: Sequence[Evaluation]) -> bool:
        """Compute the first shard of each piece, so that the time left is known early; say whether that went well.

        On a cluster, which works on many shards at a time, all wait for the pieces themselves.
        """
        failed = len(self.failures)
        with self.failing(population.encoder, population.images.name, group):
            rows = observation.rows(population)
            for piece in parts(observation):
                self.compute(piece, population, rows, named(group), 1 if isinstance(self.engine, Local) else 0)
        return len(self.failures) == failed

    def together(self, population: Population, observations: Sequence[Observation]) -> None:
        """Compute all pieces of ``observations`` side by side; what fails or is not reached fails again on its own."""
        pieces = dict.fromkeys(piece for observation in observations for piece in parts(observation))
        with suppress(BudgetSpentError):
            self.forward([(piece, piece.rows(population)) for piece in pieces], population, "all evaluations")

    def conclude(self, population: Population, observation: Observation, group: Sequence[Evaluation]) -> None:
        """Observe once, then conclude every evaluation of the ``group`` that shares the observation."""
        encoder, images, started = population.encoder, population.images, datetime.now(UTC)
        rows = observation.rows(population)
        observed = self.observe(observation, population, rows, named(group))
        for evaluation in group:
            with self.failing(encoder, images.name, [evaluation]):
                piece, since = (encoder.name, evaluation), monotonic()
                self.tell(f"{encoder.name}: {evaluation.name}, conclusion", self.forecast.seconds(piece, 1))
                result = evaluation.result(population, rows, observed)
                result = result.model_copy(update={"provenance": provenance(self.run, started)})
                self.store.finish(key_of(evaluation, encoder, images, self.run, population.bank_images), result)
                self.results.append(result)
                self.forecast.tell(piece, 1, monotonic() - since, 1, 1)

    def observe(self, observation: Observation, population: Population, rows: Sequence[int], doing: str) -> Observed:
        """Return what is seen of ``rows`` for ``doing``, which progress names."""
        if isinstance(observation, Joint):
            # Piece by piece, so that other evaluations share the pieces.
            count = len(observation.parts)
            return joined(
                [
                    self.observe(piece, population, rows, f"{doing} (part {k} of {count})")
                    for k, piece in enumerate(observation.parts, start=1)
                ]
            )
        self.compute(observation, population, rows, doing)
        return observe(observation, population, rows, self.store)

    def codes(self, population: Population, doing: str) -> Codes:
        """Return the clean codes of all images."""
        self.compute(CleanCodes(), population, range(len(population.images)), doing)
        return clean_codes(population, self.store)

    def compute(
        self, observation: Observation, population: Population, rows: Sequence[int], doing: str, most: int | None = None
    ) -> None:
        """Compute what the store does not hold of ``rows``, at most so many shards, and measure how long it takes."""
        self.forward([(observation, rows)], population, doing, most, alone=True)

    def forward(
        self,
        asked: Sequence[Shard],
        population: Population,
        doing: str,
        most: int | None = None,
        alone: bool = False,
    ) -> None:
        """Compute what the store does not hold of what is ``asked``; what fails is an error where it stands ``alone``."""
        name, since = population.encoder.name, monotonic()
        before: dict[Observation, int] = {}

        def told(observation: Observation, done: int, total: int, upcoming: int) -> None:
            nonlocal since
            piece, fresh, now = (name, observation), done - before.get(observation, done), monotonic()
            self.forecast.tell(piece, fresh, now - since, done, total)
            before[observation], since = done, now
            if upcoming or fresh:
                stage = f"{name}: {doing}, {done} of {total}"
                self.tell(stage, self.forecast.seconds(piece, upcoming) if upcoming else None)

        failed = compute(asked, population, self.store, self.engine, told, most)
        if alone and failed:
            raise failed[asked[0][0]]

    def tell(self, doing: str, upcoming: float | None) -> None:
        """Report progress, if anyone listens, and stop here if what comes next does not fit into the budget."""
        spent, left = monotonic() - self.began, self.forecast.left
        if left < inf:
            self.share = max(self.share, spent / (spent + left))
        if self.progress:
            self.progress(doing, self.share, left)
        if self.budget is None:
            return
        if spent >= self.budget or spent + (upcoming or 0) > OVERRUN * self.budget:
            raise BudgetSpentError(
                f"not run: the budget of {self.budget:g} s was spent; run the same command again to continue"
            )

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
                if (encoder.name, evaluation) in self.forecast.waiting:
                    for what in pieces(evaluation):
                        self.forecast.drop((encoder.name, what))
                failure = Failure(
                    evaluation=evaluation.name,
                    encoder=encoder.name,
                    images=images,
                    error=type(error).__name__,
                    reason=str(error) or type(error).__name__,
                    provenance=provenance(self.run, datetime.now(UTC)),
                )
                self.store.fail(failure)
                self.failures.append(failure)


def named(group: Sequence[Evaluation]) -> str:
    """Return the names of evaluations that share an observation, as progress shows them."""
    return " and ".join(evaluation.name for evaluation in group)


def unfit(population: Population, engine: Engine | None = None) -> str | None:
    """Return why the encoder of ``population`` cannot be measured where ``engine`` computes, if it cannot."""
    return _once(engine or Local(), _problem, population, None)


def _problem(population: Population, _: None) -> str | None:
    population = population.at_work()
    pixels = population.pixels(population.choose(IMAGES))
    failed = [check for check in examine(population.encoder, pixels, population.run) if check.status == "failed"]
    return " ".join(check.sentence for check in failed) or None


def _once(engine: Engine, task: Callable[[Population, What], Done], population: Population, what: What) -> Done:
    """Return what ``task`` makes of ``what``, computed where ``engine`` computes shards."""
    ((_, done),) = engine.map(task, population, [what])
    return done
