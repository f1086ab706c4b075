"""Radii at which the encoders of a run differ, chosen before anything else if no radius was asked for.

At too large a radius every encoder loses all images, at too small a radius none: neither separates the encoders. So the run
first searches the attack radius of a few images of each encoder, which ``attack-radius`` does not search again. It then
takes radii at which the strongest encoder, with the largest median, loses some images and keeps others. Evaluations
keep their own radii if those do so already.

Attacks on probes succeed at other radii than attacks on the nearest neighbour: a reference set of other scenes is far away,
and a decision boundary may be near. So evaluations of probes under attack get their own radii, at which probes lose some
images.

The radii depend on encoders, images, seed and whether there is a budget, and are stored. A run that continues, names the
encoders in another order or has more workers finds the same radii. With a budget, fewer images of large encoders are
searched, so that time for the evaluations is left. If the budget ends during the search all the same, the same command
continues with it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isnan
from typing import Any, final

import numpy as np

from holdfast.attacks.attacked_radii import Radii
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.evaluations.attack_radius import AttackRadius
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.presets import attacks_in_balls
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError
from holdfast.core.optimised import operations
from holdfast.core.records import Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.encoders.baseline import is_baseline
from holdfast.measure.evaluation import Evaluation, plain, with_settings
from holdfast.measure.population import Fit, Population
from holdfast.measure.store import StoreError
from holdfast.probes.base import Probe
from holdfast.probes.evaluations.probe_radius import ProbeRadii
from holdfast.report import text
from holdfast.run.catalog import HEAVY
from holdfast.run.computing import Computing, learn_all
from holdfast.run.inputs import Inputs
from holdfast.run.plan import plan_for_large_encoders
from holdfast.run.request import Request, planned
from holdfast.run.shards import in_random_order, read_observed

log = logging.getLogger("holdfast")
LEAST, MOST = 0.2, 0.8
"""A radius is informative within which the strongest encoder loses at least and at most this fraction of the images ..."""
FAR = 4
"""... and that is at most this multiple of its median. With a reference set that lacks neighbours of some images, 12.75/255
lost 67% of the images of a network whose median was 0.2/255: every other number is at its end there."""
AIMS = {1: (0.5,), 2: (1 / 3, 2 / 3)}
"""The shares that it loses, as nearly as a readable radius allows, by how many radii are measured."""
STEPS = (1, 2, 3, 5, 10)
"""Readable radii are these multiples of a power of ten, in 1/255."""
WIDEST = Linf(0.5)
IMAGES, FEW, FEWEST = 32, 12, 4
"""Images that are searched; those of an encoder of ``HEAVY`` operations, a fortieth of what quick asks of it; and those of
such an encoder under a budget."""
EARLIER = " Earlier results in this folder are of other radii and stay beside these."


@final
@dataclass(frozen=True)
class InformativeRadii:
    """The balls to measure in, and which encoder loses how much there."""

    balls: tuple[Ball, ...]
    sentence: str

    def of(self, evaluation: Evaluation) -> Evaluation:
        """Return ``evaluation`` in these balls: in no more than it would have by itself."""
        return with_settings(evaluation, balls=self.balls[: len(vars(evaluation)["balls"])])


def left_open(request: Request, plan: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the evaluations of ``plan`` without a given ε; only in quick, because other suites are protocols."""
    if request.suite != "quick" or request.eps or request.ball:
        return []
    return [
        evaluation
        for evaluation in plan
        if attacks_in_balls(type(evaluation))
        and "balls" not in request.settings.get(evaluation.name, {})
        and vars(evaluation)["balls"]  # none where stored embeddings alone are measured
        and all(isinstance(ball, Linf) for ball in vars(evaluation)["balls"])
    ]


def in_informative_balls(
    request: Request, plan: Sequence[Evaluation], inputs: Inputs, run: RunSettings, work: Computing
) -> tuple[list[Evaluation], str]:
    """Return ``plan`` with radii that tell the encoders apart where none were asked for, and which these are.

    Raises:
        StoreError: the store cannot be written.
    """
    free = left_open(request, plan)
    probed = [evaluation for evaluation in free if _probes(evaluation)]
    kinds = {"Attacks": [evaluation for evaluation in free if not _probes(evaluation)], "Attacks on probes": probed}
    plan, sentences = list(plan), []
    for what, group in kinds.items():
        # Those that search radii report nothing at fixed ones.
        if all(hasattr(evaluation, "widest") for evaluation in group):
            continue
        balls = tuple(dict.fromkeys(ball for evaluation in group for ball in vars(evaluation)["balls"]))
        probes = tuple(dict.fromkeys(probe for evaluation in group for probe in _probes(evaluation)))
        try:
            chosen = choose(_radii_by_name(request, probes, inputs, run, work), balls, what)
        except BudgetSpentError:
            sentences.append(f"The budget ended during the search for radii of {what.lower()}, so the defaults stay.")
            break
        if chosen is not None:
            plan = [chosen.of(evaluation) if evaluation in group else evaluation for evaluation in plan]
            sentences.append(chosen.sentence)
    if not sentences:
        return plan, ""
    earlier = EARLIER if changed(work.store.results(), plan) else ""
    return plan, f"No radius was asked for. {' '.join(sentences)} --eps sets others.{earlier}"


def _probes(evaluation: Evaluation) -> tuple[Probe, ...]:
    return getattr(evaluation, "probes", ())


def _radii_by_name(
    request: Request, probes: tuple[Probe, ...], inputs: Inputs, run: RunSettings, work: Computing
) -> dict[str, list[float]]:
    """Return for each encoder, and each of its ``probes`` if there are some, the radii at which its images are lost."""
    attack = SquareAttack(queries=100) if request.black_box else GradientAttack(steps=5)
    encoders = [each for each in inputs.encoders if not is_baseline(each)] or inputs.encoders
    few = FEW if work.deadline.budget is None else FEWEST
    count = few if max(map(operations, encoders)) >= HEAVY else IMAGES
    nearest = _attack_radius(request, inputs.encoders, count)
    radii = {}
    for encoder in encoders:
        for probe in probes or [None]:
            try:
                search: Radii | ProbeRadii = nearest
                if probe is not None:
                    search = ProbeRadii(probe, WIDEST, attack, (), (), L2Distance(), count)
                values = _radii(encoder, search, count, inputs, run, work)
            except (StoreError, BudgetSpentError):  # radii without this encoder would be others
                raise
            except Exception:  # its examination says what is wrong with it
                log.debug("no radii of %s", encoder.name, exc_info=True)
            else:
                radii[encoder.name if probe is None else f"{probe} on {encoder.name}"] = values
    return radii


def _attack_radius(request: Request, encoders: Sequence[Encoder], count: int) -> Radii:
    """Return the search of ``attack-radius`` as this run makes it, or would, but over ``count`` images at least."""
    alone = request.model_copy(update={"only": (AttackRadius.name,)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when it was planned first
        (asked,) = plan_for_large_encoders(alone, encoders) or planned(alone)
    assert isinstance(asked, AttackRadius)
    search = asked.radii("retrieval")
    widest = search.widest if isinstance(search.widest, Linf) else WIDEST
    return replace(search, widest=widest, samples=max(count, search.samples))


def _radii(
    encoder: Encoder, search: Radii | ProbeRadii, count: int, inputs: Inputs, run: RunSettings, work: Computing
) -> list[float]:
    """Return the radii at which the first ``count`` images in random order are lost.

    A probe loses only those that it classifies correctly when clean.
    """
    images, bank, others = inputs.images(encoder), inputs.bank(encoder), None
    if bank is not None:
        others = Population(encoder, bank, run)
        others = Population(encoder, bank, run, work.codes(others, "codes of the bank"))
    codes = work.codes(Population(encoder, images, run), "codes")
    population = Population(encoder, images, run, codes, bank=others)
    learned: dict[Fit[Any], Observed | Exception] = {}
    learn_all(work, population, search.fits(), learned)
    population = Population(encoder, images, run, codes, learned, others)
    work.compute(search, population, "radii to measure at", count)
    rows = in_random_order(search.rows(population), search, population)[:count]
    radii = read_observed(search, population, rows, work.store)["radius"].tolist()
    return [radius for radius in radii if not isnan(radius) and (radius > 0 or isinstance(search, Radii))]


def choose(
    radii: Mapping[str, Sequence[float]], defaults: Sequence[Ball], what: str = "Attacks"
) -> InformativeRadii | None:
    """Return ``defaults`` where they are informative, else as many balls at most that are; nothing where no ball is.

    The strongest decides; one that loses no image within the widest ball tells no radius, and the next one decides.

    Args:
        radii: of some images of each encoder, infinite where one was not lost.
        defaults: what is measured where nothing is chosen.
        what: is measured there, as the sentence calls it.

    Example:
        >>> choose({"weak": [0.001, 0.002], "strong": [0.0021, 0.004, 0.006]}, [Linf(0.1)]).balls
        (Linf(radius=0.00392156862745098),)
    """
    known = {name: values for name, values in radii.items() if values}
    for name in sorted(known, key=lambda name: (quantile(known[name], 0.5), name), reverse=True):
        lost_at, balls, far = known[name], tuple(defaults), FAR * quantile(known[name], 0.5)
        if not any(LEAST <= lost(lost_at, ball.radius) <= MOST and ball.radius <= far for ball in defaults):
            aims = [quantile(lost_at, share) for share in AIMS[min(2, len(defaults))]]
            balls = tuple(dict.fromkeys(Linf(readable(aim, lost_at)) for aim in aims if 0 < aim <= WIDEST.radius))
        if balls:
            shares = text.listed([f"{lost(lost_at, ball.radius):.0%}" for ball in balls])
            who = name if len(known) == 1 else f"{name}, the strongest,"
            spelled = text.listed([text.ball(str(ball)) for ball in balls])
            sentence = f"{what} are measured at {spelled}, where {who} loses {shares} of {len(lost_at)} images."
            return InformativeRadii(balls, sentence)
    return None


def lost(radii: Sequence[float], radius: float) -> float:
    """Return the fraction of images that are lost within ``radius``."""
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
    """Return whether an earlier result of the evaluations of ``plan`` has other radii."""
    balls = {each.name: plain(vars(each)["balls"]) for each in plan if attacks_in_balls(type(each))}
    return any(
        result.settings.get("balls") != balls[result.evaluation] for result in results if result.evaluation in balls
    )
