"""Fill the table of encoders and evaluations, cell by cell, keeping every piece of finished work.

Per encoder: is it fit to be measured, its clean codes, then each distinct observation once (evaluations that ask for an
equal one share it), then the conclusions. Whatever the store already holds is not computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic

from holdfast.doctor import IMAGES, examine
from holdfast.encoder import Encoder
from holdfast.engine.base import Engine
from holdfast.engine.local import Local
from holdfast.engine.shards import CleanCodes, observe
from holdfast.errors import HoldfastError
from holdfast.evaluation import Evaluation, Joint, Observation, Population, joined
from holdfast.images import Images
from holdfast.provenance import provenance
from holdfast.result import Failure, Result
from holdfast.run import Observed, Run
from holdfast.store import Store, StoreError, key_of

log = logging.getLogger("holdfast")


Progress = Callable[[str, float], None]
"""Told what is being done and which share of everything is finished."""


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
        budget: seconds after which no new work begins.

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
    table = _Table(evaluations, run, store, engine or Local(), progress, budget, len(encoders))
    for row, encoder in enumerate(encoders):
        table.share = row / len(encoders)
        table.measure(encoder, images_for)
    return table.results, table.failures


@dataclass
class _Table:
    """One pass over the table."""

    evaluations: Sequence[Evaluation]
    run: Run
    store: Store
    engine: Engine
    progress: Progress | None
    budget: float | None
    height: int
    share: float = 0.0
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    began: float = field(default_factory=monotonic)

    def measure(self, encoder: Encoder, images_for: Callable[[Encoder], Images]) -> None:
        """Fill the row of ``encoder``: each evaluation ends up among the results or among the failures."""
        for evaluation in self.evaluations:
            self.store.forgive(evaluation.name, encoder.name)
        with self.failing(encoder, "unknown", self.evaluations):
            images = images_for(encoder)
            known = [self.store.result(key_of(e, encoder, images, self.run)) for e in self.evaluations]
            self.results += [result for result in known if result is not None]
            missing = [e for e, result in zip(self.evaluations, known, strict=True) if result is None]
            with self.failing(encoder, images.name, missing):
                if missing:
                    self.fill(encoder, images, missing)

    def fill(self, encoder: Encoder, images: Images, evaluations: Sequence[Evaluation]) -> None:
        """Compute the cells of ``evaluations``."""
        groups: dict[Observation, list[Evaluation]] = {}
        for evaluation in evaluations:
            groups.setdefault(evaluation.observation(), []).append(evaluation)
        part = 1 / (self.height * (1 + len(groups)))
        population = Population(encoder, images, self.run)
        if problem := unfit(population):
            raise HoldfastError(problem)
        codes = self.observe(CleanCodes(), population, range(len(images)), part, "codes")["codes"]
        population = Population(population.encoder, images, self.run, codes)
        for observation, group in groups.items():
            with self.failing(encoder, images.name, group):
                self.conclude(population, observation, group, part)

    def conclude(
        self, population: Population, observation: Observation, group: Sequence[Evaluation], part: float
    ) -> None:
        """Observe once, then conclude every evaluation of the ``group`` that shares the observation."""
        encoder, images, started = population.encoder, population.images, datetime.now(UTC)
        rows = observation.rows(population)
        doing = " and ".join(evaluation.name for evaluation in group)
        observed = self.observe(observation, population, rows, part, doing)
        for evaluation in group:
            with self.failing(encoder, images.name, [evaluation]):
                self.tell(f"{encoder.name}: {evaluation.name}, conclusion")
                result = evaluation.result(population, rows, observed)
                result = result.model_copy(update={"provenance": provenance(self.run, started)})
                self.store.finish(key_of(evaluation, encoder, images, self.run), result)
                self.results.append(result)

    def observe(
        self, observation: Observation, population: Population, rows: Sequence[int], part: float, doing: str
    ) -> Observed:
        """Return what is seen of ``rows`` for ``doing``, a stage that is worth ``part`` of the whole table."""
        if isinstance(observation, Joint):
            # Piece by piece, so that other evaluations share the pieces.
            pieces = observation.parts
            share, count = part / len(pieces), len(pieces)
            doings = [f"{doing} (part {k} of {count})" for k in range(1, count + 1)]
            return joined(
                [self.observe(piece, population, rows, share, said) for piece, said in zip(pieces, doings, strict=True)]
            )
        before = self.share

        def told(done: int, total: int) -> None:
            self.share = before + part * done / max(total, 1)
            self.tell(f"{population.encoder.name}: {doing}, {done} of {total}")

        return observe(observation, population, rows, self.store, self.engine, told)

    def tell(self, doing: str) -> None:
        """Report progress, if anyone listens, and stop here if the time is up."""
        if self.progress:
            self.progress(doing, min(self.share, 1.0))
        if self.budget is not None and monotonic() - self.began >= self.budget:
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


def unfit(population: Population) -> str | None:
    """Return why the encoder of ``population`` cannot be measured, if it cannot."""
    pixels = population.pixels(population.choose(IMAGES))
    failed = [check for check in examine(population.encoder, pixels, population.run) if check.status == "failed"]
    return " ".join(check.sentence for check in failed) or None
