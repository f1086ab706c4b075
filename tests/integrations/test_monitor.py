"""A monitor says what is so, keeps within its share of the time and leaves the training alone."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.integrations import monitor as monitors
from holdfast.integrations.monitor import Monitor, scalars
from tests.facts import warned
from tests.samples import builtin, digits

SMALL = {"attack-radius": {"samples": 8}}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(64, 16, bias=False)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 8))


def state(module: nn.Module) -> list[Any]:
    """Everything of a training that a measurement could disturb, to the last bit."""
    gradients = [None if weight.grad is None else weight.grad.tolist() for weight in module.parameters()]
    modes = [part.training for part in module.modules()], [weight.requires_grad for weight in module.parameters()]
    arrays = np.random.get_state(legacy=False)["state"]
    generators = random.getstate(), arrays["key"].tolist(), arrays["pos"], torch.get_rng_state().tolist()
    settings = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    weights = {name: value.tolist() for name, value in module.state_dict().items()}
    return [gradients, modes, generators, settings, weights]


def train(monitor: Monitor | None, epochs: int = 3) -> dict[str, Tensor]:
    """Weights after a training that draws from every generator."""
    pixels = digits(40).pixels(range(40))  # what is loaded for the first time may draw, too
    module = network().train()
    optimiser = torch.optim.Adam(module.parameters())
    random.seed(1)
    np.random.seed(1)
    for epoch in range(1, epochs + 1):
        order = torch.randperm(40)
        scale = 1 + random.random() + float(np.random.rand())
        loss = module(pixels[order] * scale).square().mean()
        loss.backward()
        if monitor:
            before = state(module)
            assert monitor.after(epoch, module)
            assert state(module) == before
        optimiser.step()
        optimiser.zero_grad()
    return module.state_dict()


def test_training_is_left_as_it_was() -> None:
    """To the last bit at every measurement; where memory lies may round a whole training differently each time."""
    alone, watched = train(None), train(Monitor(digits(20), settings=SMALL, share=inf))
    torch.testing.assert_close(watched, alone, rtol=1e-4, atol=1e-5)


def test_numbers_are_those_of_evaluate() -> None:
    encoder = builtin()
    estimates = Monitor(digits(60), settings=SMALL)(encoder.module)
    settings = {"attack-radius": {**monitors.SMALL["attack-radius"], **SMALL["attack-radius"]}}
    run = hf.evaluate(encoder, digits(60), only=["attack-radius", "geometry"], settings=settings, workers=1)
    assert estimates["rankme"].value == pytest.approx(run["geometry"].estimate("rankme").value, rel=1e-5)
    assert estimates["attack_radius"].value == pytest.approx(
        run["attack-radius"].estimate("attack_radius").value, rel=1e-4
    )
    numbers = scalars(estimates)
    assert numbers["holdfast/rankme.low"] <= numbers["holdfast/rankme"] <= numbers["holdfast/rankme.high"]


def test_neighbours_that_are_kept_are_counted() -> None:
    """All of an unchanged encoder, few of another; the oracle looks at every pair."""
    monitor, images = Monitor(digits(40), only="geometry"), digits(40)
    module, other = builtin().module, builtin("digits-supervised").module
    assert "neighbours_kept" not in monitor(module)
    assert monitor(module)["neighbours_kept"].value == 1
    kept = monitor(other)["neighbours_kept"]
    near = []
    for each in (module, other):
        codes = each(images.pixels(range(40))).double()
        distances = torch.cdist(codes, codes).fill_diagonal_(torch.inf)
        near.append([set(row.tolist()) for row in distances.topk(10, largest=False).indices])
    assert kept.value == pytest.approx(sum(len(a & b) for a, b in zip(*near, strict=True)) / 400)
    assert kept.low < kept.value < kept.high


def test_neighbours_are_those_kept_since_the_last_measurement_and_not_the_first() -> None:
    monitor = Monitor(digits(40), only="geometry")
    module, other = builtin().module, builtin("digits-supervised").module
    monitor(module)
    assert monitor(other)["neighbours_kept"].value < 1
    assert monitor(other)["neighbours_kept"].value == 1, "nothing has changed since the last time"
    assert monitor(module)["neighbours_kept"].value < 1, "what it was at first has no part in it"


def test_measurements_stay_within_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rankme = Monitor(digits(20), only="geometry")(nn.Flatten())["rankme"]
    now = [0.0]
    monkeypatch.setattr(monitors, "monotonic", lambda: now[0])
    monitor = Monitor(digits(20), only="geometry", share=0.1, every=2)

    def measured(_: nn.Module) -> Any:
        now[0] += 5
        return iter([("rankme", rankme)])

    monkeypatch.setattr(monitor, "_measured", measured)
    module, done = nn.Flatten(), []
    monitor.start(module)
    for epoch in range(1, 41):
        now[0] += 10
        if monitor.after(epoch, module):
            done.append(epoch)
    assert done[0] == 6, "5 s are a tenth of 50 s, and the epoch after 50 s is odd"
    assert all(epoch % 2 == 0 for epoch in done)
    assert 0.07 < 5 * len(done) / now[0] <= 0.1


def test_an_encoder_that_broke_does_not_end_the_training() -> None:
    monitor = Monitor(digits(20), only="geometry", share=inf)
    module = network()
    monitor.start(module)
    next(module.parameters()).data.fill_(torch.nan)
    with warned(HoldfastWarning, "1", "NaN", "measured"):
        assert monitor.after(1, module) == {}


def test_a_labelled_bank_asks_for_neighbours_accuracy() -> None:
    labels = torch.arange(80) % 2
    pixels = digits(80).pixels(range(80))
    pixels[::2, :, :, :4] *= 0.2  # the classes: left halves dim and bright
    images = hf.Images(pixels[:40], labels=labels[:40])
    bank = hf.Images(pixels[40:], labels=labels[40:], ids=[f"bank-{row}" for row in range(40)])
    estimates = Monitor(images, bank=bank, only="probe-accuracy")(nn.Flatten())
    assert estimates["top1_accuracy"].value > 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": "photos/"}, "need the shape of the encoder's inputs"),
        ({"images": torch.rand(4, 1, 8, 8), "every": 0}, "every must be"),
        ({"images": torch.rand(4, 1, 8, 8), "share": 0.0}, "share is that of the time"),
        ({"images": torch.rand(4, 1, 8, 8), "only": "geometri"}, "evaluation.*'geometri'"),
        ({"images": torch.rand(4, 1, 8, 8), "shape": (3, 8, 8)}, "must be of shape"),
    ],
)
def test_what_cannot_be_is_said_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        Monitor(**arguments)
