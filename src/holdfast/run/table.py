"""The table of encoders and evaluations, filled cell by cell.

Encoders are prepared first, and the run then estimates its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from math import inf, isfinite

import torch

from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError, HoldfastError
from holdfast.core.records import Failure, Result, grouped
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import Evaluation, answerable, parts, with_bank
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.report.text import about, counted
from holdfast.run.checkup import IMAGES, essential_checks
from holdfast.run.computing import Computing, EncoderState, learn_all, once
from holdfast.run.conclusions import Cells, MissingCells, finish
from holdfast.run.engines.base import Engine, Local
from holdfast.run.engines.processes import Automatic, Processes, torch_threads
from holdfast.run.engines.ranks import Ranks, is_main
from holdfast.run.forecast import SHORT, pictures_of, seconds_per_forward
from holdfast.run.inputs import Inputs
from holdfast.run.scheduler import Schedule, WriteReport
from holdfast.run.shards import CleanCodes, missing_count

WRITING = 2.0
"""Seconds of the report."""


def plan(row: MissingCells, cells: Cells) -> float:
    """Take note of how much is missing of an encoder, as far as that can be told without an embedding of it.

    Returns the seconds until it has its embeddings, without which nothing begins, whatever they take.
    """
    name, forecast = row.encoder.name, cells.work.forecast
    bank = None if row.searched is None else (row.searched, torch.zeros(len(row.searched), 1))
    groups = grouped((evaluation.observation(), evaluation) for evaluation in row.evaluations)
    codes = torch.zeros(len(row.images), 1)
    subject = EncoderState(row.encoder, row.images, bank, codes, {}, cells.run, groups=groups)
    for fit in subject.fits:
        with suppress(Exception):  # said when it is learned
            forecast.plan((name, fit), fit.forward_passes(subject.planning))
    for part in dict.fromkeys(part for observation in subject.groups for part in parts(observation)):
        with suppress(Exception):  # said when it is observed
            forwards = part.forward_passes(subject.planning)
            forecast.plan((name, part), forwards)  # how many rows there are may be known only when fits are
            forecast.plan((name, part), forwards, missing_count(part, subject.planning, cells.work.store))
    if cells.work.deadline.budget is None:  # a budget may end before there are full results
        for observation, group in subject.groups.items():
            with suppress(Exception):  # which rows there are may be known only when fits are
                rows = len(observation.rows(subject.planning))
                forecast.pictures |= pictures_of(name, observation, group, rows)
    populations = [subject.planning, *([Population(row.encoder, bank[0], cells.run)] if bank else [])]
    images = sum(missing_count(CleanCodes(), each, cells.work.store) for each in populations) if row.evaluations else 0
    return images * forecast.paces.get(name, 0.0)


def expectation(work: Computing, device: str, encoding: float) -> str:
    """Return a sentence with the expected time of a run (``encoding``: seconds for embeddings); empty if short."""
    left = work.forecast.seconds_left + encoding / work.forecast.beside + WRITING
    if not isfinite(left) or left <= SHORT:
        return ""
    where = ""
    if isinstance(work.engine, Local):
        where = f" on {counted(torch.get_num_threads(), 'core')}"
        where = f" on {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else where
    elif isinstance(work.engine, (Automatic, Processes)):
        where = f" in {counted(beside(work.engine), 'worker')}"
    sentence = f"expected to take {about(left)}{where}"
    if work.deadline.budget is None or left <= work.deadline.budget:
        return sentence
    return f"{sentence}; the budget ends after {about(work.deadline.budget)}, with wider intervals"


def beside(engine: Engine | None) -> int:
    """Return the number of shards computed in parallel, as far as known in advance."""
    if isinstance(engine, Automatic):
        return engine.workers.count
    return engine.side_by_side if isinstance(engine, Processes) else 1


def prepare(missing: MissingCells, cells: Cells) -> EncoderState | None:
    """Return the encoder with its embeddings, if anything is missing of it and it is fit to be measured.

    For ranks also with what is learned from them; else that is learned when its turn comes.
    """
    work = cells.work
    work.deadline.turn_end = inf  # work of every encoder may last until the end of the budget again
    if not missing.evaluations:
        return None
    subject = None
    with cells.failing(missing.encoder, missing.images.name, missing.evaluations):
        subject = _prepared(missing, cells)
        for fit in subject.fits:
            with suppress(Exception):  # said when it is learned
                work.forecast.plan((missing.encoder.name, fit), fit.forward_passes(subject.population))
        if isinstance(work.engine, Ranks):
            learn_all(work, subject.population, subject.fits, subject.learned)
            subject.release()  # the next population knows what was learned
        for observation in list(subject.groups):
            with cells.failing(missing.encoder, missing.images.name, subject.groups[observation]):
                _plan(subject, observation, work)
    return subject


def _prepared(missing: MissingCells, cells: Cells) -> EncoderState:
    """Return the encoder with its clean embeddings, also of the reference set.

    Raises:
        HoldfastError: it is not fit to be measured.
    """
    population = Population(missing.encoder, missing.images, cells.run)
    if problem := unfit(population, cells.work.engine):
        raise HoldfastError(problem)
    codes, bank = cells.work.codes(population, "codes"), None
    if missing.searched is not None:
        searched = Population(missing.encoder, missing.searched, cells.run)
        bank = missing.searched, cells.work.codes(searched, "codes of the bank")
    needs_others = any(evaluation.needs_others for evaluation in missing.evaluations)
    others = [encoder for encoder in cells.encoders if needs_others and encoder is not missing.encoder]
    groups = grouped((evaluation.observation(), evaluation) for evaluation in missing.evaluations)
    return EncoderState(missing.encoder, missing.images, bank, codes, {}, cells.run, others, groups)


def _plan(subject: EncoderState, observation: Observation, work: Computing) -> None:
    try:
        observation.rows(subject.planning)
    except Exception as error:
        if not isinstance(error, BudgetSpentError):  # of what is not learned yet, rows are known later
            del subject.groups[observation]  # these fail alone
            raise
    for part in parts(observation):
        with suppress(Exception):  # said when it is observed
            work.forecast.plan((subject.encoder.name, part), part.forward_passes(subject.planning))


def unfit(population: Population, engine: Engine | None = None) -> str | None:
    """Return why the encoder of ``population`` cannot be measured where ``engine`` computes, if it cannot."""
    if population.encoder.codes_only:
        return None  # its codes were looked at when they were read, and there is nothing else
    return once(engine or Local(), _problem, population, None)


def _problem(population: Population, _: None) -> str | None:
    population = population.at_work()
    pixels = population.pixels(population.choose(IMAGES))
    checks = essential_checks(population.encoder, pixels, population.run, critical=True)
    failed = [check for check in checks if check.status == "failed"]
    return " ".join(check.sentence for check in failed) or None


# Whatever the store already holds is not computed again. What is seen when a run ends early, by its budget or by Ctrl-C,
# is a random sample, and is concluded where an evaluation allows that; so are parts of a run that goes on.


def fill_table(
    inputs: Inputs,
    evaluations: Sequence[Evaluation],
    run: RunSettings,
    work: Computing,
    write: WriteReport | None = None,
    reason_for_radii: str = "",
) -> tuple[list[Result], list[Failure]]:
    """Return the result of every evaluation of every encoder, and why others are missing.

    Args:
        inputs: encoders with distinct names, each with its images and reference set.
        evaluations: to run on each encoder.
        run: seed, device, precision and batch size.
        work: computes what its store does not hold. After its budget no new work begins, nor before if it would end
            more than a tenth later. All have their share of it, and what is seen by then is concluded as partial results.
        write: writes a report of what is stored while the run goes on.
        reason_for_radii: why attacks are measured at these radii, for results to carry.

    Raises:
        HoldfastError: two encoders have the same name.
        StoreError: the store cannot be written.
        KeyboardInterrupt: the user stopped the run; observed rows are concluded.
    """
    check_distinct_names(inputs.encoders)
    if not evaluations:
        raise HoldfastError("there is nothing to evaluate; name at least one evaluation")
    cells = Cells(run, work, inputs.encoders, reason_for_radii)
    looked_up = [look_up(encoder, inputs, evaluations, cells) for encoder in inputs.encoders]
    rows = [row for row in looked_up if row is not None]
    encoding = sum(plan(row, cells) for row in rows)
    if work.progress and (sentence := expectation(work, run.computes_on, encoding)):
        work.progress.say(sentence)
    compute_missing(rows, cells, write)
    if isinstance(work.engine, Ranks):
        work.engine.end()
    if work.progress:
        work.progress("all cells", 1.0, 0.0)
    return cells.results, cells.failures


def check_distinct_names(encoders: Sequence[Encoder]) -> None:
    """Raise if two of ``encoders`` have the same name, by which results tell them apart."""
    names = [encoder.name for encoder in encoders]
    if twice := [name for name in names if names.count(name) > 1]:
        raise HoldfastError(f"two encoders are called {twice[0]!r}; name each one once")


def look_up(encoder: Encoder, inputs: Inputs, evaluations: Sequence[Evaluation], cells: Cells) -> MissingCells | None:
    """Return the missing cells of ``encoder``; None if its images cannot be loaded, which fails all cells."""
    for evaluation in evaluations if is_main(cells.work.engine) else ():  # these are tried again
        cells.work.store.clear_failure(evaluation.name, encoder.name)
    with cells.failing(encoder, "unknown", evaluations):
        images = inputs.images(encoder)
        bank = inputs.bank(encoder) if any(map(with_bank, evaluations)) else None
        applicable = [evaluation for evaluation in evaluations if answerable(evaluation, encoder, images)]
        missing = cells.look_up(encoder, images, bank, applicable)
        if missing.evaluations:
            with nullcontext() if isinstance(cells.work.engine, Local) else torch_threads(1):
                # On the device of the workers, if this machine has it.
                there = cells.run.computes_on.startswith("cuda") and torch.cuda.is_available()
                device = cells.run.computes_on if there else cells.run.device
                seconds = seconds_per_forward(encoder.to(device, cells.run.dtype))
                cells.work.forecast.know_pace(encoder.name, seconds)
        return missing
    return None


def compute_missing(rows: Sequence[MissingCells], cells: Cells, write: WriteReport | None) -> None:
    """Compute what is missing, of all encoders side by side.

    Raises:
        KeyboardInterrupt: the user stopped the run; observed rows are concluded.
    """
    every: list[EncoderState] = []
    try:
        if isinstance(cells.work.engine, Ranks) and cells.work.deadline.budget is None:
            # One encoder after the other: side by side, ranks would wait for each other at every step.
            for row in rows:
                if subject := prepare(row, cells):
                    cells.work.forward(subject, subject.groups)
                    finish(subject, cells)
        else:
            every += [subject for row in rows if (subject := prepare(row, cells))]
            Schedule(cells, every, write).run()
    except KeyboardInterrupt:
        cells.work.stopped = True
        cells.work.tell("stopped; concluding what was seen, Ctrl-C again leaves that for later")
        finish_all(every, cells)
        raise
    finish_all(every, cells)


def finish_all(every: Sequence[EncoderState], cells: Cells) -> None:
    """Conclude all that was observed of these encoders."""
    for subject in every:
        finish(subject, cells)
        subject.release()
