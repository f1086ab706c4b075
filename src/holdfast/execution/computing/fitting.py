"""What is learned from all images, once: kept as it comes, and learned only where it is not kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from holdfast.core.run_settings import Observed
from holdfast.core.whole_float32 import whole_float32
from holdfast.execution.computing import Computing
from holdfast.execution.engines.base import Engine, Output, Unit
from holdfast.execution.engines.ranks import Ranks
from holdfast.protocol.fits import Fit
from holdfast.protocol.population import Population
from holdfast.store.keys import key_of
from holdfast.store.store import StoreError

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
    """Return what ``fit`` learns, or why it could not: that fails the cells that ask for it, and no others."""
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


@whole_float32()
def tensors_of(population: Population, fit: Fit[Any]) -> Observed | Exception:
    """Return what ``fit`` learns, or why it cannot: what an engine maps over fits, wherever it computes."""
    try:
        return {name: values.cpu() for name, values in fit.learn(population.at_work()).items()}
    except Exception as error:
        return error


def once(engine: Engine, task: Callable[[Population, Unit], Output], population: Population, what: Unit) -> Output:
    """Return what ``task`` makes of ``what``, computed where ``engine`` computes shards."""
    ((_, done),) = engine.map(task, population, [what])
    return done
