"""The linear probe: its optimum, published recipes, the same head whatever the order of the bank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.data import load
from holdfast.measure.evaluation import settings
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.probes.linear import CROPS, RECIPES, Linear, LinearScores, NoiseProbe, descended, logistic_regression
from holdfast.probes.own_encoder import LowPassProbe
from tests.probes.known import accuracy, clouds, population
from tests.samples import DIGITS, builtin, published


def fitted(recipe: str, classes: int = 3) -> tuple[LinearScores, torch.Tensor, torch.Tensor]:
    asked = population(clouds(60, 1, classes))
    probe = asked.learned(Linear(recipe))
    assert isinstance(probe, LinearScores)
    return probe, asked.bank.codes, asked.bank.labels


@pytest.mark.parametrize("classes", [2, 3])
def test_the_solver_stops_where_the_penalised_loss_is_flat(classes: int) -> None:
    probe, codes, labels = fitted("lbfgs", classes)
    spread = codes.std(0)
    weight = (probe.weight * spread).requires_grad_()
    bias = (probe.bias + probe.weight @ codes.mean(0)).requires_grad_()
    standardised = (codes - codes.mean(0)) / spread
    # Two classes share one row of weights: half of it each way, whose squares add up to half.
    penalty = weight.square().sum() * (1 if classes == 2 else 0.5)
    loss = cross_entropy(standardised @ weight.T + bias, labels - 3, reduction="sum") + penalty
    for slope in torch.autograd.grad(loss, [weight, bias]):
        assert slope.abs().max() < 1e-5 * len(codes)
    assert weight.abs().max() > 0.5, "vacuous"


@pytest.mark.parametrize("recipe", ["rvcl", "moco"])
def test_recipes_descend(recipe: str) -> None:
    probe, codes, labels = fitted(recipe)
    assert accuracy(probe.ranks(codes, labels)) > 0.8
    assert probe.weight.dtype == torch.float64
    asked = population()
    assert accuracy(asked.learned(Linear(recipe)).ranks(asked.codes, asked.labels)) > 0.8


def test_heads_learn_from_crops_of_the_bank() -> None:
    encoder, bank = builtin(), load("builtin:digits-train", DIGITS, limit=60)
    run = RunSettings(precision="float64")
    asked = Population(encoder, load("builtin:digits", DIGITS, limit=20), run, bank=Population(encoder, bank, run))
    pixels = bank.pixels(range(60), dtype=torch.float64)
    copies = [asked.bank.encode(CROPS(pixels, asked.bank.run.noise(bank.ids).fork("crops", k))) for k in range(2)]
    expected = logistic_regression(torch.cat(copies), asked.bank.labels.repeat(2))
    fitted = asked.learned(Linear(crops=2))
    assert isinstance(fitted, LinearScores)
    assert torch.allclose(fitted.weight, expected["weight"], atol=1e-6)
    assert not torch.allclose(copies[0], copies[1], atol=1e-2), "vacuous"
    # Published recipes take the copies in turn: with one epoch's crop they differ from the images alone.
    one, other = (asked.learned(Linear("rvcl", crops)) for crops in (0, 2))
    assert not torch.allclose(one.scores(asked.codes), other.scores(asked.codes), atol=1e-2)
    by_hand = descended(copies, asked.bank.labels, RECIPES["rvcl"], asked.bank.run.noise(bank.ids).fork("linear"))
    assert isinstance(other, LinearScores)
    assert torch.allclose(other.weight, by_hand["weight"], atol=1e-6)


@pytest.mark.parametrize("probe", [NoiseProbe(recipe="moco"), LowPassProbe(3.0, recipe="moco"), NoiseProbe(crop=True)])
def test_other_heads_take_recipes_and_crops(probe: NoiseProbe | LowPassProbe) -> None:
    encoder, run = builtin(), RunSettings()
    bank = Population(encoder, load("builtin:digits-train", DIGITS, limit=200), run)
    asked = Population(encoder, load("builtin:digits", DIGITS, limit=60), run, bank=bank)
    fitted, plain = asked.learned(probe), asked.learned(Probe.read("noise" if probe.name == "noise" else "low-pass:3"))
    codes = fitted.codes(asked, range(60))
    assert not torch.allclose(fitted.scores(codes), plain.scores(codes), atol=1e-2)
    assert accuracy(fitted.ranks(codes, asked.labels)) > 0.3
    assert Probe.read(str(probe)) == probe


def test_settings_of_heads_that_came_later_change_no_key() -> None:
    assert settings(Linear()) == {"recipe": "lbfgs"}
    assert settings(NoiseProbe()) == {"sigma": 0.25, "draws": 1}
    assert settings(LowPassProbe(3.0, crops=2)) == {"radius": 3.0, "crops": 2}
    for wrong in (lambda: Linear(crops=-1), lambda: NoiseProbe(recipe="mocco"), lambda: LowPassProbe(3.0, "mocco")):
        with pytest.raises(HoldfastError):
            wrong()


@pytest.mark.parametrize("recipe", ["lbfgs", "moco"])
def test_the_order_of_the_bank_changes_nothing(recipe: str) -> None:
    forward, turned = population(clouds(60, 1)), population(clouds(60, 1)[list(range(60))[::-1]])
    one, other = (asked.learned(Linear(recipe)).scores(forward.codes) for asked in (forward, turned))
    assert torch.allclose(one, other, atol=1e-4)


def test_probes_survive_a_round_trip_and_refuse_what_is_not_there() -> None:
    for text in ("linear", "linear:recipe=moco", "knn:k=5,temperature=0.07"):
        assert str(Probe.read(text)) == text
    with pytest.raises(HoldfastError, match="Did you mean 'lbfgs'"):
        Linear("lfbgs")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv1", "mnist_cnn_4layer_a_adv3"])
def test_heads_are_as_good_as_those_published_with_the_encoders(reference: Path, name: str) -> None:
    def images(which: str, count: int) -> Images:
        held = np.load(reference / "images" / f"mnist_{which}.npz")
        pixels, labels = (torch.tensor(held[name][:count]) for name in ("images", "labels"))
        return Images(pixels, [f"{which}{k}" for k in range(count)], labels.long(), which)

    encoder, test, bank = published(reference, name, torch.float32), images("test", 2000), images("train", 10_000)
    asked = Population(encoder, test, RunSettings(), bank=Population(encoder, bank, RunSettings()))
    with torch.no_grad():
        whole = published(reference, f"{name}__lineval", torch.float32).forward(test.pixels(range(2000)))
    theirs = float((whole.argmax(1) == asked.labels).double().mean())
    ours, recipe = (
        accuracy(asked.learned(probe).ranks(asked.codes, asked.labels)) for probe in (Linear(), Linear("rvcl"))
    )
    assert ours > theirs
    assert recipe == pytest.approx(theirs, abs=0.02)  # theirs learned from all 60,000 images
