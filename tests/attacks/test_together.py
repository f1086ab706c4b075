"""Attacks that share a run: the adaptive ones begin where the others ended, and never gain less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack, attack_together
from holdfast.attacks.attacked_codes import attacked_by_each
from holdfast.attacks.base import Attack, assert_inside
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import Away, Crossing, Toward
from holdfast.attacks.presets import U_PGD, kinds
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.divergences import Cosine, L2Distance, Rank
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.objective import AttackContext, DivergenceObjective, ObjectiveFunction
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import fields_of
from holdfast.measure.population import Population
from tests.samples import builtin, digits, efficientnet

SHORT: dict[str, int] = {"restarts": 1, "steps": 2, "queries": 100}
KINDS: list[Attack] = [
    kind(**{name: value for name, value in SHORT.items() if name in fields_of(kind)})
    for kind in kinds().values()
    if not kind.needs_classes
]
EVERY: list[Attack] = [AdaptiveAttack(restarts=1, steps=3), GradientAttack(steps=20), *KINDS]
"""Every attack on embeddings, and an adaptive one of more steps than those listed after it, but fewer than the first."""
ROUNDING = 1e-5


def context_of(encoder: Encoder, images: Images) -> AttackContext:
    population = Population(encoder, images, RunSettings())
    return population.context(range(len(images)), targets=population.partners.tolist())


def gains(attacks: list[Attack], context: AttackContext, objective: DivergenceObjective, ball: Ball) -> list[Tensor]:
    moved = attacked_by_each(context, objective, attacks, ball)
    for pixels in moved:
        assert_inside(context.encoder, context.pixels, pixels, ball)
    return [objective(context)(context.encoder.forward(pixels)) for pixels in moved]


@pytest.mark.slow
@pytest.mark.parametrize("ball", [Linf(0.1), L2(0.5), L1(3.0)], ids=str)
@pytest.mark.parametrize(
    "objective", [Away(), Away(Cosine()), Away(Rank()), Toward(), Crossing(), Toward(Rank())], ids=str
)
def test_no_attack_of_a_run_gains_more_than_the_adaptive_one(objective: DivergenceObjective, ball: Ball) -> None:
    context = context_of(builtin(), digits(10))
    found = gains(EVERY, context, objective, ball)
    for other in found:
        assert (found[0] >= other - ROUNDING).all()
    alone = [gains([attack], context, objective, ball)[0] for attack in EVERY]
    takes_starts = [isinstance(attack, AdaptiveAttack) for attack in EVERY]
    for shared, single, warm in zip(found, alone, takes_starts, strict=True):
        assert warm or torch.equal(shared, single), "published attacks are those that run alone"
    others = [single for single, warm in zip(alone, takes_starts, strict=True) if not warm]
    assert any((other > alone[0] + ROUNDING).any() for other in others), "vacuous: it was never weaker"


def test_what_ends_where_does_not_depend_on_the_order_of_the_list() -> None:
    context = context_of(builtin(), digits(6))
    forward = attacked_by_each(context, Away(), EVERY, Linf(0.1))
    backward = attacked_by_each(context, Away(), EVERY[::-1], Linf(0.1))
    assert all(torch.equal(*pair) for pair in zip(forward, backward[::-1], strict=True))


def test_a_start_is_where_the_search_goes_on() -> None:
    context = context_of(builtin(), digits(10))
    away, ball = Away()(context), Linf(0.1)

    where = (context.encoder, context.pixels, away, ball, context.noise)
    strong, adaptive = GradientAttack(steps=20), AdaptiveAttack(restarts=1, steps=5)
    start = strong(*where)
    started, gone_on = (away(context.encoder.forward(moved)) for moved in (start, adaptive.beside([start], *where)))
    assert (gone_on >= started - ROUNDING).all()
    assert (gone_on > started + ROUNDING).sum() >= 5, "it went on"


def test_starts_cost_no_more_gradients_than_settings_say() -> None:
    context, climbed = context_of(builtin(), digits(2)), 0

    def counted(codes: Tensor) -> Tensor:
        nonlocal climbed
        climbed += codes.requires_grad
        return Away()(context)(codes)

    attack_together(
        [U_PGD, AdaptiveAttack(restarts=1)], context.encoder, context.pixels, counted, Linf(0.1), context.noise
    )
    assert climbed == U_PGD.steps + 20 + 2, "a start of its own, and the best of all starts, are looked at first"


def test_an_encoder_without_gradients_is_attacked_by_score_alone() -> None:
    class Stepwise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.detach().flatten(1) > 0.5).float()

    context = context_of(Encoder(Stepwise().eval(), "stepwise", Domain((1, 8, 8))), digits(3))
    (moved,) = attacked_by_each(context, Away(), [SquareAttack(queries=40)], Linf(0.4))
    assert (L2Distance()(context.encoder.forward(moved), context.codes) > 0).all()


def photos(reference: Path, count: int) -> Images:
    """Photographs of different things, as EfficientNet-Lite0 takes them."""
    import numpy as np
    from PIL import Image

    first = sorted((reference / "real" / "photos").glob("*_*.png"))
    chosen = list({path.name.rpartition("_")[0]: path for path in reversed(first)}.values())[-count:]
    pixels = [torch.from_numpy(np.array(Image.open(path).convert("RGB"))[16:240, 16:240]) for path in chosen]
    return Images(torch.stack(pixels).permute(0, 3, 1, 2).float() / 255, ids=[path.stem for path in chosen])


@pytest.mark.slow
def test_no_attack_on_a_real_encoder_gains_more_than_the_adaptive_one(reference: Path) -> None:
    """As ``quick`` trims it: 20 steps beside the 50 of the published attack, which once moved 12 of 12 photographs more."""
    context = context_of(efficientnet(reference), photos(reference, 3))
    attacks: list[Attack] = [U_PGD, AdaptiveAttack(restarts=1)]
    published, adaptive = gains(attacks, context, Away(), Linf(4 / 255))
    assert (adaptive > published).all()


@pytest.mark.slow
def test_on_a_real_encoder_the_adaptive_attack_alone_is_as_strong_at_equal_steps(reference: Path) -> None:
    """Steps too long for an encoder of many layers lead nowhere: from twice the radius it found 60% of this."""
    context = context_of(efficientnet(reference), photos(reference, 3))
    away = Away()(context)
    steps: list[Attack] = [U_PGD, AdaptiveAttack(restarts=1, steps=50)]
    published, adaptive = (alone(attack, context, away) for attack in steps)
    assert (adaptive >= 1.15 * published).all()


def alone(attack: Attack, context: AttackContext, objective: ObjectiveFunction) -> Tensor:
    moved = attack(context.encoder, context.pixels, objective, Linf(4 / 255), context.noise)
    return objective(context.encoder.forward(moved))
