"""The mode in which an encoder learns: trained networks with batch norm stay the network that is attacked and used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.commands.harden import parted
from holdfast.commands.train import mode_of, train
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.training.hardening import agreement_of, recipe_for
from holdfast.training.learner import TrainingObjective, training_objectives
from holdfast.training.recipe import Recipe
from tests.samples import digits
from tests.training import tiny

pytest.importorskip("lightning_fabric")

OBJECTIVES = {name: tiny.small(kind()) for name, kind in training_objectives().items()}
FROM_ENCODER = {"objective": "distillation", "architecture": "encoder:mine"}


class Residual(nn.Module):
    """A block that is left out at random in train mode (stochastic depth), decided as functions do it, without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.rand(len(x), 1, 1, 1) > 0.5 if self.training else torch.ones(())
        return x + keep * self.inner(x)


def normed(statistics: bool = True) -> Encoder:
    """A network with batch norm whose running statistics, if it has any of its own, are not those of digits."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5))
    module = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Residual(), head)
    for part in module.modules() if statistics else ():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = torch.randn(8) / 2
            part.running_var = torch.rand(8) + 0.05
    return Encoder(module.eval(), "normed", Domain((1, 8, 8)))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_encoder_in_eval_mode_and_its_copies_stay_in_it(name: str) -> None:
    objective: TrainingObjective = OBJECTIVES[name]
    torch.manual_seed(0)
    made = objective.learner(tiny.Convolutions().eval(), tiny.setting())
    made.before_epoch(0, lambda: torch.randn(tiny.SAMPLES, tiny.WIDTH))
    norms = [part for part in made.modules() if isinstance(part, nn.BatchNorm2d)]  # heads have those of vectors
    before = [{name: value.clone() for name, value in norm.named_buffers()} for norm in norms]
    tiny.step(made, tiny.optimiser(made), tiny.batch(objective), 0.5)
    for norm, buffers in zip(norms, before, strict=True):
        assert not norm.training
        torch.testing.assert_close(dict(norm.named_buffers()), buffers, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [None, "train"])
def test_hardening_keeps_the_codes_of_a_network_with_batch_norm(mode: str | None, tmp_path: Path) -> None:
    original, images = normed(), digits(60)
    taught, held = parted(images, None, 0)
    settings: dict[str, Any] = {} if mode is None else {"mode": mode}
    watch, recipe = (
        agreement_of(original, held, "cpu"),
        recipe_for(original, len(taught), Linf(0.05), epochs=2, rate=1e-3, settings={"batch": 16, **settings}),
    )
    if mode == "train":  # what the setting is for, and what it does: so the other case is awake
        with pytest.raises(HoldfastError, match="agreement"):
            train(recipe, taught, start=original, watch=watch, progress=False)
        return
    hardened = train(recipe, taught, start=original, watch=watch, out=tmp_path / "made", progress=False)
    curve = [json.loads(line) for line in (tmp_path / "made" / "metrics.jsonl").read_text().splitlines()]
    assert curve[-1]["loss"] < curve[1]["loss"]
    assert curve[-1]["agreement"] > 0.95
    assert curve[-1]["neighbours_kept"] > 0.8
    after = dict(hardened.module.named_buffers())
    assert all(torch.equal(value, after[name]) for name, value in original.module.named_buffers())
    assert json.loads((tmp_path / "made" / "card.json").read_text())["recipe"]["mode"] == "eval"


@pytest.mark.parametrize(
    ("start", "recipe", "mode"),
    [
        (None, {"objective": "simclr", "architecture": "digits"}, "train"),
        (None, {"objective": "simclr", "architecture": "digits", "mode": "eval"}, "eval"),
        (normed(), FROM_ENCODER, "eval"),
        (normed(), {**FROM_ENCODER, "mode": "train"}, "train"),
        (normed(statistics=False), FROM_ENCODER, "train"),
        (Encoder(nn.Flatten(), "pixels", Domain((1, 8, 8))), FROM_ENCODER, "eval"),
    ],
    ids=["from scratch", "from scratch, set", "trained", "trained, set", "no statistics yet", "no batch norm"],
)
def test_the_mode_follows_from_where_training_starts(start: Encoder | None, recipe: dict[str, str], mode: str) -> None:
    assert mode_of(Recipe.of(recipe), start) == mode


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(HoldfastError, match=r"mode.*'frozen'.*eval, train"):
        Recipe.of({**FROM_ENCODER, "mode": "frozen"})


def test_one_image_a_batch_is_enough_where_batch_norm_takes_no_statistics() -> None:
    images = Images(digits(6).pixels(range(6)))
    recipe = recipe_for(normed(), 6, Linf(0.05), epochs=1, rate=1e-3, settings={"batch": 1})
    train(recipe, images, start=normed(), progress=False)
    with pytest.raises(HoldfastError, match="batch norm needs at least 2 images"):
        train(replace(recipe, mode="train"), images, start=normed(), progress=False)
