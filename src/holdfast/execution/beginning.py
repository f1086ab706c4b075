"""The beginning of an encoder's row: is it fit to be measured, its clean codes, what is learned of them, what is planned."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any

from holdfast.core.encoder import Codes
from holdfast.core.errors import BudgetSpentError, HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import Observed
from holdfast.execution.begun import Begun
from holdfast.execution.cells import Cells, Row
from holdfast.execution.computing import Computing
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.ranks import Ranks
from holdfast.execution.examination import IMAGES, examine
from holdfast.execution.fitting import learn_all, once
from holdfast.protocol.evaluation import parts
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


def begin(row: Row, cells: Cells) -> Begun | None:
    """Return the encoder with its codes, if anything is missing of it and it is fit to be measured.

    For ranks also with what is learned from them; else that is learned when its turn comes.
    """
    work = cells.work
    work.until = inf
    if not row.evaluations:
        return None
    begun = None
    with cells.failing(row.encoder, row.images.name, row.evaluations):
        begun = _encoded(row, cells)
        for fit in begun.fits:
            with suppress(Exception):  # said when it is learned
                work.forecast.plan((row.encoder.name, fit), fit.forwards(begun.population))
        if isinstance(work.engine, Ranks):
            learn_all(work, begun.population, begun.fits, begun.learned)
            begun.rest()  # the next population knows what was learned
        for observation in list(begun.groups):
            with cells.failing(row.encoder, row.images.name, begun.groups[observation]):
                _plan(begun, observation, work)
    return begun


def _encoded(row: Row, cells: Cells) -> Begun:
    """Return the encoder with its clean codes, those of the bank included.

    Raises:
        HoldfastError: it is not fit to be measured.
    """
    population = Population(row.encoder, row.images, cells.run)
    if problem := unfit(population, cells.work.engine):
        raise HoldfastError(problem)
    codes, bank = cells.work.codes(population, "codes"), None
    if row.searched is not None:
        bank = row.searched, _codes_of_bank(population, row.searched, cells.work)
    begun = Begun(row.encoder, row.images, bank, codes, dict[Fit[Any], Observed | Exception](), cells.run)
    for evaluation in row.evaluations:
        begun.groups.setdefault(evaluation.observation(), []).append(evaluation)
    return begun


def _codes_of_bank(population: Population, bank: Images, work: Computing) -> Codes:
    return work.codes(Population(population.encoder, bank, population.run), "codes of the bank")


def _plan(begun: Begun, observation: Observation, work: Computing) -> None:
    """Take note of the forwards that an observation takes; one whose rows cannot be told is not made at all."""
    try:
        observation.rows(begun.planning)
    except Exception as error:
        if not isinstance(error, BudgetSpentError):  # of what is not learned yet, rows are known later
            del begun.groups[observation]  # these fail alone
            raise
    for part in parts(observation):
        with suppress(Exception):  # said when it is observed
            work.forecast.plan((begun.encoder.name, part), part.forwards(begun.planning))


def unfit(population: Population, engine: Engine | None = None) -> str | None:
    """Return why the encoder of ``population`` cannot be measured where ``engine`` computes, if it cannot."""
    return once(engine or Local(), _problem, population, None)


def _problem(population: Population, _: None) -> str | None:
    population = population.at_work()
    pixels = population.pixels(population.choose(IMAGES))
    failed = [check for check in examine(population.encoder, pixels, population.run) if check.status == "failed"]
    return " ".join(check.sentence for check in failed) or None
