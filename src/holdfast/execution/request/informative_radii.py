"""Radii at which the encoders of a run differ, chosen before anything else where nobody asked for any.

At too large a radius every encoder loses all images, and at too small a one none: nothing tells them apart. So the smallest
change after which an image is mistaken is searched for first, on a few images of each encoder, and radii are taken within
which the strongest, the one of the largest median, loses some of them and keeps others. The radii that evaluations have by
themselves stay where they do that already.

Which images are looked at, and what is found, follows from encoders, images and seed, and is kept in the store: whoever goes
on, names the encoders in another order, has a budget or more workers gets the same radii.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isnan
from typing import Any, cast, final

import numpy as np

from holdfast.attacks.base import Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.square import SquareAttack
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Encoder
from holdfast.core.operations import operations
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.evaluations.attacked.attack_radius import Radii
from holdfast.execution.computing import Computing
from holdfast.execution.computing.shards import read_observed
from holdfast.execution.request import Request
from holdfast.execution.request.loading import Inputs
from holdfast.execution.request.suites import HEAVY
from holdfast.protocol.evaluation import Evaluation, attacks_in_balls, plain
from holdfast.protocol.population import Population
from holdfast.report import text
from holdfast.store.store import StoreError

log = logging.getLogger("holdfast")
LEAST, MOST = 0.2, 0.8
"""A radius is informative within which the strongest encoder loses at least and at most so large a share of the images."""
AIMS = {1: (0.5,), 2: (1 / 3, 2 / 3)}
"""The shares that it loses, as nearly as a readable radius allows, by how many radii are measured."""
STEPS = (1, 2, 3, 5, 10)
"""Readable radii are these multiples of a power of ten, in 1/255."""
WIDEST = Linf(0.5)
IMAGES, FEW = 32, 12
"""Images that are searched, and those of an encoder of ``HEAVY`` operations: a fortieth of what quick asks of it."""


@final
@dataclass(frozen=True)
class InformativeRadii:
    """The balls to measure in, and in a sentence why."""

    balls: tuple[Ball, ...]
    sentence: str

    def of(self, evaluation: Evaluation) -> Evaluation:
        """Return ``evaluation`` in these balls: in no more than it would have by itself."""
        values = cast(Any, evaluation)
        return cast(Evaluation, replace(values, balls=self.balls[: len(values.balls)]))


def left_open(request: Request, plan: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the evaluations of ``plan`` whose radii nobody has fixed: of quick alone, other suites are protocols."""
    if request.suite != "quick" or request.eps or request.ball:
        return []
    free = [
        evaluation
        for evaluation in plan
        if attacks_in_balls(type(evaluation))
        and "balls" not in request.settings.get(evaluation.name, {})
        and all(isinstance(ball, Linf) for ball in vars(evaluation)["balls"])
    ]
    # Those that search radii report nothing at fixed ones.
    return free if any(not hasattr(evaluation, "widest") for evaluation in free) else []


def informative_radii(
    request: Request, plan: Sequence[Evaluation], inputs: Inputs, run: RunSettings, work: Computing
) -> InformativeRadii | None:
    """Return the radii for evaluations that are left open; nothing where no encoder tells any.

    Raises:
        StoreError: the store cannot be written.
    """
    attack = SquareAttack(queries=100) if request.black_box else GradientAttack(steps=5)
    encoders = [each for each in inputs.encoders if not each.source.startswith("baseline:")] or inputs.encoders
    heavy = max(map(operations, encoders)) >= HEAVY
    radii = {}
    for encoder in encoders:
        try:
            radii[encoder.name] = _radii(encoder, attack, FEW if heavy else IMAGES, inputs, run, work)
        except StoreError:
            raise
        except Exception:  # its examination says what is wrong with it
            log.debug("no radii of %s", encoder.name, exc_info=True)
    balls = dict.fromkeys(ball for evaluation in plan for ball in vars(evaluation)["balls"])
    return choose(radii, tuple(balls))


def _radii(
    encoder: Encoder, attack: Attack, count: int, inputs: Inputs, run: RunSettings, work: Computing
) -> list[float]:
    """Return the radii at which the first images of ``encoder`` are mistaken."""
    images, bank, others = inputs.images(encoder), inputs.bank(encoder), None
    if bank is not None:
        others = Population(encoder, bank, run)
        others = Population(encoder, bank, run, work.codes(others, "codes of the bank"))
    codes = work.codes(Population(encoder, images, run), "codes")
    population = Population(encoder, images, run, codes, bank=others)
    search = Radii("retrieval", WIDEST, attack, L2Distance(), 10, (), (), attack, count)
    work.compute(search, population, "radii to measure at")
    radii = read_observed(search, population, search.rows(population), work.store)["radius"].tolist()
    return [radius for radius in radii if not isnan(radius)]


def choose(radii: Mapping[str, Sequence[float]], defaults: Sequence[Ball]) -> InformativeRadii | None:
    """Return ``defaults`` where they are informative, else as many balls at most that are.

    Args:
        radii: of some images of each encoder, infinite where one was not lost.
        defaults: what is measured where nothing is chosen.

    Example:
        >>> choose({"weak": [0.001, 0.002], "strong": [0.0021, 0.004, 0.006]}, [Linf(0.1)]).balls
        (Linf(radius=0.00392156862745098),)
    """
    medians = {name: quantile(values, 0.5) for name, values in radii.items() if values}
    if not medians:
        return None
    strongest = max(medians, key=lambda name: (medians[name], name))
    values = radii[strongest]
    balls = tuple(defaults)
    if not any(LEAST <= lost(values, ball.radius) <= MOST for ball in balls):
        aims = [quantile(values, share) for share in AIMS[min(2, len(balls))]]
        balls = tuple(dict.fromkeys(Linf(readable(aim, values)) for aim in aims if 0 < aim <= WIDEST.radius))
    if not balls:
        return None
    shares = text.listed([f"{lost(values, ball.radius):.0%}" for ball in balls])
    who = strongest if len(radii) == 1 else f"{strongest}, the strongest,"
    return InformativeRadii(
        balls,
        f"No radius was asked for: attacks are measured at {text.listed(list(map(str, balls)))}, where {who} loses {shares} "
        f"of {len(values)} images; --eps sets others.",
    )


def lost(radii: Sequence[float], radius: float) -> float:
    """Return the share of images that are lost within ``radius``."""
    return float(np.mean(np.asarray(radii) <= radius))


def quantile(radii: Sequence[float], share: float) -> float:
    """Return the radius within which so large a share is lost."""
    return float(np.quantile(radii, share, method="inverted_cdf"))


def readable(aim: float, radii: Sequence[float]) -> float:
    """Return a readable radius near ``aim`` that is informative, or ``aim`` in two digits where none is.

    Example:
        >>> radii = [0.2 / 255, 0.27 / 255, 0.9 / 255, 0.9 / 255]
        >>> [round(255 * readable(radius, radii), 6) for radius in radii[1:3]]
        [0.3, 0.5]
    """
    tens = 10.0 ** floor(np.log10(255 * aim))
    steps = sorted((float(f"{step * tens:.2g}") / 255 for step in STEPS), key=lambda step: abs(np.log(step / aim)))
    return next((step for step in steps[:2] if LEAST <= lost(radii, step) <= MOST), float(f"{255 * aim:.2g}") / 255)


def changed(results: Sequence[Result], plan: Sequence[Evaluation]) -> bool:
    """Return whether any of these earlier results of the evaluations of ``plan`` is of other radii."""
    balls = {each.name: plain(vars(each)["balls"]) for each in plan if attacks_in_balls(type(each))}
    return any(
        result.settings.get("balls") != balls[result.evaluation] for result in results if result.evaluation in balls
    )
