"""Attacks, objectives and presets by name. ``holdfast attack --preset NAME`` runs an attack of the literature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

import holdfast.attacks
import holdfast.attacks.objectives as home
from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.gradient import GradientAttack, bim, fgsm
from holdfast.attacks.objectives.contrast import Batch, Instance, Pair, Queue, Views
from holdfast.attacks.objectives.simple import Away, Toward, shifted
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.discovery import named_classes
from holdfast.core.divergences import DIVERGENCES, Cosine, Divergence, L2Distance, SoftmaxKL, Wasserstein
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.noise import Noise
from holdfast.core.objective import AttackContext, DivergenceObjective, Objective
from holdfast.core.settings import fields_of, is_text, read, types_of
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.population import Population

U_PGD = GradientAttack(steps=50, step=0.001, keep="last")
"""U-PGD as published: 50 steps of 0.001, last point returned. It cannot cross a ball wider than 0.05."""

NAMED: dict[str, Attack] = {
    "u-fgsm": fgsm(),
    "u-bim": bim(),
    "u-pgd": U_PGD,
    "adaptive": AdaptiveAttack(),
    "square": SquareAttack(),
}


def read_attack(text: str) -> Attack:
    """Parse an attack: a name such as ``u-pgd`` or text such as ``pgd:steps=40,stride=0.05``."""
    if text in NAMED:
        return NAMED[text]
    name, known = text.partition(":")[0], kinds()
    if name in NAMED and name not in known:
        raise HoldfastError(f"attack {name!r} has no settings; change some of what it stands for: {NAMED[name]}")
    # The short names are there to be suggested.
    offered: dict[str, type[Attack]] = {**dict.fromkeys(NAMED, AdaptiveAttack), **known}
    return read(text, offered, "attack")


def kinds() -> dict[str, type[Attack]]:
    """Return every attack by name."""
    return named_classes(holdfast.attacks, Attack)


def label(attack: Attack) -> str:
    """Short name of an attack: that of the literature if it has one, else its text form.

    Example:
        >>> label(U_PGD), label(GradientAttack(steps=7))
        ('u-pgd', 'pgd:steps=7')
    """
    return next((name for name, known in NAMED.items() if known == attack), str(attack))


@dataclass(frozen=True)
class Preset:
    """An attack of the literature: objective, attack and ball."""

    objective: Objective
    """Objective to maximise."""
    attack: Attack
    """Attack to run."""
    ball: Ball
    """Perturbation set."""
    source: str
    """Paper that the preset comes from."""
    prepare: Callable[[AttackContext], AttackContext] | None = None
    """Makes the inputs that are attacked instead of the images themselves; None for the images."""


def two_views(context: AttackContext) -> AttackContext:
    """Attack context of two random views of each image: first views, then second views."""
    noises = [context.noise.fork("first"), context.noise.fork("second")]
    views = torch.cat([shifted(context.pixels, noise) for noise in noises])
    return AttackContext(context.encoder, views, Noise(torch.cat([noise.keys for noise in noises])))


_PGD7 = GradientAttack(steps=7, stride=0.25)
PRESETS: dict[str, Preset] = {
    "u-fgsm": Preset(Away(), fgsm(), Linf(0.05), "Petrov and Kwiatkowska 2022"),
    "u-bim": Preset(Away(), bim(), Linf(0.05), "Petrov and Kwiatkowska 2022"),
    "u-pgd": Preset(Away(), U_PGD, Linf(0.05), "Petrov and Kwiatkowska 2022"),
    "t-pgd": Preset(Toward(), U_PGD, Linf(0.05), "Petrov and Kwiatkowska 2022"),
    "adaptive": Preset(Away(), AdaptiveAttack(), Linf(0.05), "Croce and Hein 2020"),
    "square": Preset(Away(), SquareAttack(), Linf(0.05), "Andriushchenko et al. 2020"),
    "vat": Preset(Away(SoftmaxKL()), GradientAttack(steps=1, stride=1.0, start=0.01), L2(2.0), "Miyato et al. 2019"),
    "uat-ot": Preset(Away(SoftmaxKL()), GradientAttack(steps=10, stride=0.2), Linf(8 / 255), "Alayrac et al. 2019"),
    "vae-wasserstein": Preset(Away(Wasserstein()), GradientAttack(steps=20), Linf(0.1), "Cemgil et al. 2020"),
    "byorl": Preset(Away(Cosine()), GradientAttack(steps=10, stride=0.25), Linf(4 / 255), "Gowal et al. 2021"),
    "rocl": Preset(Instance(), _PGD7, Linf(8 / 255), "Kim et al. 2020"),
    "clae": Preset(Batch(), GradientAttack(steps=1, stride=1.0, start=0.0), Linf(0.03), "Ho and Vasconcelos 2020"),
    "advcl": Preset(Views(), GradientAttack(steps=5, stride=0.25), Linf(8 / 255), "Fan et al. 2021"),
    "acl-a2s": Preset(Instance(), GradientAttack(steps=5, stride=0.25), Linf(8 / 255), "Jiang et al. 2020"),
    "acl-a2a": Preset(Pair(), GradientAttack(steps=5, stride=0.25), Linf(8 / 255), "Jiang et al. 2020", two_views),
    "acl-ds": Preset(Pair(), GradientAttack(steps=5, stride=0.25), Linf(8 / 255), "Jiang et al. 2020", two_views),
    "moco": Preset(Queue(), GradientAttack(steps=3, step=0.005), Linf(0.05), "He et al. 2020"),
}


def attacks_in_balls(kind: type[Evaluation]) -> bool:
    """Return whether eps and ball set the ``balls`` of ``kind``: where it attacks in balls by default."""
    return "balls" in fields_of(kind) and bool(fields_of(kind)["balls"].default) and bool(attack_fields(kind))


def attack_fields(kind: type[Evaluation]) -> list[str]:
    """Return the settings of ``kind`` that are attacks."""
    return [name for name, kind_of_field in types_of(kind).items() if is_text(kind_of_field, Attack)]


# What attacks maximise if it is not the distance that is measured: another distance, or a loss.
#
# Petrov and Kwiatkowska 2022 (https://arxiv.org/abs/2210.04076) run one attack in l2 and report it in three distances
# (tables 5 to 7). Section 4.3 of the paper attacks a training loss.

NEAREST = 10
"""How many nearest other images an objective against neighbours faces, as in breakaway's own attack."""
RANDOM = 256
"""How many random other images an objective against a queue faces."""


def aim_of(objective: str, divergence: Divergence) -> tuple[Divergence, str]:
    """Distance and loss that attacks maximise.

    Args:
        objective: A distance such as ``l2`` or a loss such as ``queue``; empty for ``divergence``.
        divergence: Distance that is measured.

    Returns:
        The distance, and the loss that replaces it; empty if none does.

    Example:
        >>> aim_of("linf", L2Distance()), aim_of("queue:temperature=0.1", L2Distance())
        ((LinfDistance(), ''), (L2Distance(), 'queue:temperature=0.1'))
    """
    if not objective:
        return divergence, ""
    if objective.partition(":")[0] in DIVERGENCES:
        return Divergence.read(objective), ""
    return L2Distance(), objective


def read_loss(text: str) -> Objective:
    """Parse the loss that untargeted attacks of an evaluation maximise.

    Raises:
        HoldfastError: It depends on a target or on the rest of its batch, or there is no such loss.
    """
    loss = read(text, named_classes(home, Objective, "holdfast.objectives"), "objective")
    if loss.targeted or not loss.per_sample:
        raise OutOfRange(
            "objective", text, "a distance or a loss of one image, such as queue (holdfast attack runs the others)"
        )
    return loss


def rivals_of(population: Population, rows: Sequence[int], objective: Objective) -> Float[Tensor, "b k d"] | None:
    """Embeddings of the other images that ``objective`` compares each image with.

    Args:
        objective: Objective, which says whether it needs none, the nearest or random images.

    Returns:
        Embeddings, shape (b, k, d); None if the objective needs none.

    Raises:
        HoldfastError: The objective needs other images, and the population has only one image.
    """
    if objective.rivals == "none":
        return None
    others = len(population.images) - 1
    if others < 1:
        raise HoldfastError(
            f"the objective {objective.name} needs the embeddings of other images, but there is one; add images"
        )
    if objective.rivals == "nearest":
        divergence = objective.divergence if isinstance(objective, DivergenceObjective) else L2Distance()
        neighbours = population.nearest(divergence, population.codes[list(rows)], rows, NEAREST, population)
    else:
        neighbours = population.random_others(rows, RANDOM)
    return population.codes[neighbours]
