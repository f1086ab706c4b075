"""Fill the table of encoders and evaluations, cell by cell, keeping every piece of finished work.

Per encoder: is it fit to be measured, its clean codes, what is learned from them (the fits that evaluations name), then
each distinct observation once (evaluations that ask for an equal one share it), then the conclusions. Whatever the store
already holds is not computed again.

All cells go forward together, as ``rounds`` plans: first those that soonest have an answer, then twice as many
images of each, and again. What is seen when a run ends early, by its budget or by Ctrl-C, is a random sample, and is
concluded where an evaluation allows that; so are parts of a run that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import monotonic

import torch

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.execution.computing import Computing, Progress
from holdfast.execution.computing.cost import Forecast, pace
from holdfast.execution.computing.deadline import Deadline
from holdfast.execution.computing.subject import Subject
from holdfast.execution.engines.automatic import one_thread
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.ranks import Ranks
from holdfast.execution.table.cells import Cells, MissingCells
from holdfast.execution.table.conclusions import finish
from holdfast.execution.table.duration import beside, expectation, plan
from holdfast.execution.table.interim import Interim, WriteReport
from holdfast.execution.table.preparation import prepare
from holdfast.execution.table.rounds import Rounds
from holdfast.protocol.evaluation import Evaluation, answerable, with_bank
from holdfast.store.store import Store


def fill_table(
    encoders: Sequence[Encoder],
    images_for: Callable[[Encoder], Images],
    evaluations: Sequence[Evaluation],
    run: RunSettings,
    store: Store,
    engine: Engine | None = None,
    *,
    progress: Progress | None = None,
    budget: float | None = None,
    began: float | None = None,
    bank_for: Callable[[Encoder], Images | None] | None = None,
    write: WriteReport | None = None,
    say: Callable[[str], None] | None = None,
    reason_for_radii: str = "",
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
        write: writes a report of what is stored while the run goes on.
        say: is told, before the work begins, how long it will take.
        reason_for_radii: why attacks are measured at these radii, for results to carry.

    Raises:
        HoldfastError: two encoders have the same name.
        StoreError: the store cannot be written.
        KeyboardInterrupt: somebody stopped the run; what was seen by then is concluded.
    """
    refuse_same_names(encoders)
    if not evaluations:
        raise HoldfastError("there is nothing to evaluate; name at least one evaluation")
    began = monotonic() if began is None else began
    forecast = Forecast({}, beside=beside(engine))
    work = Computing(store, engine or Local(), progress, Deadline(forecast, budget, began))
    cells = Cells(run, work, encoders, reason_for_radii)
    looked_up = [look_up(encoder, images_for, bank_for, evaluations, cells) for encoder in encoders]
    rows = [row for row in looked_up if row is not None]
    encoding = sum(plan(row, cells) for row in rows)
    if say and (sentence := expectation(work, run.computes_on, encoding)):
        say(sentence)
    compute_missing(rows, cells, Interim(cells, write))
    if isinstance(engine, Ranks):
        engine.end()
    if progress:
        progress("all cells", 1.0, 0.0)
    return cells.results, cells.failures


def refuse_same_names(encoders: Sequence[Encoder]) -> None:
    """Raise if two of ``encoders`` have the same name, by which results tell them apart."""
    names = [encoder.name for encoder in encoders]
    if twice := [name for name in names if names.count(name) > 1]:
        raise HoldfastError(f"two encoders are called {twice[0]!r}; name each one once")


def look_up(
    encoder: Encoder,
    images_for: Callable[[Encoder], Images],
    bank_for: Callable[[Encoder], Images | None] | None,
    evaluations: Sequence[Evaluation],
    cells: Cells,
) -> MissingCells | None:
    """Return what is missing of ``encoder``; nothing if its images cannot be had, which fails all of it."""
    cells.forget_failures(encoder, evaluations)
    with cells.failing(encoder, "unknown", evaluations):
        images, bank = images_for(encoder), None
        if bank_for and any(with_bank(evaluation) for evaluation in evaluations):
            bank = bank_for(encoder)
        applicable = [evaluation for evaluation in evaluations if answerable(evaluation, encoder, images)]
        missing = cells.look_up(encoder, images, bank, applicable)
        if missing.evaluations:
            with nullcontext() if isinstance(cells.work.engine, Local) else one_thread():
                cells.work.forecast.paces[encoder.name] = pace(encoder.to(_device_of_pace(cells.run), cells.run.dtype))
        return missing
    return None


def _device_of_pace(run: RunSettings) -> str:
    """Return where an encoder's pace is measured: on the device of the workers, if there is one like it here."""
    there = run.computes_on.startswith("cuda") and torch.cuda.is_available()
    return run.computes_on if there else run.device


def compute_missing(rows: Sequence[MissingCells], cells: Cells, interim: Interim) -> None:
    """Compute what is missing, of all encoders side by side.

    Raises:
        KeyboardInterrupt: somebody stopped it; what was seen by then is concluded.
    """
    every: list[Subject] = []
    try:
        if isinstance(cells.work.engine, Ranks) and cells.work.deadline.budget is None:
            in_turn(rows, cells)
        else:
            every += [subject for row in rows if (subject := prepare(row, cells))]
            Rounds(cells.work, every, interim).run()
    except KeyboardInterrupt:
        cells.work.stopped = True
        cells.work.tell("stopped; concluding what was seen, Ctrl-C again leaves that for later")
        finish_all(every, cells)
        raise
    finish_all(every, cells)


def finish_all(every: Sequence[Subject], cells: Cells) -> None:
    """Conclude all that was observed of these encoders."""
    for subject in every:
        finish(subject, cells)
        subject.rest()


def in_turn(rows: Sequence[MissingCells], cells: Cells) -> None:
    """Compute what is missing, one encoder after the other: side by side, ranks would wait for each other at every step."""
    for row in rows:
        if subject := prepare(row, cells):
            cells.work.forward(subject, subject.groups)
            finish(subject, cells)
