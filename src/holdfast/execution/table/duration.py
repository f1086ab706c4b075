"""How long a run will take, said before anything of it is computed: rows that are missing, by their forwards."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite

import torch

from holdfast.execution.computing import Computing
from holdfast.execution.computing.deadline import SHORT
from holdfast.execution.computing.shards import CleanCodes, lacking
from holdfast.execution.computing.subject import Subject
from holdfast.execution.engines.automatic import Automatic
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.processes import Processes
from holdfast.execution.table.cells import Cells, MissingCells
from holdfast.execution.table.steps import pictures_of
from holdfast.protocol.evaluation import parts
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population
from holdfast.report.text import about, counted

WRITING = 2.0
"""Seconds of the report."""


def plan(row: MissingCells, cells: Cells) -> float:
    """Take note of how much is missing of an encoder, as far as that can be told without a code of it.

    Returns the seconds until it has its codes, without which nothing begins, whatever they take.
    """
    name, forecast = row.encoder.name, cells.work.forecast
    bank = None if row.searched is None else (row.searched, torch.zeros(len(row.searched), 1))
    subject = Subject(row.encoder, row.images, bank, torch.zeros(len(row.images), 1), {}, cells.run)
    for evaluation in row.evaluations:
        subject.groups.setdefault(evaluation.observation(), []).append(evaluation)
    for fit in subject.fits:
        with suppress(Exception):  # said when it is learned
            forecast.plan((name, fit), fit.forwards(subject.planning))
    for part in dict.fromkeys(part for observation in subject.groups for part in parts(observation)):
        with suppress(Exception):  # said when it is observed
            forwards = part.forwards(subject.planning)
            forecast.plan((name, part), forwards)  # how many rows there are may be known only when fits are
            forecast.plan((name, part), forwards, _missing_rows(part, subject.planning, cells.work))
    if cells.work.deadline.budget is None:  # a budget may end before there are full results
        for observation, group in subject.groups.items():
            with suppress(Exception):  # which rows there are may be known only when fits are
                rows = len(observation.rows(subject.planning))
                forecast.pictures |= pictures_of(name, observation, group, rows)
    populations = [subject.planning, *([Population(row.encoder, bank[0], cells.run)] if bank else [])]
    images = sum(_missing_rows(CleanCodes(), each, cells.work) for each in populations) if row.evaluations else 0
    return images * forecast.paces.get(name, 0.0)


def _missing_rows(observation: Observation, population: Population, work: Computing) -> int:
    return lacking(observation, population, work.store)


def expectation(work: Computing, device: str, encoding: float) -> str:
    """Return in a sentence how long a run will take, with so many seconds for codes, if that is long enough to be said."""
    left = work.forecast.seconds_left + encoding / work.forecast.beside + WRITING
    if not isfinite(left) or left <= SHORT:
        return ""
    sentence = f"expected to take {about(left)}{_where(work, device)}"
    if work.deadline.budget is None or left <= work.deadline.budget:
        return sentence
    return f"{sentence}; the budget ends after {about(work.deadline.budget)}, with wider intervals"


def beside(engine: Engine | None) -> int:
    """Return how many shards are computed side by side, as far as that is known before."""
    if isinstance(engine, Automatic):
        return engine.workers.count
    return engine.side_by_side if isinstance(engine, Processes) else 1


def _where(work: Computing, device: str) -> str:
    if isinstance(work.engine, Local):
        if device.startswith("cuda"):
            return f" on {torch.cuda.get_device_name(device)}"
        return f" on {counted(torch.get_num_threads(), 'core')}"
    return f" in {counted(beside(work.engine), 'worker')}" if isinstance(work.engine, (Automatic, Processes)) else ""
