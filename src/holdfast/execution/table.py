"""Fill the table of encoders and evaluations, cell by cell, keeping every piece of finished work.

Per encoder: is it fit to be measured, its clean codes, what is learned from them (the fits that evaluations name), then
each distinct observation once (evaluations that ask for an equal one share it): a first shard of all, from which the
time left is known, then the rest, then the conclusions.
Whatever the store already holds is not computed again.

Under a budget all cells go forward together, as ``execution/rounds`` plans: first those that soonest have an answer, then
twice as many images of each, and again. What is seen when it ends, a random sample, is concluded where an evaluation
allows that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from math import inf
from time import monotonic
from typing import Any

from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError, HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.execution.computing import Computing, Progress
from holdfast.execution.cost import Forecast, pace
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.ranks import Ranks, leads
from holdfast.execution.examination import IMAGES, examine
from holdfast.execution.fitting import learn, learn_all, once
from holdfast.execution.rounds import FEWEST, Step, steps
from holdfast.execution.shards import CleanCodes, cell_of, first_held, observe
from holdfast.execution.turns import Begun
from holdfast.protocol.evaluation import Evaluation, learning, parts, pieces, with_bank
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population
from holdfast.store.provenance import provenance
from holdfast.store.store import Store, StoreError, key_of

log = logging.getLogger("holdfast")


def evaluate(
    encoders: Sequence[Encoder],
    images_for: Callable[[Encoder], Images],
    evaluations: Sequence[Evaluation],
    run: RunSettings,
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
        budget: seconds after which no new work begins, nor before if it would end more than a tenth later. All have
            their share of it, and what is seen by then is concluded as partial results.
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
    work = Computing(store, engine or Local(), progress, budget, began, Forecast({}))
    table = _Table(evaluations, run, store, work, bank_for)
    for encoder in encoders:
        table.look_up(encoder, images_for)
    table.fill(encoders)
    if isinstance(engine, Ranks):
        engine.end()
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
    forecast = Forecast({encoder.name: pace(population.encoder)})
    work = Computing(store, engine or Local(), progress, budget, began, forecast)
    for piece in (CleanCodes(), observation) if codes else (observation,):
        forecast.expect((encoder.name, piece))
    rows, ids = observation.rows(population), observation.ids(population)
    with suppress(BudgetSpentError if leads(work.engine) else Exception):  # rank 0 says what went wrong
        if codes:
            population = Population(encoder, images, run, work.codes(population, "codes"))
        work.compute(observation, population, observation.name)
    if isinstance(engine, Ranks):
        engine.end()
    ids_kept, observed = store.observed(key_of(observation, encoder, images, run), [ids[row] for row in rows])
    known = set(ids_kept)
    return population, [row for row in rows if ids[row] in known], observed


@dataclass
class _Table:
    """One pass over the table."""

    evaluations: Sequence[Evaluation]
    run: RunSettings
    store: Store
    work: Computing
    bank_for: Callable[[Encoder], Images | None] | None = None
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    missing: dict[str, tuple[Images, Images | None, list[Evaluation]]] = field(default_factory=dict)
    """By encoder, its images, its bank and the evaluations that the store does not hold."""
    partial: dict[tuple[str, Evaluation], Result] = field(default_factory=dict)
    """What the store holds of them, by encoder's name: results of some of the rows."""

    def look_up(self, encoder: Encoder, images_for: Callable[[Encoder], Images]) -> None:
        """Take what the store holds of ``encoder``, and plan what it does not."""
        for evaluation in self.evaluations if leads(self.work.engine) else ():
            self.store.clear_failure(evaluation.name, encoder.name)
        with self.failing(encoder, "unknown", self.evaluations):
            images, bank = images_for(encoder), None
            if self.bank_for and any(with_bank(evaluation) for evaluation in self.evaluations):
                bank = self.bank_for(encoder)
            missing = []
            for evaluation in self.evaluations:
                known = self.store.result(key_of(evaluation, encoder, images, self.run, bank))
                if known is not None and known.planned is None:
                    self.results.append(known)
                    continue
                missing.append(evaluation)
                if known is not None:
                    self.partial[encoder.name, evaluation] = known
            self.missing[encoder.name] = images, bank, missing
            self.store.expect([cell_of(evaluation, encoder, images, self.run, bank) for evaluation in self.evaluations])
            if missing:
                self.work.forecast.paces[encoder.name] = pace(encoder.to(self.run.device, self.run.dtype))
            for evaluation in missing:
                for what in pieces(evaluation):
                    self.work.forecast.expect((encoder.name, what))

    def fill(self, encoders: Sequence[Encoder]) -> None:
        """Compute what is missing: each evaluation ends up among the results or among the failures.

        One encoder after the other; under a budget all at once, in turns.
        """
        if self.work.budget is None:
            for encoder in encoders:
                if begun := self.begin(encoder):
                    if not isinstance(self.work.engine, Ranks):  # which would wait for each other
                        self.forward(begun, begun.groups, most=1)
                    if not isinstance(self.work.engine, Local):
                        self.forward(begun, begun.groups)
                    self.finish(begun)
            return
        every = [begun for encoder in encoders if (begun := self.begin(encoder))]
        self.take_turns(every)
        for begun in every:
            self.finish(begun)
            begun.rest()

    def begin(self, encoder: Encoder) -> Begun | None:
        """Return ``encoder`` with its codes, if anything is missing of it.

        Without a budget, and for ranks, also with what is learned from them; else that is learned when its turn comes.
        """
        self.work.until = inf
        images, bank, missing = self.missing.get(encoder.name, (None, None, []))
        if images is None or not missing:
            return None
        begun = None
        with self.failing(encoder, images.name, missing):
            population = Population(encoder, images, self.run)
            if problem := unfit(population, self.work.engine):
                raise HoldfastError(problem)
            codes, bank_population = self.work.codes(population, "codes"), None
            if bank is not None and any(with_bank(evaluation) for evaluation in missing):
                bank_population = (
                    bank,
                    self.work.codes(Population(population.encoder, bank, self.run), "codes of the bank"),
                )
            learned = dict[Fit[Any], Observed | Exception]()
            begun = Begun(encoder, images, bank_population, codes, learned, self.run)
            fits = list(dict.fromkeys(fit for evaluation in missing for fit in learning(evaluation)))
            for fit in fits:
                with suppress(Exception):  # said when it is learned
                    self.work.forecast.plan((encoder.name, fit), fit.forwards(begun.population))
            if self.work.budget is None or isinstance(self.work.engine, Ranks):
                learn_all(self.work, begun.population, fits, learned)
                begun.rest()  # the next population knows what was learned
            for evaluation in missing:
                begun.groups.setdefault(evaluation.observation(), []).append(evaluation)
            population = begun.planning()
            for observation, group in list(begun.groups.items()):
                with self.failing(encoder, images.name, group):
                    try:
                        observation.rows(population)
                    except Exception as error:
                        if not isinstance(error, BudgetSpentError) or self.work.budget is None:
                            del begun.groups[observation]  # these fail alone
                            raise
                    for part in parts(observation):
                        with suppress(Exception):  # said when it is observed
                            self.work.forecast.plan((encoder.name, part), part.forwards(population))
        return begun

    def take_turns(self, every: Sequence[Begun]) -> None:
        """Bring all encoders forward, round by round, each for an equal part of the time that is left.

        In a round nothing begins that would outlast its encoder's turn, unless nothing else is left; what one encoder does
        not need is shared by the others.
        """
        if isinstance(self.work.engine, Ranks):
            for place, begun in enumerate(every):
                self.work.turn(1 / (len(every) - place))
                self.forward(begun, begun.groups)
            return
        strict, known = True, False
        while True:
            going = False
            for place, begun in enumerate(every):
                self.work.turn(1 / (len(every) - place), strict)
                going |= self.advance(begun)
                if not known and begun is every[0]:
                    self.rehearse(begun)
                    known = True
                if len(every) > 1:
                    begun.rest()
            if not going and not strict:
                return
            strict = going

    def advance(self, begun: Begun) -> bool:
        """Bring an encoder's cells one step forward, the quickest first, and return whether there was time for any."""
        planned = sorted(steps(begun, self.work), key=lambda step: step.seconds)
        went = False
        for alone, some in groupby(planned, key=lambda step: bool(step.fits or step.concluding)):
            if not alone:
                went |= self.take(begun, list(some))
                continue
            for step in some:
                if self.work.affordable(step.seconds) and self.learned(begun, step.fits):
                    self.work.forecast.concluding |= step.concluding
                    self.take(begun, [step])
                    went = True
        return went

    def take(self, begun: Begun, taken: Sequence[Step]) -> bool:
        """Observe what these steps ask for, and return whether there was time for any of it."""
        groups = {step.observation: begun.groups[step.observation] for step in taken}
        first = {step.observation: step.rows for step in taken}
        return self.forward(begun, groups, None, first, [step.observation for step in taken if step.whole])

    def learned(self, begun: Begun, fits: Sequence[Fit[Any]]) -> bool:
        """Return whether all ``fits`` are learned now, or known to be impossible; fewer are if the time is spent."""
        for fit in fits:
            if fit not in begun.learned:
                what = learn(self.work, begun.population, fit)
                begun.rest()  # the next population knows what was learned
                if isinstance(what, BudgetSpentError):
                    return False
                begun.learned[fit] = what
        return True

    def rehearse(self, begun: Begun) -> None:
        """Conclude what there is of an encoder so far, only to know how long conclusions will take in the end."""
        for observation, group in begun.groups.items():
            known = [each for each in group if each.partial and begun.learned.keys() >= {*learning(each)}]
            rows_kept = first_held(observation, begun.population, self.store) if known else []
            if len(rows_kept) < FEWEST or begun.why_not(observation):
                continue
            observed = observe(observation, begun.population, rows_kept, self.store)
            for evaluation in known:
                since = monotonic()
                with suppress(Exception):  # said when it is concluded indeed
                    evaluation.result(begun.population, rows_kept, observed, illustrated=False)
                    self.work.forecast.tell((begun.encoder.name, evaluation), 1, monotonic() - since, 0, 1)

    def finish(self, begun: Begun) -> None:
        """Conclude all that is left of an encoder, unless another rank does."""
        for evaluation in (evaluation for group in begun.groups.values() for evaluation in group):
            for fit in learning(evaluation):
                begun.learned.setdefault(fit, self.work.spent())  # else it would be learned now
        begun.rest()
        for observation, group in begun.groups.items() if leads(self.work.engine) else ():
            with self.failing(begun.encoder, begun.images.name, group):
                self.conclude(begun, observation, group)

    def conclude(self, begun: Begun, observation: Observation, group: Sequence[Evaluation]) -> None:
        """Observe what is left, but for a budget, then conclude every evaluation of the ``group`` that shares it."""
        started, population = datetime.now(UTC), begun.population
        rows = rows_kept = observation.rows(population)
        if self.work.budget is None:
            self.forward(begun, {observation: group})
        if error := begun.why_not(observation):
            raise error
        if self.work.budget is not None:
            rows_kept = first_held(observation, population, self.store)
        whole, enough = len(rows_kept) == len(rows), len(rows_kept) >= FEWEST
        observed = observe(observation, population, rows_kept, self.store) if whole or enough else {}
        for evaluation in group:
            with self.failing(begun.encoder, begun.images.name, [evaluation]):
                if not whole and not (enough and evaluation.partial):
                    raise self.work.spent()
                known = self.partial.get((begun.encoder.name, evaluation))
                if not whole and known is not None and len(known.findings.ids) >= len(rows_kept):
                    raise self.work.spent()  # no more is known than then
                piece, since = (begun.encoder.name, evaluation), monotonic()
                self.work.tell(f"{begun.encoder.name}: {evaluation.name}, conclusion")
                # Pictures may take as long as what was observed; those of a partial result come with the full one.
                result = evaluation.result(population, rows_kept, observed, illustrated=whole)
                planned = None if whole else len(rows)
                result = result.model_copy(update={"provenance": provenance(self.run, started), "planned": planned})
                key = key_of(evaluation, begun.encoder, begun.images, self.run, population.bank_images)
                self.store.finish(key, result)
                self.results.append(result)
                self.work.forecast.tell(piece, 1, monotonic() - since, 1, 1)

    def forward(
        self,
        begun: Begun,
        groups: Mapping[Observation, Sequence[Evaluation]],
        most: int | None = None,
        first: Mapping[Observation, int] | None = None,
        whole: Collection[Observation] = (),
    ) -> bool:
        """Compute what the store does not hold for ``groups``, and return whether any of it was; what fails is noted."""
        sound = {each: named(group) for each, group in groups.items() if not begun.why_not(each)}
        done = self.work.shards(begun.population, sound, most, first, whole)
        begun.failed |= done.failed
        return done.fresh > 0

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
                    for what in pieces(evaluation):
                        self.work.forecast.drop((encoder.name, what))
                known = self.partial.get((encoder.name, evaluation))
                if known is not None and isinstance(error, BudgetSpentError):
                    self.results.append(known)  # it got no further than before
                    continue
                failure = Failure(
                    evaluation=evaluation.name,
                    encoder=encoder.name,
                    images=images,
                    error=type(error).__name__,
                    reason=str(error) or type(error).__name__,
                    provenance=provenance(self.run, datetime.now(UTC)),
                )
                if leads(self.work.engine):
                    self.store.fail(failure)
                self.failures.append(failure)


def named(group: Sequence[Evaluation]) -> str:
    """Return the names of evaluations that share an observation, as progress shows them."""
    return " and ".join(evaluation.name for evaluation in group)


def unfit(population: Population, engine: Engine | None = None) -> str | None:
    """Return why the encoder of ``population`` cannot be measured where ``engine`` computes, if it cannot."""
    return once(engine or Local(), _problem, population, None)


def _problem(population: Population, _: None) -> str | None:
    population = population.at_work()
    pixels = population.pixels(population.choose(IMAGES))
    failed = [check for check in examine(population.encoder, pixels, population.run) if check.status == "failed"]
    return " ".join(check.sentence for check in failed) or None
