"""A law over all evaluations that take a list of attacks: image by image, none gains more than the adaptive one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_codes import Targeted, Untargeted
from holdfast.attacks.base import Attack
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.divergences import Tokens
from holdfast.core.settings import types_of
from holdfast.geometry.evaluations.patch_retrieval import AttackedPatches
from holdfast.measure.evaluation import Evaluation, parts
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.probes.probed_codes import AttackedAnswers, TransferredAnswers
from holdfast.run.catalog import evaluations
from tests.test_laws import DOUBLE, asked, digits, small

ATTACKS = (AdaptiveAttack(restarts=1, steps=2), SquareAttack(queries=30), GradientAttack(steps=15))
ROUNDING = 1e-9
EVERY = [kind for kind in evaluations().values() if "attacks" in types_of(kind)]


def away(population: Population, part: Any, rows: list[int]) -> list[Tensor]:
    clean, divergence = population.codes[rows].double(), population.fitted(part.divergence)
    return [divergence(population.encode(pixels).double(), clean) for pixels in part.pixels(population, rows)]


def patches(population: Population, part: Any, rows: list[int]) -> list[Tensor]:
    clean, divergence = population.codes[rows].double(), population.fitted(Tokens(part.divergence))
    return [divergence(population.encode(pixels).double(), clean) for pixels in part.pixels(population, rows)]


def toward(population: Population, part: Any, rows: list[int]) -> list[Tensor]:
    partners = population.partners[rows].tolist()
    goal, divergence = population.codes[partners].double(), population.fitted(part.divergence)
    return [-divergence(population.encode(p).double(), goal) for p in part.pixels(population, rows, partners)]


def wrong(population: Population, part: Any, rows: list[int]) -> list[Tensor]:
    observed = part.observe(population, rows)
    return [-observed[f"{k}.margin"] for k in range(len(part.attacks))]


GAINS: dict[type[Observation], Callable[[Population, Any, list[int]], list[Tensor]]] = {
    Untargeted: away,
    Targeted: toward,
    AttackedAnswers: wrong,
    TransferredAnswers: away,
    AttackedPatches: patches,
}


def listing(thing: Any, attacks: tuple[Attack, ...]) -> Any:
    """An evaluation or observation with these attacks instead of its own."""
    return replace(thing, attacks=attacks)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_the_adaptive_attack_is_never_the_weaker_one_of_a_list(kind: type[Evaluation]) -> None:
    evaluation = listing(small(kind), ATTACKS)
    population = asked(evaluation, digits(12), DOUBLE)
    listed = [part for part in parts(evaluation.observation()) if hasattr(part, "attacks")]
    assert listed, f"{kind.name} has attacks that no observation makes together"
    weaker = False
    for part in listed:
        rows = part.rows(population)
        adaptive, *others = GAINS[type(part)](population, part, rows)
        for other in others:
            assert (adaptive >= other - ROUNDING).all(), part
        alone = GAINS[type(part)](population, listing(part, ATTACKS[:1]), rows)[0]
        weaker = weaker or any(bool((other > alone + 1e-6).any()) for other in others)
    assert weaker, "vacuous: alone, it was never the weaker one"
