"""Attacked images themselves, beside what they were and what the encoder makes of both; measures only keep numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.presets import Preset
from holdfast.attacks.square import SquareAttack
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.run import Observed
from holdfast.evaluations.attacked.attacked import attacked, nearest
from holdfast.objectives.base import DivergenceObjective, Objective
from holdfast.protocol.population import Population

NEAREST = 10
"""How many nearest other images a goal against neighbours faces, as in breakaway's own attack."""
RANDOM = 256
"""How many random other images a goal against a queue faces."""


@dataclass(frozen=True)
class Adversarial:
    """Attacked inputs by row: one per image, or one per view of an image where a goal sets two views against each other.

    The rows of one image follow each other.
    """

    rows: Int[Tensor, "n"]
    """Which image of the population each row shows."""
    ids: tuple[str, ...]
    clean: Pixels
    attacked: Pixels
    clean_codes: Codes
    codes: Codes
    clean_gain: Float[Tensor, "n"]
    gain: Float[Tensor, "n"]
    targets: tuple[int, ...] | None
    """The image that each row was moved towards."""
    batches: tuple[int, ...]
    """The sizes of the batches they were attacked in, which change the result of a goal that is not per sample."""


def attack(
    population: Population, rows: Sequence[int], preset: Preset, progress: Callable[[float], None] | None = None
) -> Adversarial:
    """Return the images at ``rows`` of ``population`` after the attack, goal and ball of ``preset``.

    Random choices are those of the evaluations: an untargeted attack returns the images that displacement measures.

    Args:
        population: the images, their encoder and the run.
        rows: which to attack.
        preset: how.
        progress: is told which share of ``rows`` is finished.

    Raises:
        HoldfastError: the goal, the attack and the encoder do not fit together.
    """
    goal = _ready(preset, population)
    finished = 0

    def work(batch: Sequence[int]) -> Observed:
        nonlocal finished
        seen = _attack(population, batch, replace(preset, goal=goal))
        finished += len(batch)
        if progress:
            progress(finished / len(rows))
        return seen

    run = (
        population.run
        if goal.per_sample
        else replace(population.run, batch_size=even(len(rows), population.run.batch_size))
    )
    seen = run.batches(rows, work)
    views = seen["codes"].shape[1]
    names = [population.images.ids[row] for row in rows]
    flat = {name: values.flatten(0, 1) for name, values in seen.items() if name != "batch"}
    repeated = torch.tensor(list(rows)).repeat_interleave(views)
    return Adversarial(
        rows=repeated,
        ids=tuple(name if views == 1 else f"{name} view {view + 1}" for name in names for view in range(views)),
        targets=tuple(population.partners[repeated].tolist()) if goal.targeted else None,
        batches=tuple(sorted(set(seen["batch"].tolist()))),
        **flat,
    )


def _attack(population: Population, rows: Sequence[int], preset: Preset) -> Observed:
    targets = population.partners[list(rows)].tolist() if preset.goal.targeted else None
    context = population.context(rows, targets, rivals_of(population, rows, preset.goal))
    context = preset.prepare(context) if preset.prepare else context
    moved = attacked(context, preset.goal, preset.attack, preset.ball)
    codes, objective = population.encode(moved), preset.goal(context)
    with torch.no_grad():
        clean_gain, gain = objective(context.codes), objective(codes)
    seen = {
        "clean": context.pixels,
        "attacked": moved,
        "clean_codes": context.codes,
        "codes": codes,
        "clean_gain": clean_gain,
        "gain": gain,
    }
    # Views come one after the other, all images each: (views * b, ...) becomes (b, views, ...).
    by_image = {name: values.unflatten(0, (-1, len(rows))).transpose(0, 1).cpu() for name, values in seen.items()}
    return {**by_image, "batch": torch.full((len(rows),), len(rows))}


def _ready(preset: Preset, population: Population) -> Objective:
    """Return the goal with a divergence that has learned from the clean codes what it needs and can be climbed."""
    goal = preset.goal
    if not isinstance(goal, DivergenceObjective):
        return goal
    if not goal.divergence.smooth and not isinstance(preset.attack, SquareAttack):
        raise HoldfastError(
            f"the divergence {goal.divergence} has no gradient for {preset.attack.name} to climb; "
            f"use --attack square, or --divergence {L2Distance.name}"
        )
    return replace(goal, divergence=population.fitted(goal.divergence))


def rivals_of(population: Population, rows: Sequence[int], goal: Objective) -> Float[Tensor, "b k d"] | None:
    """Return the codes of the other images that ``goal`` sets those at ``rows`` against, if it does."""
    if goal.rivals == "none":
        return None
    others = len(population.images) - 1
    if others < 1:
        raise HoldfastError(f"the objective {goal.name} needs the codes of other images, but there is one; add images")
    if goal.rivals == "nearest":
        divergence = goal.divergence if isinstance(goal, DivergenceObjective) else L2Distance()
        found = nearest(divergence, population.codes[list(rows)], population.codes, NEAREST, own=rows)
    else:
        found = population.others(rows, RANDOM)
    return population.codes[found]


def even(count: int, size: int) -> int:
    """Return a batch size of at most ``size`` at which no batch of ``count`` images is much smaller than the others.

    Example:
        >>> even(257, 256), even(100, 256)
        (129, 100)
    """
    return ceil(count / ceil(count / size))
