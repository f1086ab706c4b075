"""Attack images: the attacked images, how far their embeddings move, and a check of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from holdfast.attacks.adversarial import Adversarial, AdversarialImages, adversarial
from holdfast.attacks.attack_files import write_attack
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import PRESETS, Preset, read_attack
from holdfast.commands.inputs import ball_of, for_each_encoder
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.errors import Conflict, OutOfRange, UnknownName, warn
from holdfast.core.objective import DivergenceObjective, Objective
from holdfast.core.options import RunOptions, takes
from holdfast.core.settings import read
from holdfast.run.catalog import objectives
from holdfast.run.inputs import NamedEncoder, NamedImages
from holdfast.run.run import Run


@for_each_encoder
@takes(RunOptions)
def attack(
    encoder: NamedEncoder,
    images: NamedImages,
    ball: str | Ball | None = None,
    *,
    eps: str | float | None = None,
    preset: str = "adaptive",
    attack: str | Attack | None = None,
    objective: str | Objective | None = None,
    divergence: str | Divergence | None = None,
    **options: Unpack[RunOptions],
) -> Adversarial:
    """Return the images under attack, their codes, and how much each gained, as ``holdfast attack`` does.

    Args:
        encoder: one, or a list of them, for which a list is returned.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1].
        ball: the allowed changes, as ``Linf(8 / 255)`` or ``"l2:0.5"``, instead of the preset's.
        eps: radius of a linf ball, instead of ``ball``.
        preset: an attack of the literature, with an objective and a ball.
        attack: how it searches, as in ``"pgd:steps=40"``, instead of the preset's.
        objective: what it climbs, away or toward for instance, instead of the preset's.
        divergence: what the objective measures with, as in ``"cosine"``.
        limit: largest number of images, sampled by ``seed``; None for all.
        out: folder for the ``record`` and the files it names; with the same folder an interrupted attack continues. By
            default nothing is kept. Several encoders need one each.

    Raises:
        HoldfastError: something that was named does not exist or does not fit.
        BudgetSpentError: the budget ended before any image was attacked.
    """
    chosen = preset_of(preset, ball_of(eps, ball), attack, objective, divergence)
    with Run.open("attack", options) as run:
        population = run.population(run.encoder(encoder), images)
        chosen.ball.check(population.encoder.domain)
        observation = AdversarialImages.of(chosen, population)
        run.claim(observation, population)
        population, rows, observed = run.observe(observation, population)
        moved = adversarial(population, observation, rows, observed)
        run.warn_of(moved.missing)
        if not run.kept or not run.is_main:
            return moved
        record = write_attack(population, chosen, moved, run.store, run.started)
    if not record.replay.passed:
        warn(f"the saved pixels do not pass their check: {record.replay}", 3)
    return replace(moved, record=record)


def preset_of(
    name: str,
    ball: Ball | None = None,
    attack: str | Attack | None = None,
    objective: str | Objective | None = None,
    divergence: str | Divergence | None = None,
) -> Preset:
    """Return the preset ``name`` with what is given instead of its own.

    Raises:
        HoldfastError: there is no such preset or part, or parts contradict each other.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise UnknownName("preset", str(name), PRESETS)
    base = PRESETS[name]
    goal = read(objective, objectives(), "objective") if isinstance(objective, str) else objective or base.objective
    search = read_attack(attack) if isinstance(attack, str) else attack or base.attack
    for value, kind, form in ((goal, Objective, "away"), (search, Attack, "adaptive")):
        if not isinstance(value, kind):
            raise OutOfRange(kind.__name__.lower(), value, f"an {kind.__name__} or its text, as in {form!r}")
    if divergence is not None:
        if isinstance(objective, str) and "divergence=" in objective:
            raise Conflict("attack", f"--divergence {divergence} and --objective {objective}", "a divergence once")
        if not isinstance(goal, DivergenceObjective):
            given, fix = f"--divergence {divergence}", "leave --divergence out"
            raise Conflict(f"objective {goal.name}", given, "no divergence", fix)
        measured = Divergence.read(divergence) if isinstance(divergence, str) else divergence
        if not isinstance(measured, Divergence):
            raise OutOfRange("divergence", divergence, "a Divergence or its text, as in 'cosine'")
        goal = replace(goal, divergence=measured)
    changed = any(part is not None for part in (ball, attack, objective, divergence))
    source = f"{name} ({base.source}){', changed' if changed else ''}"
    return replace(base, objective=goal, attack=search, ball=ball or base.ball, source=source)
