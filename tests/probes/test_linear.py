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
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.probes.linear import Linear, LinearScores
from tests.probes.known import accuracy, clouds, population
from tests.samples import published


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
