"""What comes next under a budget: for each observation a few images first, then twice as many, and again.

So all questions have an answer as early as possible, and all answers become better together. What must be learned for an
observation belongs to its next step, and is learned only when its turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from holdfast.core.errors import BudgetSpentError
from holdfast.execution.computing import Computing
from holdfast.execution.cost import Piece
from holdfast.execution.shards import first_held
from holdfast.execution.turns import Begun
from holdfast.protocol.evaluation import learning, parts
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation

FEWEST = 4
"""So many rows at least make a partial result: with fewer there is an interval of hardly anything."""


@final
@dataclass(frozen=True)
class Step:
    """What brings an observation to its next answer."""

    observation: Observation
    rows: int
    """So many rows are seen then, the first in random order."""
    whole: bool
    """Whether fewer would say nothing."""
    fits: tuple[Fit[Any], ...]
    """Learned first."""
    seconds: float
    """What all of it is expected to take, with conclusions that take long."""
    concluding: dict[Piece, float]
    """Those."""


def steps(begun: Begun, work: Computing) -> Iterator[Step]:
    """Yield the next step of every observation of an encoder that is not complete."""
    population, name = begun.planning(), begun.encoder.name
    ample = work.left / (2 * max(1, len(begun.groups)))
    for observation, group in begun.groups.items():
        if begun.why_not(observation):
            continue
        asked = dict.fromkeys(fit for evaluation in group for fit in learning(evaluation))
        fits = tuple(fit for fit in asked if fit not in begun.learned)
        learned_in = sum(work.forecast.expected((name, fit), 1) for fit in fits)
        try:
            total, seen = len(observation.rows(population)), len(first_held(observation, population, work.store))
        except BudgetSpentError:  # which images it looks at is learned, too
            yield Step(observation, 0, False, fits, learned_in, {})
            continue
        if seen == total and not fits:
            continue
        fewest = min(total, FEWEST if any(evaluation.partial for evaluation in group) else total)
        row = sum(work.forecast.expected((name, part), 1) for part in parts(observation))
        # What is nearly nothing beside the others is done at once.
        rows = total if seen >= fewest and (total - seen) * row <= ample else min(total, max(fewest, 2 * seen))
        seconds = learned_in + (rows - seen) * row
        dear: dict[Piece, float] = {
            (name, one): long for one in group if rows == total and (long := one.concluding(population))
        }
        yield Step(observation, rows, seen < fewest, fits, seconds + sum(dear.values()), dear)
