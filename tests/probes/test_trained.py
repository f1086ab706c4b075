"""Probes that learn from changed images: noisy, filtered, attacked; and the one that changes the encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.objectives.simple import margin_of_logits as margin
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.measure.store import Store, key_of
from holdfast.probes.base import Probe, probes
from holdfast.probes.linear import Linear, LinearScores, NoiseProbe, RobustProbe, logistic_regression
from holdfast.probes.own_encoder import FineTuned, LowPassProbe
from holdfast.transforms.base import transformed
from holdfast.transforms.filters import LowPass
from tests.marks import rest_slow
from tests.probes.known import accuracy, clouds, population
from tests.samples import builtin, classes, digits

EVERY = (
    "knn:k=5",
    "linear",
    "linear:recipe=moco",
    "noise",
    "low-pass:1",
    "robust:linf:0.05,epochs=2",
    "fine-tune:epochs=2",
    "synbench-robust:epochs=2,samples=64",
    "slf:epochs=2",
    "alf:epochs=2,ball=linf:0.05,steps=2",
    "aff:epochs=2,ball=linf:0.05,steps=2",
)


def labelled(count: int, start: int) -> Images:
    plain = digits(count, start)
    return Images(plain.pixels(range(count)), plain.ids, classes(count, start), plain.name)


def test_the_list_of_probes_is_complete() -> None:
    assert {text.partition(":")[0] for text in EVERY} == set(probes()) - {
        "text",
        "logits",
        "class-groups",
    }  # no bank alone


@pytest.mark.parametrize("text", rest_slow(EVERY, fast=6))
def test_a_probe_is_the_same_in_any_batches_and_after_storage(text: str, tmp_path: Path) -> None:
    probe, store = Probe.read(text), Store(tmp_path)
    images, bank = clouds(20, 2), clouds(40, 1)
    whole = population(bank, images)
    small = population(bank, images, RunSettings(precision="float64", batch_size=7))
    key = key_of(probe, whole.encoder, images, whole.run, bank)
    store.keep_learned(key, {name: value.cpu() for name, value in probe.learn(whole).items()})
    stored = store.learned(key)
    assert stored is not None
    back = probe.restore(small, stored)
    for one in (small.learned(probe), back):
        rows = range(len(images))
        expected = whole.learned(probe)
        assert torch.allclose(
            one.scores(one.codes(small, rows)), expected.scores(expected.codes(whole, rows)), atol=1e-8
        )


@pytest.mark.parametrize("text", EVERY)
def test_what_decides_a_probe_is_in_its_key(text: str) -> None:
    probe, asked = Probe.read(text), population()
    images, bank = asked.images, asked.bank.images
    key = key_of(probe, asked.encoder, images, asked.run, bank)
    relabelled = Images(bank.source, bank.ids, 8 - bank.labels if bank.labels is not None else None)
    for other in (clouds(59, 1), relabelled):
        assert key_of(probe, asked.encoder, images, asked.run, other) != key
    assert key_of(probe, asked.encoder, images, RunSettings(seed=1, precision="float64"), bank) != key


def test_noise_probe_learns_from_codes_of_noisy_images() -> None:
    asked = population()
    bank, fitted = asked.bank, asked.learned(NoiseProbe(sigma=0.3, draws=2))
    copies = []
    for draw in range(2):
        noise = Noise.of(0, bank.images.ids).fork("noise probe", draw).normal((1, 2, 2), torch.float64)
        copies.append(bank.encoder.forward(bank.images.pixels(range(60), dtype=torch.float64) + 0.3 * noise))
    expected = logistic_regression(torch.cat(copies), bank.labels.repeat(2))
    assert isinstance(fitted, LinearScores)
    assert torch.allclose(fitted.weight, expected["weight"], atol=1e-9)
    assert not torch.allclose(fitted.weight, logistic_regression(bank.codes, bank.labels)["weight"], atol=1e-2)


def test_low_pass_probe_is_the_linear_probe_of_filtered_images() -> None:
    encoder, bank, images = builtin(), labelled(120, 0), labelled(40, 1200)
    run = RunSettings(precision="float64")
    asked = Population(encoder, images, run, bank=Population(encoder, bank, run))
    seen = [transformed(one, LowPass(3.0)) for one in (images, bank)]
    filtered = Population(encoder, seen[0], run, bank=Population(encoder, seen[1], run))
    one, other = asked.learned(LowPassProbe(3.0)), filtered.learned(Linear())
    # Images read through a transform are in float32.
    assert torch.allclose(one.scores(one.codes(asked, range(40))), other.scores(filtered.codes), atol=1e-3)
    assert not torch.allclose(asked.codes, filtered.codes, atol=1e-2), "vacuous"
    flat = Images(torch.rand(6, 4), labels=torch.arange(6) % 2)
    pixelless = Encoder(nn.Identity(), "vectors", Domain((4,)))
    with pytest.raises(HoldfastError, match="filters images"):
        Population(pixelless, flat, run, bank=Population(pixelless, flat, run)).learned(LowPassProbe(1.0))


def test_robust_probe_withstands_more_than_the_plain_one() -> None:
    """Two features tell two classes apart, the better one by less than the attacker can change."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    sign = (2 * labels - 1).float()
    fragile = 0.5 + 0.04 * sign + 0.005 * torch.randn(200, generator=generator)
    sturdy = 0.5 + 0.3 * sign * (torch.rand(200, generator=generator) < 0.9).float()
    pixels = torch.stack([fragile, sturdy], 1).clamp(0, 1)
    encoder, run = Encoder(nn.Identity(), "pixels", Domain((2,))), RunSettings(precision="float64")
    images, bank = Images(pixels[:100], labels=labels[:100]), Images(pixels[100:], labels=labels[100:])
    asked = Population(encoder, images, run, bank=Population(encoder, bank, run))
    ball = Linf(0.06)

    def kept(probe: Probe) -> float:
        fitted = asked.learned(probe)
        objective = margin(fitted.logits, fitted.places(asked.labels))
        attack = AdaptiveAttack(restarts=1, steps=20)
        moved = attack(fitted.encoder, asked.pixels(range(100)), objective, ball, run.noise(images.ids))
        return accuracy(fitted.ranks(fitted.encoder.forward(moved), asked.labels))

    plain, robust = kept(Linear()), kept(RobustProbe(ball, epochs=20))
    assert robust > plain + 0.1


@pytest.mark.parametrize("text", ["robust:linf:0.05,epochs=2", "fine-tune:epochs=2"])
def test_the_batch_that_a_probe_learns_from_is_a_setting(text: str) -> None:
    asked = population(clouds(100, 1), clouds(20, 2))
    usual, same, whole = (
        asked.learned(Probe.read(f"{text}{given}")).scores(asked.codes) for given in ("", ",batch=64", ",batch=120")
    )
    assert torch.equal(usual, same)
    assert not torch.allclose(usual, whole)


def test_fine_tuning_changes_a_copy_alone() -> None:
    encoder, bank, images = builtin("digits-random"), labelled(200, 0), labelled(100, 1200)
    before = encoder.fingerprint
    asked = Population(encoder, images, RunSettings(), bank=Population(encoder, bank, RunSettings()))
    tuned, plain = asked.learned(FineTuned("adamw")), asked.learned(Linear())
    assert tuned.encoder is not asked.encoder
    assert not torch.allclose(tuned.codes(asked, range(100)), asked.codes, atol=1e-3)
    assert Encoder(encoder.module, "again", encoder.domain).fingerprint == before
    ranks = [one.ranks(one.codes(asked, range(100)), asked.labels) for one in (plain, tuned)]
    assert accuracy(ranks[1]) >= accuracy(ranks[0])


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).detach()


def test_what_cannot_be_tuned_or_attacked_says_so() -> None:
    encoder, run = Encoder(Detached(), "detached", Domain((1, 2, 2))), RunSettings()
    asked = Population(encoder, clouds(9, 2), run, bank=Population(encoder, clouds(30, 1), run))
    with pytest.raises(HoldfastError, match="no weights that gradients reach"):
        asked.learned(FineTuned())
    with pytest.raises(HoldfastError, match="passes no gradient"):
        asked.learned(RobustProbe(Linf(0.1)))
    for text in (
        "noise:sigma=0",
        "robust:linf:0.1,epochs=0",
        "fine-tune:optimiser=adam",
        "low-pass:0",
        "fine-tune:epochs=0",
        "robust:linf:0.1,batch=0",
        "fine-tune:batch=0",
    ):
        with pytest.raises(HoldfastError):
            Probe.read(text)
