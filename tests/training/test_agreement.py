"""A promised agreement: the multiplier, the choice of the epoch, the check on held-out images; and everyday edits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands import harden
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.commands.harden import parted
from holdfast.commands.train import train
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import Conflict, OutOfRange
from holdfast.core.noise import Noise
from holdfast.training.adversaries.attacks import OnLoss
from holdfast.training.adversaries.base import in_training
from holdfast.training.adversaries.edits import Edits
from holdfast.training.agreement import Promise, watch_of
from holdfast.training.harden_recipe import recipe_for
from holdfast.training.health import rank_of
from holdfast.training.learner import Batch, Setting
from holdfast.training.objectives.teachers import FIRST_MULTIPLIER, Distillation, DistillationLearner
from tests.samples import digits

pytest.importorskip("lightning_fabric")

BALL = hf.Linf(0.1)
DOMAIN = Domain((1, 8, 8))


def small() -> Encoder:
    torch.manual_seed(0)
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh()), "small", DOMAIN)


def batch_of(count: int) -> Batch:
    images = digits(count)
    pixels = images.pixels(range(count))
    return Batch(torch.arange(count), pixels, (pixels,), None, Noise.of(0, images.ids), attacked=pixels)


def constrained(floor: float) -> DistillationLearner:
    setting = Setting(DOMAIN, 4, 8, 0, 8)
    learner = Distillation(agreement=floor).learner(small().module, setting)
    assert isinstance(learner, DistillationLearner)
    return learner


def test_the_multiplier_rises_while_the_floor_is_violated_and_falls_while_it_is_kept() -> None:
    batch, learner = batch_of(8), constrained(0.9)
    learner(batch)
    learner.after_step(0.0)
    assert float(learner.multiplier) < FIRST_MULTIPLIER, "an unchanged encoder agrees with itself"
    with torch.no_grad():
        for weight in learner.encoder.parameters():
            weight.neg_()
    before = float(learner.multiplier)
    learner(batch)
    learner.after_step(0.0)
    assert float(learner.multiplier) > before


def test_the_loss_is_the_lagrangian() -> None:
    batch, learner = batch_of(8), constrained(0.9)
    with torch.no_grad():
        for weight in learner.encoder.parameters():
            weight.mul_(0.5)
        new, old = learner.encoder(batch.views[0]).double().numpy(), learner.original(batch.views[0]).double().numpy()
    cosines = (new * old).sum(1) / np.linalg.norm(new, axis=1) / np.linalg.norm(old, axis=1)
    distance = np.square(new - old).sum() / np.square(old).sum()
    wanted = (distance + FIRST_MULTIPLIER * (0.9 - cosines.mean())) / (1 + FIRST_MULTIPLIER)
    assert float(learner(batch)) == pytest.approx(wanted, abs=1e-6)


def test_validation_images_raise_what_training_images_must_reach() -> None:
    learner = constrained(0.9)
    learner.after_epoch({"epoch": 0.0, "agreement_low": 0.5})
    assert float(learner.gap) == 0
    learner.after_epoch({"epoch": 1.0, "agreement_low": 0.95})
    assert float(learner.gap) == pytest.approx(0.05)
    assert {"multiplier", "gap", "agreed", "violation"} <= set(learner.state_dict())


def test_without_a_floor_nothing_changes() -> None:
    plain = Distillation(clean=1.0).learner(small().module, Setting(DOMAIN, 4, 8, 0, 8))
    assert not [name for name in plain.state_dict() if "multiplier" in name]
    assert str(Distillation(clean=1.0)) == "distillation:clean=1.0"
    assert str(recipe_for(small(), 24, BALL).adversary) == "loss:ball=linf:0.1,steps=2"


def test_the_radius_grows_from_nothing() -> None:
    learner, batch = constrained(0.9), batch_of(8)
    learner.encoder[1].weight.data += 0.1  # type: ignore[index]
    shifts = []
    for batch.progress in (0.0, 0.25, 0.5, 1.0):
        moved = OnLoss(BALL, steps=2, ramp=0.5)(learner, batch, DOMAIN, {})
        shifts.append(float((moved - batch.views[0]).abs().max()))
    assert shifts[0] <= 1e-3 * 0.1 * 1.001
    assert shifts[1] == pytest.approx(0.05, rel=1e-3)
    assert shifts[2] == shifts[3] == pytest.approx(0.1, rel=1e-3)


def test_the_most_robust_epoch_that_keeps_the_promise_comes_first() -> None:
    curve = [
        {"epoch": 0.0, "kept": 1.0, "attack_shift": 0.1, "agreement_low": 1.0},
        {"epoch": 1.0, "kept": 1.0, "attack_shift": 0.9, "agreement_low": 0.95},
        {"epoch": 2.0, "kept": 1.0, "attack_shift": 0.5, "agreement_low": 0.91},
        {"epoch": 3.0, "kept": 0.0, "attack_shift": 0.2, "agreement_low": 0.85},
    ]
    assert max(curve, key=rank_of)["epoch"] == 2
    assert max((epoch | {"kept": 0.0} for epoch in curve), key=rank_of)["epoch"] == 1


def test_a_promise_has_the_interval_of_student_at_least() -> None:
    values = torch.tensor([0.97, 0.92, 0.95, 0.9, 0.96, 0.94])
    promise = Promise.of(0.9, values, None)
    low, high = stats.t.interval(0.95, 5, values.double().mean(), stats.sem(values.double().numpy()))
    assert promise.low <= low + 1e-6
    assert promise.high >= min(1, high) - 1e-6
    assert promise.status == "kept"
    assert Promise.of(0.94, values, None).status == "not shown"
    assert Promise.of(0.99, values, None).status == "missed"
    assert Promise.of(0.9, values, list("aabbcc")).low != promise.low


class StoppedError(Exception):
    """What ends a training in the middle."""


def test_an_interrupted_training_goes_on_with_its_multiplier(tmp_path: Path) -> None:
    original, images = small(), digits(40)
    taught, validation = parted(images, None, 0)
    recipe = recipe_for(original, len(taught), BALL, epochs=4, rate=0.003, agreement=0.99)
    watch, calls = watch_of(0.99, original, validation, "cpu", BALL, 0), list[int]()

    def stopping(module: nn.Module) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            raise StoppedError
        return watch(module)

    arguments: dict[str, Any] = {"start": original, "progress": False}
    whole = train(recipe, taught, watch=watch, **arguments)
    with pytest.raises(StoppedError):
        train(recipe, taught, watch=stopping, out=tmp_path / "made", **arguments)
    state = torch.load(tmp_path / "made" / "checkpoint.pt", weights_only=True)["learner"]
    assert float(state["multiplier"]) != FIRST_MULTIPLIER
    again = train(recipe, taught, watch=watch, out=tmp_path / "made", **arguments)
    pixels = images.pixels(range(4))
    assert torch.equal(again(pixels), whole(pixels))
    assert not torch.equal(again(pixels), original(pixels))


def test_the_command_says_whether_the_promise_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harden, "evaluate", lambda *_, **__: EvaluatedRun((), (), tmp_path))
    monkeypatch.setattr(EvaluatedRun, "report", lambda _: tmp_path)
    ending = ["--images", "builtin:digits-train", "--limit", "60", "--eps", "0.1", "--epochs", "1"]
    for asked, rate, status in (("0.9", "1e-4", 0), ("0.99999", "1e-3", 1)):
        words = ["harden", "builtin:digits-contrastive", *ending, "--rate", rate, "--agreement", asked]
        assert run([*words, "--out", str(tmp_path / asked)]) == status
        assert f"asked {asked}" in capsys.readouterr().out
        assert (tmp_path / asked / "agreement.json").exists()


def test_goals_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(OutOfRange):
        hf.harden(small(), digits(30), agreement=1.5, progress=False)
    with pytest.raises(Conflict):
        hf.harden(small(), digits(30), agreement=0.9, noise=0.25, progress=False)
    with pytest.raises(Conflict):
        Edits(ball=BALL)


@pytest.mark.parametrize("tried", [None, 3])
def test_the_worst_edit_is_that_of_a_search_over_all(tried: int | None) -> None:
    learner, batch = constrained(0.9), batch_of(8)
    adversary = Edits(edits="gamma:0.5;rotation;blur;noise", tried=tried)
    found = adversary(learner, batch, DOMAIN, {})
    noise, chosen = batch.noise.fork("edits"), adversary.drawn(batch.noise.fork("edits"))
    target, encoder = learner.original(batch.views[0]), in_training(learner.encoder, DOMAIN)
    for row in range(8):
        losses = {}
        for place in chosen[row].tolist():
            image = adversary.family[place](batch.views[0][row : row + 1], noise[torch.tensor([row])])
            losses[place] = (float((encoder.forward(image) - target[row]).square().sum()), image)
        worst = max(loss for loss, _ in losses.values())
        reached = float((encoder.forward(found[row : row + 1]) - target[row]).square().sum())
        assert reached == pytest.approx(worst, rel=1e-4)
        assert any(torch.allclose(image[0], found[row], atol=1e-6) for _, image in losses.values())
    one = replace(adversary, tried=1)(learner, batch, DOMAIN, {})
    assert not torch.equal(one, found), "one at random is not the worst"


@pytest.mark.slow
def test_hardening_against_an_edit_raises_accuracy_under_it() -> None:
    encoder = hf.load_encoder("builtin:digits-contrastive")
    images = hf.load_images("builtin:digits-train", encoder, limit=500)
    taught, held = parted(images, None, 0)
    recipe = recipe_for(encoder, len(taught), None, epochs=30, rate=1e-3, edits=["rotation"])
    hardened = train(recipe, taught, start=encoder, progress=False)
    pixels = held.pixels(range(len(held)))
    turned = Edits(edits="rotation").family[-1](pixels, Noise.of(0, held.ids))
    kept = []
    for each in (encoder, hardened):
        kept.append((torch.cdist(each(turned), each(pixels)).argmin(1) == torch.arange(len(held))).double().numpy())
    difference = kept[1] - kept[0]
    low, _ = stats.t.interval(0.95, len(held) - 1, difference.mean(), stats.sem(difference))
    assert low > 0, f"{kept[0].mean()} before, {kept[1].mean()} after"
