"""SLF, ALF and AFF: heads and losses by hand, and what full tuning withstands."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import cross_entropy, margin_of_logits
from holdfast.core.balls import Linf
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import RunSettings
from holdfast.data import load
from holdfast.measure.population import Population
from holdfast.probes.base import FittedProbe, Probe
from holdfast.probes.linear import LinearScores, batches
from holdfast.probes.own_encoder import AFF, ALF, SLF, divergence
from tests.samples import DIGITS, builtin

BALL = Linf(0.1)


def asked(count: int = 200) -> Population:
    encoder, run = builtin(), RunSettings()
    bank = Population(encoder, load("builtin:digits-train", DIGITS, limit=count), run)
    return Population(encoder, load("builtin:digits", DIGITS, limit=80), run, bank=bank)


def robust(population: Population, probe: FittedProbe) -> float:
    """Return the share of images that PGD at the probe leaves right."""
    places = probe.places(population.labels)
    context = population.context(range(80))
    attack = GradientAttack(steps=20, stride=0.1)
    moved = attack(probe.encoder, context.pixels, margin_of_logits(probe.logits, places), BALL, context.noise)
    with torch.no_grad():
        return float((probe.ranks(probe.encoder.forward(moved), population.labels) == 0).double().mean())


def test_the_head_of_slf_is_sgd_from_zero_with_momentum_and_decay() -> None:
    population = asked(60)
    bank = population.bank
    fitted = population.learned(SLF(epochs=2))
    assert isinstance(fitted, LinearScores)
    classes, places = bank.labels.unique(return_inverse=True)
    weight, bias = torch.zeros(len(classes), bank.codes.shape[1]), torch.zeros(len(classes))
    speed = [torch.zeros_like(weight), torch.zeros_like(bias)]
    order = bank.run.noise(bank.images.ids).fork("slf")
    for epoch in range(2):
        for batch in batches(order, epoch, 512):
            parts = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
            loss = functional.cross_entropy(functional.linear(bank.codes[batch], *parts), places[batch])
            for k, slope in enumerate(torch.autograd.grad(loss, parts)):
                speed[k] = 0.9 * speed[k] + slope + 2e-4 * parts[k].detach()
            weight, bias = weight - 0.01 * speed[0], bias - 0.01 * speed[1]
    assert torch.allclose(fitted.weight.float(), weight, atol=1e-5)
    assert torch.allclose(fitted.bias.float(), bias, atol=1e-5)
    assert weight.abs().max() > 1e-3, "vacuous"


def test_full_tuning_withstands_more_and_leaves_the_encoder_as_it_is() -> None:
    population = asked(600)
    before = population.codes.clone()
    plain, tuned = (population.learned(each) for each in (SLF(), AFF(ball=BALL, steps=4)))
    assert plain.encoder is population.encoder
    assert tuned.encoder is not population.encoder
    assert robust(population, tuned) > robust(population, plain) + 0.05
    assert torch.equal(before, population.encode(population.pixels(range(80))))


def test_the_loss_of_alf_is_that_of_attacked_images_and_of_aff_trades() -> None:
    population = asked(40)
    head, bank = torch.nn.Linear(population.codes.shape[1], 10).requires_grad_(False), population.bank
    pixels, places, noise = bank.pixels(range(40)), bank.labels, bank.run.noise(bank.images.ids)
    clean = functional.cross_entropy(head(bank.codes), places)
    alf, aff = ALF(ball=BALL), AFF(ball=BALL)
    moved = alf.attack(bank.encoder, pixels, cross_entropy(head, places), BALL, noise)
    adversarial = alf.loss(bank.encoder, head, pixels, places, noise)
    assert float(adversarial) == pytest.approx(
        float(functional.cross_entropy(head(bank.encode(moved)), places)), rel=1e-4
    )
    assert adversarial > clean
    apart = (aff.loss(bank.encoder, head, pixels, places, noise) - clean) / 6
    by_chance = divergence(
        head(bank.codes), head(bank.encode((pixels + 0.1 * noise.normal((1, 8, 8)).sign()).clamp(0, 1)))
    )
    assert apart > by_chance.mean()


def test_the_divergence_is_torchs() -> None:
    here, there = torch.randn(2, 5, 4).unbind()
    expected = functional.kl_div(there.log_softmax(1), here.softmax(1), reduction="none").sum(1)
    assert torch.allclose(divergence(here, there), expected, atol=1e-6)


def test_probes_are_read_by_name() -> None:
    assert Probe.read("slf") == SLF()
    assert Probe.read("alf") == ALF(ball=Linf(8 / 255))
    assert Probe.read("aff:epochs=100,ball=linf:4/255") == AFF(100, Linf(4 / 255))
    for wrong in ("slf:epochs=0", "alf:steps=0"):
        with pytest.raises(HoldfastError):
            Probe.read(wrong)
