"""A promised agreement: the multiplier, the choice of the epoch, the check on held-out images; and everyday edits."""

from __future__ import annotations

import csv
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.statistics import coverage_agreement
from scipy import stats
from torch import Tensor, nn

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands import harden
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.commands.harden import parted
from holdfast.commands.train import train
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import Conflict, OutOfRange, UnknownName
from holdfast.core.noise import Noise
from holdfast.corruptions.evaluations.common_perturbations import CommonPerturbations
from holdfast.measure.store import Store
from holdfast.report import write
from holdfast.training import loop
from holdfast.training.adversaries.base import OnLoss, in_training
from holdfast.training.adversaries.edits import Edits
from holdfast.training.hardening import Promise, recipe_for, shift_of, watch_of
from holdfast.training.health import rank_of
from holdfast.training.learner import Batch, Setting
from holdfast.training.objectives.teachers import FIRST_MULTIPLIER, Distillation, DistillationLearner
from holdfast.transforms.severity import edit_names
from tests.facts import refused
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
        {"epoch": 0.0, "kept": 1.0, "shift": 0.1, "agreement_low": 1.0},
        {"epoch": 1.0, "kept": 1.0, "shift": 0.9, "agreement_low": 0.95},
        {"epoch": 2.0, "kept": 1.0, "shift": 0.5, "agreement_low": 0.91},
        {"epoch": 3.0, "kept": 0.0, "shift": 0.2, "agreement_low": 0.85},
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


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_within_an_epoch_keeps_the_best_epoch_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, images, out = hf.load_encoder("builtin:digits-contrastive"), digits(40), tmp_path / "made"
    taught, validation = parted(images, None, 0)
    recipe = recipe_for(original, len(taught), BALL, epochs=6, rate=0.01, agreement=0.5)
    usual, step, best = watch_of(0.5, original, validation, "cpu", BALL, 0), loop.Training._train_step, 2
    seen = list[dict[str, Tensor]]()

    def watch(module: nn.Module) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in module.state_dict().items()})
        return usual(module) | {"shift": abs(len(seen) - 1 - best) + 0.1}

    def interrupted(training: loop.Training, *given: Any) -> Tensor:
        if (training.epoch, training.step) == (4, 0):
            signal.raise_signal(signal.SIGINT)
        return step(training, *given)

    monkeypatch.setattr(loop.Training, "_train_step", interrupted)
    arguments: dict[str, Any] = {"start": original, "progress": False, "watch": watch}
    with pytest.raises(KeyboardInterrupt):
        train(recipe, taught, out=out, **arguments)
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    assert (state["epoch"], state["step"], state["sound_epoch"]) == (4, 1, best)
    kept = hf.load_encoder(f"trained:{out}").module.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in seen[best].items())
    assert not all(torch.equal(kept[name], value) for name, value in seen[4].items()), "the last epoch is another one"
    monkeypatch.setattr(loop.Training, "_train_step", step)
    again = train(recipe, taught, out=out, **arguments)
    seen.clear()
    whole = train(recipe, taught, **arguments)
    pixels = images.pixels(range(4))
    assert torch.equal(again(pixels), whole(pixels)), "the same call goes on as if it had not been stopped"


def test_the_command_says_whether_the_promise_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harden, "evaluate", lambda *_, out, **__: EvaluatedRun((), (), out))
    monkeypatch.setattr(EvaluatedRun, "report", lambda _: tmp_path)
    monkeypatch.setattr("holdfast.commands.compare.compare", lambda _: None)
    monkeypatch.setattr("holdfast.cli.harden.show", lambda _: None)
    ending = ["--images", "builtin:digits-train", "--limit", "60", "--eps", "0.1", "--epochs", "1"]
    for asked, rate, status in (("0.9", "1e-4", 0), ("0.99999", "1e-3", 1)):
        words = ["harden", "builtin:digits-contrastive", *ending, "--rate", rate, "--agreement", asked]
        assert run([*words, "--out", str(tmp_path / asked)]) == status
        assert f"asked {asked}" in capsys.readouterr().out
        assert (tmp_path / asked / "agreement.json").exists()
    results = [Store(tmp_path / asked / harden.FOLDER).results()[0] for asked in ("0.9", "0.99999")]
    for result, asked in zip(results, ("0.9", "0.99999"), strict=True):
        written = json.loads((tmp_path / asked / "agreement.json").read_text())
        estimate, (verdict,) = result.estimate("agreement", asked=asked), result.findings.verdicts
        assert (estimate.value, estimate.low, estimate.n) == (written["reached"], written["low"], written["n"])
        assert verdict.witness["status"] == written["status"]
    files = write(results, [], tmp_path / "report")
    rows = csv.DictReader(files["table.csv"].read_text().splitlines())
    assert {"0.9", "0.99999"} == {row["condition_asked"] for row in rows}
    assert "asked: 0.9" in files["report.html"].read_text()


def test_goals_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(OutOfRange):
        hf.harden(small(), digits(30), agreement=1.5, progress=False)
    with pytest.raises(Conflict):
        hf.harden(small(), digits(30), agreement=0.9, noise=0.25, progress=False)
    with pytest.raises(Conflict):
        Edits(ball=BALL)


@pytest.mark.parametrize(
    "words", ["--edits rotation,gamma:0.5,gamma:2", "--set adversary=edits:edits=rotation;gamma:0.5;gamma:2"]
)
def test_the_edits_that_are_trained_on_choose_the_epoch_and_are_measured(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, watched = list[dict[str, Any]](), list[Any]()

    def measure(*_: Any, **settings: Any) -> EvaluatedRun:
        measured.append(settings)
        return EvaluatedRun((), (), tmp_path)

    def watching(*given: Any) -> Any:
        watched.append(given[4])
        return watch_of(*given)

    monkeypatch.setattr(harden, "evaluate", measure)
    monkeypatch.setattr(harden, "watch_of", watching)
    monkeypatch.setattr("holdfast.commands.compare.compare", lambda _: None)
    monkeypatch.setattr("holdfast.cli.harden.show", lambda _: None)
    monkeypatch.setattr(EvaluatedRun, "report", lambda _: tmp_path)
    ending = ["--images", "builtin:digits-train", "--limit", "60", "--epochs", "1", "--agreement", "0.9"]
    assert run(["harden", "builtin:digits-contrastive", *ending, *words.split(), "--out", str(tmp_path / "made")]) == 0
    assert measured[0]["settings"]["common-perturbations"] == {"edits": ("rotation", "gamma:0.5", "gamma:2")}
    assert isinstance(watched[0], Edits)
    measuring = CommonPerturbations(**measured[0]["settings"]["common-perturbations"])
    assert watched[0].family == measuring.observation().edits


def test_the_epoch_is_chosen_by_the_shift_under_the_worst_edit() -> None:
    encoder, images, edits = small(), digits(12), Edits(edits="rotation;gamma:0.5", tried=1)
    noise, pixels = Noise.of(3, images.ids).fork("watched attack"), images.pixels(range(12))
    codes = encoder(pixels).double().numpy()
    far = [np.linalg.norm(encoder(edit(pixels, noise)).double().numpy() - codes, axis=1) for edit in edits.family]
    nearest = np.linalg.norm(codes[:, None] - codes[None], axis=2) + np.diag([np.inf] * 12)
    wanted = np.sort(np.max(far, axis=0) / nearest.min(1))[5]  # torch takes the lower of two middle values
    assert shift_of(encoder.module, images, DOMAIN, edits, 3) == pytest.approx(wanted, rel=1e-4)
    assert shift_of(encoder.module, images, DOMAIN, BALL, 3) != pytest.approx(wanted, rel=1e-2)


def test_settings_of_own_edits_survive_the_text_of_a_recipe() -> None:
    names = edit_names(["rotation", "random-resized-crop:scale_min=0.5,scale_max=0.9, gamma:0.5"])
    recipe = recipe_for(small(), 24, BALL, edits=names, settings={"batch": "8"})
    assert isinstance(recipe.adversary, Edits)
    assert recipe.adversary.names == ("rotation", "random-resized-crop:scale_min=0.5,scale_max=0.9", "gamma:0.5")
    assert [str(edit) for edit in recipe.adversary.family[-2:]] == [*names[1:]]
    with refused(UnknownName, "rotatoin", "rotation"):
        hf.harden(small(), digits(30), edits="rotatoin", progress=False)


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


@pytest.mark.parametrize("grouped", [False, True])
def test_the_interval_covers_the_mean_of_skewed_cosines(grouped: bool) -> None:
    skewed = 1 - np.random.default_rng(1).beta(0.7, 12, 1000)  # most near 1, few far, as those of digits
    found = coverage_agreement.row("skewed", skewed, 60, grouped, 1000)
    assert 0.93 <= found.covered < 0.99
    assert found.kept_wrongly < 0.06
