"""One attack read at several steps and in several distances, and attacks on a loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.attacks.adaptive import attack_together, forwards_together
from holdfast.attacks.attacked_codes import Untargeted
from holdfast.attacks.base import Attack
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.evaluations.impersonation import Impersonation
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import Away
from holdfast.attacks.presets import read_loss, rivals_of
from holdfast.core.balls import Linf
from holdfast.core.divergences import Cosine, L2Distance, LinfDistance
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import settings
from holdfast.measure.population import Population
from tests.samples import builtin, digits

STEPS = (2, 7, 4)
ATTACKS: tuple[Attack, ...] = tuple(GradientAttack(steps=steps, step=0.01, keep="last") for steps in STEPS)
FEW: dict[str, Any] = {"balls": (Linf(0.05),), "attacks": ATTACKS[:1], "samples": 12}
THREE = (L2Distance(), LinfDistance(), Cosine())


def test_attacks_that_differ_in_steps_are_read_from_one_path() -> None:
    context = Population(builtin(), digits(5), RunSettings()).context(range(5))
    objective, calls = Away()(context), list[int]()

    def counting(codes: Tensor) -> Tensor:
        calls.append(len(codes))
        return objective(codes)

    given = (context.encoder, context.pixels, counting, Linf(0.05), context.noise)
    alone = [attack(*given) for attack in ATTACKS]
    assert len(calls) == sum(STEPS)
    together = attack_together(ATTACKS, *given)
    assert len(calls) == sum(STEPS) + max(STEPS), "the gradients of the longest attack serve all"
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))
    assert forwards_together(ATTACKS) == forwards_together(ATTACKS[1:2])
    assert not torch.equal(together[0], together[1])
    best = (GradientAttack(steps=2), GradientAttack(steps=4))
    assert forwards_together(best) == sum(attack.forward_passes for attack in best), (
        "other attacks keep their best point"
    )


def test_one_attack_is_measured_in_several_distances() -> None:
    encoder, images = builtin(), digits(40)
    evaluation = Displacement(divergences=THREE, objective="l2", **FEW)
    assert len(evaluation.observation().parts) == 1
    result = evaluation(encoder, images)
    population = Population(encoder, images, RunSettings())
    rows = population.choose(12)
    attack = Untargeted(Linf(0.05), ATTACKS[:1], L2Distance(), 12)
    moved, clean = attack.observe(population, rows)["0.codes"], population.codes[rows]
    at_l2 = f"{ATTACKS[0]} at l2"
    largest = (moved - clean).abs().amax(1)
    (shifts,) = (s for s in result.series if s.quantity == "displacement" and s.conditions["divergence"] == "linf")
    assert shifts.conditions["attack"] == at_l2
    assert shifts.values == pytest.approx(largest.tolist(), rel=1e-4)
    similarity = torch.cosine_similarity(moved, clean).median()
    assert result.estimate("cosine_similarity", attack=at_l2).value == pytest.approx(float(similarity), abs=0.02)
    plain = Displacement(divergences=THREE, **FEW)(encoder, images)
    assert not any(each.quantity == "cosine_similarity" for each in plain.estimates)
    quantile = {"quantity": "universal_quantile", "attack": str(ATTACKS[0]), "divergence": "l2"}
    assert result.estimate(**quantile) == plain.estimate(**quantile)


def test_one_attack_towards_another_image_is_measured_in_several_distances() -> None:
    result = Impersonation(divergences=THREE, objective="l2", **FEW)(builtin(), digits(40))
    quantiles = {
        s.conditions["divergence"]: torch.tensor(s.values) for s in result.series if s.quantity == "relative_quantile"
    }
    assert len(quantiles) == 3
    assert (quantiles["l2"] < 1).all()
    estimate = result.estimate("cosine_similarity", attack=f"{ATTACKS[0]} at l2")
    assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1
    with pytest.raises(HoldfastError, match="objective"):
        Impersonation(objective="queue")


def test_attacks_on_a_loss_raise_it_whatever_the_batches() -> None:
    population = Population(builtin(), digits(40), RunSettings())
    attack = Untargeted(Linf(0.05), ATTACKS[1:2], L2Distance(), 8, "queue")
    rows = population.choose(8)
    loss = read_loss("queue")
    context = population.context(rows, rivals=rivals_of(population, rows, loss))
    gain = loss(context)
    (moved,) = attack.pixels(population, rows)
    assert (gain(population.encode(moved)) > gain(context.codes)).all()
    assert torch.allclose(torch.cat([attack.pixels(population, rows[k : k + 4])[0] for k in (0, 4)]), moved)
    (away,) = Untargeted(Linf(0.05), ATTACKS[1:2], L2Distance(), 8).pixels(population, rows)
    assert (gain(population.encode(moved)) > gain(population.encode(away))).double().mean() > 0.5
    result = Breakaway(objective="queue", rivals=1, pairwise=ATTACKS[0], divergences=(L2Distance(),), **FEW)(
        builtin(), digits(40)
    )
    assert result.estimate("breakaway_risk").conditions["attack"] == f"{ATTACKS[0]} at queue"


@pytest.mark.parametrize("objective", ["instance", "toward", "quue"])
@pytest.mark.parametrize("kind", [Displacement, Breakaway])
def test_losses_of_batches_and_targets_are_refused(kind: type[Displacement | Breakaway], objective: str) -> None:
    with pytest.raises(HoldfastError):
        kind(objective=objective)


def test_a_setting_that_came_later_changes_no_key_at_its_default() -> None:
    for plain in (Displacement(), Breakaway(), Impersonation()):
        assert "objective" not in settings(plain)
        assert settings(type(plain)(objective="l2"))["objective"] == "l2"
    assert "loss" not in settings(Untargeted(Linf(0.1), ATTACKS, L2Distance(), 3))
