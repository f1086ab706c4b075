"""The preparation of an encoder: is it fit to be measured, its clean codes, what is learned of them, what is planned."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from holdfast.core.encoder import Codes
from holdfast.core.errors import BudgetSpentError, HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import Observed
from holdfast.execution.computing import Computing
from holdfast.execution.computing.fitting import learn_all, once
from holdfast.execution.computing.subject import Subject
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.ranks import Ranks
from holdfast.execution.examination import IMAGES, examine
from holdfast.execution.table.cells import Cells, MissingCells
from holdfast.protocol.evaluation import parts
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


def prepare(missing: MissingCells, cells: Cells) -> Subject | None:
    """Return the encoder with its codes, if anything is missing of it and it is fit to be measured.

    For ranks also with what is learned from them; else that is learned when its turn comes.
    """
    work = cells.work
    work.deadline.leave_turn()
    if not missing.evaluations:
        return None
    subject = None
    with cells.failing(missing.encoder, missing.images.name, missing.evaluations):
        subject = _prepared(missing, cells)
        for fit in subject.fits:
            with suppress(Exception):  # said when it is learned
                work.forecast.plan((missing.encoder.name, fit), fit.forwards(subject.population))
        if isinstance(work.engine, Ranks):
            learn_all(work, subject.population, subject.fits, subject.learned)
            subject.rest()  # the next population knows what was learned
        for observation in list(subject.groups):
            with cells.failing(missing.encoder, missing.images.name, subject.groups[observation]):
                _plan(subject, observation, work)
    return subject


def _prepared(missing: MissingCells, cells: Cells) -> Subject:
    """Return the encoder with its clean codes, those of the bank included.

    Raises:
        HoldfastError: it is not fit to be measured.
    """
    population = Population(missing.encoder, missing.images, cells.run)
    if problem := unfit(population, cells.work.engine):
        raise HoldfastError(problem)
    codes, bank = cells.work.codes(population, "codes"), None
    if missing.searched is not None:
        bank = missing.searched, _codes_of_bank(population, missing.searched, cells.work)
    learned = dict[Fit[Any], Observed | Exception]()
    subject = Subject(missing.encoder, missing.images, bank, codes, learned, cells.run, cells.other_encoders(missing))
    for evaluation in missing.evaluations:
        subject.groups.setdefault(evaluation.observation(), []).append(evaluation)
    return subject


def _codes_of_bank(population: Population, bank: Images, work: Computing) -> Codes:
    return work.codes(Population(population.encoder, bank, population.run), "codes of the bank")


def _plan(subject: Subject, observation: Observation, work: Computing) -> None:
    """Take note of the forwards that an observation takes; one whose rows cannot be told is not made at all."""
    try:
        observation.rows(subject.planning)
    except Exception as error:
        if not isinstance(error, BudgetSpentError):  # of what is not learned yet, rows are known later
            del subject.groups[observation]  # these fail alone
            raise
    for part in parts(observation):
        with suppress(Exception):  # said when it is observed
            work.forecast.plan((subject.encoder.name, part), part.forwards(subject.planning))


def unfit(population: Population, engine: Engine | None = None) -> str | None:
    """Return why the encoder of ``population`` cannot be measured where ``engine`` computes, if it cannot."""
    if population.encoder.recorded:
        return None  # its codes were looked at when they were read, and there is nothing else
    return once(engine or Local(), _problem, population, None)


def _problem(population: Population, _: None) -> str | None:
    population = population.at_work()
    pixels = population.pixels(population.choose(IMAGES))
    checks = examine(population.encoder, pixels, population.run, critical=True)
    failed = [check for check in checks if check.status == "failed"]
    return " ".join(check.sentence for check in failed) or None
