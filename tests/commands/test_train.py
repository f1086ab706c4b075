"""Training from a recipe to an encoder on disk: resumed bit by bit, the same in several processes, refused clearly."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands import train as training
from holdfast.commands.train import read_recipe, train
from holdfast.core.errors import AgreementLostError, BudgetSpentError, HoldfastError
from holdfast.core.images import Images
from holdfast.data.reading import decode, scan
from holdfast.training import loop as loop
from holdfast.training.adversaries.base import OnLoss
from holdfast.training.learner import Learner
from holdfast.training.recipe import Recipe, read_settings, recipes, views_of
from tests.facts import refused, says

pytest.importorskip("lightning_fabric")

SMALL = {
    "objective": "simclr",
    "architecture": "digits",
    "augmentation": "noise:0.1",
    "optimiser": "adam",
    "batch": 32,
    "epochs": 2,
}


@pytest.fixture(scope="module")
def digits() -> Images:
    return hf.load_images("builtin:digits-train", hf.load_encoder("builtin:digits-robust"), limit=150)


def weights(folder: Path) -> bytes:
    return (folder / "encoder.safetensors").read_bytes()


def test_the_trained_encoder_is_loaded_again(digits: Images, tmp_path: Path) -> None:
    encoder = train(SMALL, digits[range(100)], bank=digits[range(100, 150)], out=tmp_path / "made", keep_epochs=1)
    again = hf.load_encoder(f"trained:{tmp_path / 'made'}")
    pixels = digits.pixels(range(4))
    assert torch.equal(encoder(pixels), again(pixels))
    assert again.fingerprint == encoder.fingerprint
    early = hf.load_encoder(f"trained:{tmp_path / 'made'}?epoch=1")
    assert not torch.equal(early(pixels), again(pixels))
    card = json.loads((tmp_path / "made" / "card.json").read_text())
    assert [epoch["epoch"] for epoch in card["curve"]] == [0, 1, 2]
    assert {"loss", "rankme", "uniformity", "spread"} <= card["curve"][2].keys()
    lines = (tmp_path / "made" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == card["curve"]
    page = (tmp_path / "made" / "training.html").read_text()
    assert page.count("<svg") >= 4
    assert "simclr" in page


def test_a_supervised_training_keeps_its_classifier(digits: Images, tmp_path: Path) -> None:
    recipe = {
        **SMALL,
        "objective": "supervised",
        "adversary": "loss:ball=linf:0.05,steps=2",
        "optimiser": "adam:rate=0.01",
    }
    train({**recipe, "batch": 16, "epochs": 8}, digits, out=tmp_path / "made")
    result = hf.evaluate(
        f"trained:{tmp_path / 'made'}?head=logits",
        digits,
        only=["probe-accuracy", "robust-accuracy"],
        settings={
            "probe-accuracy": {"probes": ["logits"]},
            "robust-accuracy": {"probes": ["logits"], "balls": ["linf:0.05"], "attacks": ["pgd:steps=3"]},
        },
    )
    scores = hf.load_encoder(f"trained:{tmp_path / 'made'}?head=logits")(digits.pixels(range(len(digits))))
    assert digits.labels is not None
    expected = float((scores.argmax(1) == digits.labels).double().mean())
    assert expected > 0.5, "vacuous: nothing was learned"
    found = {each.quantity: each.value for part in result.results for each in part.estimates}
    assert found["top1_accuracy"] == pytest.approx(expected)
    assert found["robust_accuracy"] < expected
    # The classifier of the last step fits no average of the weights, and labels with gaps name no outputs.
    train({**recipe, "ema": 0.9, "epochs": 1}, digits, out=tmp_path / "ema")
    gaps = Images(digits.source, digits.ids, 2 * torch.as_tensor(digits.labels))
    train({**recipe, "epochs": 1}, gaps, out=tmp_path / "gaps")
    for folder in ("ema", "gaps"):
        with pytest.raises(HoldfastError, match="classifier"):
            hf.load_encoder(f"trained:{tmp_path / folder}?head=logits")


def test_the_seed_decides(digits: Images) -> None:
    one, two, other = (train({**SMALL, "seed": seed}, digits) for seed in (0, 0, 1))
    assert one.fingerprint == two.fingerprint != other.fingerprint


def test_training_leaves_the_global_generator_alone(digits: Images) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(SMALL, digits)
    assert torch.equal(torch.rand(3), expected)


def rewrite_started(path: Path, when: str) -> None:
    torch.save({**torch.load(path, weights_only=True), "started": when}, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop_after", "change"),
    [
        pytest.param(1, {"adversary": "loss"}, marks=pytest.mark.slow),
        pytest.param(5, {"adversary": "spade-guided:k=5"}, marks=pytest.mark.slow),
        (6, {"ema": 0.5, "objective": "byol", "precision": "float64"}),
    ],
    ids=["loss", "spade-guided", "ema"],
)
def test_an_interrupted_training_ends_like_an_unbroken_one(
    digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int, change: dict[str, Any]
) -> None:
    adversarial = {**SMALL, **change}
    train(adversarial, digits, out=tmp_path / "whole")
    monkeypatch.setattr(loop, "SECONDS", 0.0)
    step, count = loop.Training._train_step, 0

    def dying(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count > stop_after:
            raise MemoryError
        return step(*given)

    monkeypatch.setattr(loop.Training, "_train_step", dying)
    with pytest.raises(MemoryError):
        train(adversarial, digits, out=tmp_path / "broken")
    monkeypatch.setattr(loop.Training, "_train_step", step)
    begun = torch.load(tmp_path / "broken" / "checkpoint.pt", weights_only=True)["started"]
    began = datetime(2020, 1, 1, tzinfo=UTC)
    rewrite_started(tmp_path / "broken" / "checkpoint.pt", began.isoformat())
    train(adversarial, digits, out=tmp_path / "broken", resume=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "broken")
    card = json.loads((tmp_path / "broken" / "card.json").read_text())
    assert card["started"] == began.isoformat() < begun, "a card says when the first command began"


def test_a_checkpoint_that_calls_rankme_effective_rank_is_gone_on_from(digits: Images, tmp_path: Path) -> None:
    with pytest.raises(BudgetSpentError):
        train(SMALL, digits, out=tmp_path, budget=1e-6)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for epoch in state["curve"]:
        epoch["effective_rank"] = epoch.pop("rankme")
    torch.save(state, tmp_path / "checkpoint.pt")
    train(SMALL, digits, out=tmp_path)
    curve = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(curve) == 3
    assert all("rankme" in epoch and "effective_rank" not in epoch for epoch in curve)
    assert ">rankme</text>" in (tmp_path / "training.html").read_text()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_writes_a_checkpoint(
    digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step, count = loop.Training._train_step, 0

    def interrupted(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            signal.raise_signal(signal.SIGINT)  # handled before the next line, unlike one sent to the process
            assert says(capsys.readouterr().err, "stopping", "stops")
        return step(*given)

    monkeypatch.setattr(loop.Training, "_train_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(SMALL, digits, out=tmp_path / "broken", progress=True)
    state = torch.load(tmp_path / "broken" / "checkpoint.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 3)
    monkeypatch.setattr(loop.Training, "_train_step", step)
    train(SMALL, digits, out=tmp_path / "broken")
    train(SMALL, digits, out=tmp_path / "whole")
    assert weights(tmp_path / "whole") == weights(tmp_path / "broken")


def test_a_spent_budget_leaves_a_checkpoint_and_no_encoder(
    digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, now = loop.Training._train_step, 0.0

    def slow(*given: Any) -> Any:
        nonlocal now
        now += 10
        return step(*given)

    monkeypatch.setattr(loop, "monotonic", lambda: now)
    monkeypatch.setattr(training, "budget_start", lambda: now)
    monkeypatch.setattr(loop.Training, "_train_step", slow)
    monkeypatch.setattr(loop, "SECONDS", 1e9)
    with refused(BudgetSpentError, "0 of 2", "2 of 4", "25%", "encoder"):
        train(SMALL, digits, out=tmp_path / "broken", budget=25.0)  # a third step would end after 30 seconds
    state = torch.load(tmp_path / "broken" / "checkpoint.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 2)
    with refused(HoldfastError, "(0 of 2 epochs)", "finished", "began"):
        hf.load_encoder(f"trained:{tmp_path / 'broken'}")
    with pytest.raises(BudgetSpentError, match=r"after 0 of 2 epochs and 3 of 4 steps"):
        train(SMALL, digits, out=tmp_path / "broken", budget=5.0)  # one step is always taken
    train(SMALL, digits, out=tmp_path / "broken", budget=50.0)
    train(SMALL, digits, out=tmp_path / "whole")
    assert weights(tmp_path / "whole") == weights(tmp_path / "broken")


def test_a_spent_budget_ends_the_command_with_its_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, budget: float, **__: Any) -> None:
        raise BudgetSpentError(f"{budget:g} s were spent")

    monkeypatch.setattr(training, "train", stopped)
    assert run(["train", "mine.toml", "--out", "made", "--budget", "60"]) == 1
    assert capsys.readouterr().err == "holdfast: 60 s were spent\n"


@pytest.mark.parametrize(("budget", "said"), [(0.0, "budget must be a positive number"), (9.0, "name a folder for it")])
def test_budgets_that_make_no_sense_are_refused(digits: Images, budget: float, said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        train(SMALL, digits, budget=budget)


@pytest.mark.slow
def test_a_second_start_reads_no_file_to_know_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for k in range(16):
        pixels = np.random.default_rng(k).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{k}.png")
        os.utime(photos / f"{k}.png", (0, 0))  # what changed just now is not remembered
    read = list[Any]()
    complain, hashed = decode.complain, scan.Scan._hashed

    # What training shows is read again each time; what tells that no file has changed is not.
    def complaining(content: Any, thorough: bool) -> None:
        read.append(content)
        complain(content, thorough)

    def hashing(self: scan.Scan, row: int) -> bytes:
        read.append(row)
        return hashed(self, row)

    monkeypatch.setattr(scan, "complain", complaining)
    monkeypatch.setattr(scan.Scan, "_hashed", hashing)
    for _ in range(2):
        train({**SMALL, "batch": 16, "epochs": 1}, photos, size=8, channels=1, out=tmp_path / "made")
        assert len(read) == 16


def test_a_folder_of_another_training_is_refused(digits: Images, tmp_path: Path) -> None:
    train({**SMALL, "epochs": 1}, digits, out=tmp_path)
    with pytest.raises(HoldfastError, match="epochs was 1 and is 2"):
        train(SMALL, digits, out=tmp_path)
    with pytest.raises(HoldfastError, match="images was"):
        train({**SMALL, "epochs": 1}, digits[range(100)], out=tmp_path)


def test_a_damaged_checkpoint_is_refused(digits: Images, tmp_path: Path) -> None:
    train({**SMALL, "epochs": 1}, digits, out=tmp_path)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(HoldfastError, match="damaged"):
        train({**SMALL, "epochs": 1}, digits, out=tmp_path)
    with pytest.raises(HoldfastError, match="nothing to resume"):
        train(SMALL, digits, out=tmp_path / "empty", resume=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch": 500}, "fewer than a batch of 500"),
        ({"objective": "simcrl"}, "Did you mean 'simclr'"),
        ({"epoch": 2}, "Did you mean 'epochs'"),
        ({"optimiser": "sgd:rate=1e9"}, "finite|collapsed"),
        ({"architecture": "cnn-z"}, "architecture.*'cnn-z'"),
        ({"mean": [0.5]}, "both mean and std"),
        ({"precision": "int8"}, "precision.*'int8'"),
        ({"ema": 1.0}, "between 0 and 1"),
        ({"optimiser": "sgd:rate=-1"}, "must be positive"),
        ({"schedule": "steps:every=0"}, "at least 1 epoch"),
        ({"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}, "images 1 channels"),
        ({"objective": "vicreg", "optimiser": "sgd:rate=1e30", "batch": 75}, "no longer finite"),
    ],
)
def test_bad_recipes_are_refused(digits: Images, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        train({**SMALL, **change}, digits)


def test_labels_are_needed_where_they_are(digits: Images) -> None:
    unlabelled = Images(digits.pixels(range(100)))
    with pytest.raises(HoldfastError, match="learns from labels"):
        train({**SMALL, "objective": "supervised"}, unlabelled)
    with pytest.raises(HoldfastError, match="has no labels"):
        train(SMALL, digits, bank=unlabelled)


def test_collapse_stops_with_a_sentence(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Learner, batch: Any) -> torch.Tensor:
        return (
            100 * torch.stack([weight.square().sum() for weight in self.parameters()]).sum()
        )  # all weights go to zero

    simclr = type(Recipe.of(SMALL).objective.learner(torch.nn.Identity(), _setting()))
    monkeypatch.setattr(simclr, "forward", forward)
    with pytest.raises(HoldfastError, match="collapsed in epoch") as found:
        train({**SMALL, "optimiser": "sgd:rate=0.004", "epochs": 9}, digits, out=tmp_path)
    assert "checkpoint" in str(found.value)


def _setting() -> Any:
    from holdfast.core.encoder import Domain
    from holdfast.training.learner import Setting

    return Setting(Domain((1, 8, 8)), 4, 8, 2, 8)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(digits: Images, tmp_path: Path) -> None:
    train({**SMALL, "epochs": 1}, digits, out=tmp_path / "good")
    with pytest.raises(HoldfastError, match="step"):
        train({**SMALL, "optimiser": "sgd:rate=1e20"}, digits, out=tmp_path / "bad")
    assert (tmp_path / "bad" / "checkpoint.pt").exists()
    assert not (tmp_path / "bad" / "encoder.safetensors").exists()


@pytest.mark.slow
def test_training_goes_on_from_an_encoder(digits: Images, tmp_path: Path) -> None:
    start = hf.load_encoder("builtin:digits-robust")
    encoder = train({**SMALL, "epochs": 1}, digits, start=start, out=tmp_path / "tuned")
    assert encoder.fingerprint != start.fingerprint
    again = hf.load_encoder(f"trained:{tmp_path / 'tuned'}")
    assert torch.equal(again(digits.pixels([0])), encoder(digits.pixels([0])))


@pytest.mark.parametrize("name", recipes())
def test_recipes_are_read_and_written(name: str) -> None:
    recipe, _ = read_recipe(read_settings(name), {}, {})
    assert Recipe.of(recipe.plain()) == recipe


TOML = """
objective = "moco-v2:queue=64"
architecture = "digits"
augmentation = "noise:0.1"
adversary = "loss"
batch = 32
epochs = 6
images = "builtin:digits-train"
size = 8
channels = 1
limit = 320
"""


@pytest.mark.slow
def test_a_killed_training_ends_like_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SECONDS", 0.0)
    (tmp_path / "recipe.toml").write_text(TOML.replace("epochs = 6", "epochs = 3"))

    def begin(out: str) -> multiprocessing.process.BaseProcess:
        # Forked, so that it need not load torch and Fabric again, which takes longer than the training.
        arguments = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / out)]
        process = multiprocessing.get_context("fork").Process(target=ending_with_status, args=(arguments,))
        process.start()
        return process

    whole = begin("whole")
    whole.join()
    assert whole.exitcode == 0
    kills = 0
    while True:
        checkpoint = tmp_path / "killed" / "checkpoint.pt"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = begin("killed")
        while process.is_alive() and kills < 3:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                time.sleep(0.05 * kills)
                process.kill()
                kills += 1
                break
            time.sleep(0.005)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            break
    assert (kills, process.exitcode) == (3, 0)
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed")


def ending_with_status(arguments: list[str]) -> None:
    sys.exit(run(arguments))


def train_as_rank(rank: int, port: int, folder: Path, names: Sequence[str]) -> None:
    """Train from each recipe as one of two processes, told so as torchrun tells it."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in told.items()} | {"MASTER_ADDR": "127.0.0.1"}
    os.chdir(folder)
    for name in names:
        assert run(["train", f"{name}.toml", "--set", "precision=float64", "--out", name]) == 0
    assert torch.distributed.get_world_size() == 2


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Forked: torchrun would load torch and Fabric in three processes, which takes many times as long as the trainings."""
    objectives = ("simclr", "supervised:uniformity=0.01", "moco-v2:queue=64", "supcon")
    recipes = {name.partition(":")[0]: TOML.replace("moco-v2:queue=64", name) for name in objectives}
    for name, recipe in recipes.items():
        (tmp_path / f"{name}.toml").write_text(recipe.replace("epochs = 6", "epochs = 1"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=train_as_rank, args=(rank, port, tmp_path, [*recipes])) for rank in range(2)]
    try:
        for process in both:
            process.start()
        for process in both:
            process.join(300)  # one may wait for the other, which has failed
        assert [process.exitcode for process in both] == [0, 0]
    finally:
        for process in both:
            process.kill()
    for name in recipes:
        alone = train(tmp_path / f"{name}.toml", settings={"precision": "float64"})
        together = hf.load_encoder(f"trained:{tmp_path / name}")
        torch.testing.assert_close(together.module.state_dict(), alone.module.state_dict(), rtol=1e-5, atol=1e-6)


def test_a_recipe_may_start_from_a_reference(digits: Images, tmp_path: Path) -> None:
    train({**SMALL, "architecture": "encoder:builtin:digits-random", "epochs": 1}, digits, out=tmp_path)
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["architecture"] == card["recipe"]["architecture"] == "encoder:builtin:digits-random"
    assert card["pooling"] == hf.load_encoder("builtin:digits-random").pooling


def test_all_images_are_checked(digits: Images) -> None:
    pixels = digits.pixels(range(40)).clone()
    pixels[7, 0, 0, 0] = 200
    with refused(HoldfastError, "finite"):
        train({**SMALL, "augmentation": "none"}, pixels)


@pytest.mark.slow
def test_inputs_of_another_size_are_another_training(digits: Images, tmp_path: Path) -> None:
    recipe = {**SMALL, "architecture": "small-resnet:width=4", "augmentation": "none", "epochs": 1}
    train(recipe, "builtin:digits-train", size=8, channels=1, limit=64, out=tmp_path)
    with pytest.raises(HoldfastError, match="inputs was"):
        train(recipe, "builtin:digits-train", size=16, channels=1, limit=64, out=tmp_path)


def test_weights_of_an_epoch_are_kept_before_its_checkpoint(
    digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saved = loop.Training._save, 0

    def dying(self: loop.Training) -> None:
        nonlocal saved
        saved += 1
        if saved == 2:
            raise MemoryError
        save(self)

    monkeypatch.setattr(loop.Training, "_save", dying)
    with pytest.raises(MemoryError):
        train(SMALL, digits, out=tmp_path, keep_epochs=1)
    monkeypatch.setattr(loop.Training, "_save", save)
    train(SMALL, digits, out=tmp_path, keep_epochs=1)
    assert sorted(path.name for path in (tmp_path / "epochs").iterdir()) == [f"000{k}.safetensors" for k in range(3)]


def test_two_trainings_do_not_share_a_folder(digits: Images, tmp_path: Path) -> None:
    from holdfast.commands.train import alone

    with alone(tmp_path), refused(HoldfastError, "another", "training"):
        train(SMALL, digits, out=tmp_path)
    train({**SMALL, "epochs": 1}, digits, out=tmp_path)


def test_a_double_training_gives_an_encoder_of_floats(digits: Images, tmp_path: Path) -> None:
    encoder = train({**SMALL, "precision": "float64", "epochs": 1}, digits, out=tmp_path)
    assert encoder(digits.pixels([0])).dtype == torch.float32
    assert encoder.fingerprint == hf.load_encoder(f"trained:{tmp_path}").fingerprint


def test_copies_leave_the_bank_though_the_images_are_changed(digits: Images) -> None:
    with refused(HoldfastError, "compare"):
        train(SMALL, digits, bank=digits[range(50)], transform="brightness:0.1")


@pytest.mark.parametrize("architecture", ["digits", "small-vit:patch=2,width=16,depth=1,heads=2"])
def test_masks_follow_the_images_that_are_attacked(architecture: str) -> None:
    """An adversary that attacks a part of the batch at a time once met the masks of all of it."""
    recipe = {"objective": "mae:patch=2", "architecture": architecture, "batch": 20, "epochs": 1}
    pixels = torch.rand(40, 1, 8, 8)
    guided = train({**recipe, "adversary": "spade-guided:scores=random,share=0.5"}, pixels)
    assert guided.fingerprint != train(recipe, pixels).fingerprint


@pytest.mark.slow
def test_the_encoder_may_be_an_average_over_the_steps(
    digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The average is what is saved, kept and watched; running statistics are those of the encoder in training."""
    decay, step = 0.8, loop.Training._train_step
    states: list[dict[str, torch.Tensor]] = []

    def watched(self: loop.Training, *given: Any) -> Any:
        loss = step(self, *given)
        states.append({name: value.clone() for name, value in self.learner.encoder.state_dict().items()})
        return loss

    monkeypatch.setattr(loop.Training, "_train_step", watched)
    recipe = {**SMALL, "architecture": "small-resnet:width=4", "augmentation": "none", "ema": decay, "epochs": 1}
    measured: list[dict[str, torch.Tensor]] = []

    def watch(module: torch.nn.Module) -> dict[str, float]:
        measured.append({name: value.clone() for name, value in module.state_dict().items()})
        return {}

    made = train(recipe, digits, out=tmp_path, keep_epochs=1, watch=watch).module.state_dict()
    parameters = {name for name in made if "running" not in name and "num_batches" not in name}
    assert parameters != made.keys(), "vacuous: no running statistics"
    expected = states[0]
    for state in states[1:]:
        expected = {
            name: decay * expected[name] + (1 - decay) * state[name] if name in parameters else state[name]
            for name in state
        }
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(measured[-1], expected)
    assert not any(torch.equal(made[name], states[-1][name]) for name in parameters), "vacuous: no average"
    assert json.loads((tmp_path / "card.json").read_text())["recipe"]["ema"] == decay


def test_attacks_on_half_precision_are_computed_in_single(digits: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing scales their gradients, of which those of well fitted images would vanish in half precision."""
    seen: dict[str, set[bool]] = {}

    def climbed(self: OnLoss, learner: Learner, batch: Any) -> Any:
        seen.setdefault(precision, set()).add(torch.is_autocast_enabled("cpu"))
        return learner.loss_under_attack(batch)

    monkeypatch.setattr(OnLoss, "climbed", climbed)
    for precision in ("float16", "bfloat16"):
        train({**SMALL, "adversary": "loss:steps=1", "precision": precision, "epochs": 1}, digits)
    assert seen == {"float16": {False}, "bfloat16": {True}}


@pytest.mark.slow
def test_ctrl_c_stops_all_processes_at_one_step(tmp_path: Path) -> None:
    """Torchrun passes the signal on to processes that the terminal has sent it to already: nothing is lost."""
    (tmp_path / "recipe.toml").write_text(TOML.replace("epochs = 6", "epochs = 500"))
    out, several = tmp_path / "out", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *several, "-m", "holdfast", "train", str(tmp_path / "recipe.toml"), "--out", str(out)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < 3:
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.05)
        before = (out / "checkpoint.pt").stat().st_mtime_ns
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        process.wait(timeout=60)
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    assert (out / "checkpoint.pt").stat().st_mtime_ns > before
    assert state["step"] > 0, "a checkpoint of the end of an epoch, not of where it was stopped"


@pytest.mark.slow
def test_a_spent_budget_stops_all_processes_with_its_reason(tmp_path: Path) -> None:
    """One process ends training for all, and the checkpoint is whole before torchrun may stop the others."""
    (tmp_path / "recipe.toml").write_text(TOML.replace("epochs = 6", "epochs = 100000"))
    out, several = tmp_path / "out", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train_it = ["-m", "holdfast", "train", str(tmp_path / "recipe.toml"), "--out", str(out), "--budget", "2"]
    done = subprocess.run([sys.executable, *several, *train_it], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert says(done.stderr, "budget", "spent")
    assert says(done.stderr, "same command")
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    assert state["epoch"] + state["step"] > 0
    assert not (out / "card.json").exists(), "vacuous: it had time enough"


CROPS = {"objective": "dino:crops=2,prototypes=20", "crop_augmentation": "random-resized-crop:scale_max=0.4"}


def test_small_crops_may_be_small(digits: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: set[tuple[int, ...]] = set()

    def recorded(*arguments: Any) -> Any:
        made = views_of(*arguments)
        sizes.add(tuple(view.shape[-1] for view in made))
        assert all(0 <= view.min() <= view.max() <= 1 for view in made)
        return made

    monkeypatch.setattr(loop, "views_of", recorded)
    train({**SMALL, **CROPS, "architecture": "small-resnet:width=4", "crop_size": 4, "epochs": 1}, digits)
    assert sizes == {(8, 8, 4, 4)}
    with refused(HoldfastError, "4 x 4", "8 x 8"):
        train({**SMALL, **CROPS, "crop_size": 4}, digits)


def test_a_ball_of_everything_is_refused_before_a_checkpoint(digits: Images, tmp_path: Path) -> None:
    with refused(HoldfastError, "linf:8", "holds", "input"):
        train({**SMALL, "adversary": "loss:ball=linf:8,steps=2"}, digits, out=tmp_path / "out")
    train({**SMALL, "adversary": "loss:ball=linf:0.1,steps=1", "epochs": 1}, digits, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("batch", "plan"),
    [
        (25, "training: 2 epochs of 6 steps of 25 images, 12 steps in all"),
        (100, "2 epochs of 1 steps of 100 images (50 of 150 images are left over in each), 2 steps in all; a smaller"),
    ],
)
def test_the_number_of_steps_is_said_before_the_first(
    digits: Images, batch: int, plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Training, "run", lambda _: pytest.fail("trained first", pytrace=False))
    with pytest.raises(pytest.fail.Exception):
        train({**SMALL, "batch": batch}, digits, progress=True)
    assert plan in capsys.readouterr().err


def test_the_first_and_the_last_step_have_a_rate(digits: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, step = list[float](), torch.optim.SGD.step

    def watched(self: torch.optim.SGD, *given: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *given)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    train({**SMALL, "epochs": 1, "optimiser": "sgd:rate=0.01", "schedule": "cosine:warmup=0.5"}, digits)
    assert rates == pytest.approx([0.0025, 0.0075, 0.01 * (1 + 0.5**0.5) / 2, 0.01 * (1 - 0.5**0.5) / 2])


LOST = [{"agreement": 1.0, "relative_distance": 0.0}, {"agreement": 0.9, "relative_distance": 0.3}]
LOST += [{"agreement": 0.4, "relative_distance": 0.8}, {"agreement": 0.8, "relative_distance": 0.5}]
LOST += [{"agreement": 0.8, "relative_distance": 1.1}, {"agreement": 0.3, "relative_distance": 0.8}]


@pytest.mark.slow
def test_codes_that_are_lost_end_a_training_with_the_encoder_before(digits: Images, tmp_path: Path) -> None:
    """One bad epoch between good ones is none; of two the first is the last in which codes were still there."""
    start, weights = hf.load_encoder("builtin:digits-robust"), list[torch.Tensor]()

    def watch(module: torch.nn.Module) -> dict[str, float]:
        weights.append(next(module.parameters()).detach().clone())
        return LOST[len(weights) - 1]

    recipe = {**SMALL, "objective": "distillation", "adversary": "loss:steps=1", "epochs": 9}
    with pytest.raises(AgreementLostError, match=r"epoch 5.* 0\.300 .* 0\.80 .*epoch 3"):
        train(recipe, digits, start=start, watch=watch, out=tmp_path / "out")
    assert len(weights) == 6
    kept = hf.load_encoder(f"trained:{tmp_path / 'out'}")
    assert torch.equal(next(kept.module.parameters()), weights[3])
    assert not torch.equal(weights[3], weights[5]), "vacuous: nothing was learned"
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert (card["epochs"], len(card["curve"])) == (3, 4)
    with pytest.raises(AgreementLostError, match="epoch 5"):  # the same command says the same, and trains no more
        train(recipe, digits, start=start, watch=lambda _: pytest.fail("measured again"), out=tmp_path / "out")


def test_codes_that_are_lost_from_the_beginning_end_a_training_after_its_first_epoch(digits: Images) -> None:
    """There is no epoch before the first whose codes could tell whether it was the second in a row."""
    start = hf.load_encoder("builtin:digits-robust")
    with pytest.raises(AgreementLostError, match=r"epoch 1: .* nan ") as error:
        train({**SMALL, "epochs": 3}, digits, start=start, watch=lambda _: {**LOST[0], "relative_distance": nan})
    assert error.value.epoch == 0


def test_codes_that_are_lost_at_once_leave_no_encoder(digits: Images, tmp_path: Path) -> None:
    start, lost = hf.load_encoder("builtin:digits-robust"), {"agreement": 0.1, "relative_distance": 0.5}
    curve = iter([LOST[0], lost])
    with pytest.raises(AgreementLostError, match=r"epoch 1: .* 0\.100 .* 0\.50 "):
        train({**SMALL, "epochs": 1}, digits, start=start, watch=lambda _: next(curve), out=tmp_path / "out")
    assert not (tmp_path / "out" / "card.json").exists()


def test_a_gpu_that_is_not_there_is_said_before_torch_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    images = Images(torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    recipe = {"objective": "simclr", "architecture": "cnn-a", "batch": 4, "epochs": 1}
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 4))
    encoder, said = (
        hf.Encoder(module, "small", hf.Domain((1, 28, 28))),
        "device 'cuda' was asked for but torch sees no GPU",
    )
    with pytest.raises(HoldfastError, match=said):
        train(recipe, images, device="cuda", progress=False)
    with pytest.raises(HoldfastError, match=said):
        hf.harden(encoder, images, device="cuda", progress=False)


def test_training_on_a_subset(digits: Images, tmp_path: Path) -> None:
    """A recipe's subset gives way to one that is asked for, and the card says what was trained on."""
    recipe = {**SMALL, "batch": 16, "epochs": 1, "subset": "long-tail:9,2"}
    for name, asked, count in [("tail", None, (16, 50)), ("flat", "uniform:20", (20, 20))]:
        train(recipe, digits, out=tmp_path / name, progress=False, subset=asked)
        images = json.loads((tmp_path / name / "card.json").read_text())["images"]
        assert count[0] <= images["count"] <= count[1]
        assert images["name"].endswith(f"({asked or recipe['subset']})")


def test_fluctuation_and_all_epochs(digits: Images, tmp_path: Path) -> None:
    """The fluctuation is that of the accuracies of the classes, from the first trained epoch on."""
    out = tmp_path / "made"
    train(
        {**SMALL, "epochs": 4}, digits[range(100)], bank=digits[range(100, 150)], out=out, keep_epochs=2, progress=False
    )
    curve = json.loads((out / "card.json").read_text())["curve"]
    names = [name for name in curve[0] if name.startswith("knn_accuracy_")]
    assert len(names) > 5
    assert [("semantic_fluctuation" in epoch) for epoch in curve] == [False, False, True, True, True]
    for before, after in pairwise(curve[1:]):
        changes = [abs(after[name] - before[name]) for name in names]
        assert after["semantic_fluctuation"] == pytest.approx(sum(changes) / len(names))
    assert len({epoch["knn_accuracy"] for epoch in curve}) > 1, "a training that changes nothing"
    mean = sum(epoch["semantic_fluctuation"] for epoch in curve[2:]) / 3
    assert f"{mean:.4f}" in (out / "training.html").read_text()
    run = hf.evaluate(f"trained:{out}?epoch=all", digits[:40], only="geometry", suite="quick", progress=False)
    assert [result.encoder.name for result in run.results] == ["made-0", "made-2", "made-4"]
    uniformity = [result.estimate("uniformity").value for result in run.results]
    assert len({*uniformity}) == 3
