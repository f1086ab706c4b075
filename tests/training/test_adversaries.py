"""Laws over all adversaries and training objectives, and what each adversary climbs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from holdfast.core.balls import L2, Linf
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.settings import fields_of
from holdfast.training.adversaries.base import Adversary, GaussianNoise, OnLoss, Targeted, Untargeted, adversaries
from holdfast.training.adversaries.edits import Edits
from holdfast.training.feed import Feed
from holdfast.training.health import eval_codes
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, training_objectives
from holdfast.training.objectives.contrastive import SimCLR
from holdfast.training.objectives.teachers import Supervised

DOMAIN = Domain((1, 6, 6))
COUNT, WIDTH = 6, 5


@cache
def training_set() -> Feed:
    """All training images, of which batches hold the first six."""
    pixels = Noise.of(0, [str(row) for row in range(40)]).uniform(DOMAIN.shape)
    return Feed(Images(pixels), DOMAIN, COUNT, 0, torch.device("cpu"))


def encoder() -> nn.Module:
    """A network with all that an attack must leave alone: batch statistics, dropout, weights."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, WIDTH)
    )


def small(kind: type[TrainingObjective]) -> TrainingObjective:
    """An objective with its defaults, but a queue that holds whole batches of six."""
    return kind(**{name: 2 * COUNT for name in ("queue",) if name in fields_of(kind)})


def learner_of(objective: TrainingObjective) -> Learner:
    torch.manual_seed(0)
    setting = Setting(DOMAIN, width=WIDTH, samples=COUNT, classes=3, batch=COUNT)
    learner = objective.learner(encoder(), setting)
    for part in learner.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean, part.running_var = torch.randn(4) / 4, torch.rand(4) + 0.5  # not those of a new one
    return learner


def batch_of(objective: TrainingObjective, rows: list[int] | None = None) -> Batch:
    """Some images of a set of six, always the same ones by their rows."""
    rows = list(range(COUNT)) if rows is None else rows
    pixels = Noise.of(0, [str(row) for row in rows])
    views = [pixels.fork("view", view).uniform(DOMAIN.shape) for view in range(objective.views)]
    crops = [pixels.fork("crop", crop).uniform((1, 4, 4)) for crop in range(objective.crops)]
    return Batch(
        torch.tensor(rows), pixels.uniform(DOMAIN.shape), (*views, *crops), torch.tensor(rows) % 3, pixels.fork("epoch")
    )


def attackable(adversary: Adversary, objective: TrainingObjective) -> tuple[Learner, Batch, Pixels]:
    """A learner, a batch and what the adversary makes of it; skips pairs that say in a sentence that they do not go."""
    try:
        learner, batch = learner_of(objective), batch_of(objective)
        learner.before_epoch(0, lambda: eval_codes(learner.encoder, training_set().pixels(range(COUNT))))
        learner.train()
        before, modes = state(learner), [part.training for part in learner.modules()]
        prepared = adversary.prepare(
            0, training_set(), lambda: eval_codes(learner.encoder, training_set().pixels(range(40))), {}
        )
        moved = adversary(learner, batch, DOMAIN, prepared)
    except HoldfastError as error:
        pytest.skip(str(error))
    assert same(before, state(learner)), "an attack changed the learner"
    assert modes == [part.training for part in learner.modules()]
    return learner, batch, moved


def state(learner: Learner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in learner.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gains(adversary: Adversary, learner: Learner, batch: Batch, pixels: Pixels) -> Tensor:
    learner.eval()
    with torch.no_grad():
        network, gain = adversary.climbed(learner, batch)
        return gain(network(pixels))


@pytest.mark.filterwarnings("ignore:moco-v2")
@pytest.mark.parametrize("objective", sorted(training_objectives()))
@pytest.mark.parametrize("adversary", sorted(adversaries()))
def test_an_attack_climbs_inside_its_ball_and_leaves_the_learner_alone(adversary: str, objective: str) -> None:
    attack = adversaries()[adversary]()
    if not isinstance(attack, Edits):  # which has no ball
        attack = replace(attack, ball=Linf(0.1), steps=4, step=None)
    learner, batch, view = attackable(attack, small(training_objectives()[objective]))
    assert not view.requires_grad
    moved = view - attack.drawn(batch) if isinstance(attack, GaussianNoise) else view  # what the noise is added to
    assert -1e-6 <= moved.min() <= moved.max() <= 1 + 1e-6
    assert isinstance(attack, Edits) or ((moved - batch.views[0]).abs() <= 0.1 + 1e-6).all()
    assert all(weight.grad is None for weight in learner.parameters())
    before, after = (gains(attack, learner, batch, pixels) for pixels in (batch.views[0], moved))
    assert after.mean() > before.mean()
    learner.train()
    batch.attacked = view
    learner(batch).backward()
    assert any(weight.grad is not None for weight in learner.encoder.parameters())


@pytest.mark.parametrize("adversary", [Untargeted(), OnLoss(steps=2, step=0.005)], ids=str)
def test_attacks_do_not_depend_on_the_order_of_the_batch(adversary: Adversary) -> None:
    objective = Supervised()
    learner, order = learner_of(objective), [3, 1, 0, 5, 4, 2]
    straight = adversary(learner, batch_of(objective), DOMAIN, {})
    mixed = adversary(learner, batch_of(objective, order), DOMAIN, {})
    assert torch.allclose(straight[order], mixed, atol=1e-6)
    other = replace_noise(batch_of(objective))
    assert not torch.allclose(straight, adversary(learner, other, DOMAIN, {}), atol=1e-6), "vacuous fixture"


def replace_noise(batch: Batch) -> Batch:
    return Batch(batch.rows, batch.pixels, batch.views, batch.labels, batch.noise.fork("another epoch"))


def test_the_untargeted_adversary_moves_codes_away_from_their_own() -> None:
    objective = SimCLR()
    learner, batch = learner_of(objective), batch_of(objective)
    moved = Untargeted(step=0.02)(learner, batch, DOMAIN, {})
    noisy = DOMAIN.clip(batch.views[0] + 0.05 * batch.noise.signs(DOMAIN.shape))
    learner.eval()
    clean, attacked, random = (learner.encoder(pixels) for pixels in (batch.views[0], moved, noisy))
    assert ((attacked - clean).norm(dim=1) > 1.5 * (random - clean).norm(dim=1)).all()


def test_the_targeted_adversary_moves_codes_to_the_second_view_of_the_image_before() -> None:
    objective = SimCLR()
    learner, batch = learner_of(objective), batch_of(objective)
    moved = Targeted(ball=Linf(0.3), steps=10, step=None)(learner, batch, DOMAIN, {})
    learner.eval()
    before, after, other = (learner.encoder(pixels) for pixels in (batch.views[0], moved, batch.views[1]))
    came_closer = torch.cdist(after, other) < 0.9 * torch.cdist(before, other)
    assert came_closer[torch.arange(COUNT), torch.arange(COUNT) - 1].all()


def test_with_one_view_the_targeted_adversary_aims_at_the_image_before() -> None:
    objective = Supervised()
    learner, batch = learner_of(objective), batch_of(objective)
    moved = Targeted(ball=L2(3.0), steps=10, step=None)(learner, batch, DOMAIN, {})
    learner.eval()
    before, after = learner.encoder(batch.views[0]), learner.encoder(moved)
    targets = before.roll(1, dims=0)
    assert ((after - targets).norm(dim=1) < 0.9 * (before - targets).norm(dim=1)).all()


@pytest.mark.parametrize(
    "adversary",
    [
        Untargeted(),
        Untargeted(step=None),
        Targeted(L2(0.5), 2, 0.25),
        OnLoss(Linf(4 / 255), 10),
        GaussianNoise(L2(0.5), 2, sigma=0.12),
    ],
    ids=str,
)
def test_settings_survive_their_text(adversary: Adversary) -> None:
    assert Adversary.read(str(adversary)) == adversary


def test_noise_alone_is_normal_of_its_deviation_and_new_in_each_epoch() -> None:
    learner, batch, adversary = learner_of(Supervised()), batch_of(Supervised()), GaussianNoise(sigma=0.5)
    noise = adversary(learner, batch, DOMAIN, {}) - batch.views[0]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.15)
    assert abs(float(noise.mean())) < 0.15
    again = adversary(learner, replace_noise(batch), DOMAIN, {}) - batch.views[0]
    assert not torch.allclose(noise, again)


@pytest.mark.parametrize("text", ["loss:steps=0", "untargeted:step=0", "noise:sigma=0"])
def test_an_attack_of_no_length_is_refused(text: str) -> None:
    with pytest.raises(HoldfastError, match="must be positive"):
        Adversary.read(text)


def test_a_training_that_diverged_is_told() -> None:
    learner, batch = learner_of(SimCLR()), batch_of(SimCLR())
    with torch.no_grad():
        next(learner.parameters()).fill_(torch.inf)
    with pytest.raises(HoldfastError, match="lower the learning rate"):
        Untargeted()(learner, batch, DOMAIN, {})


AMONG_SEVERAL: list[Adversary] = [Targeted(), OnLoss(steps=2, step=0.005)]


def attack_a_half(rank: int, folder: str) -> None:
    """Attack this process's half of a batch, as one of two."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/met", rank=rank, world_size=2)
    objective, own = SimCLR(), slice(3 * rank, 3 * rank + 3)
    learner, whole = learner_of(objective), batch_of(objective)
    views = tuple(view[own] for view in whole.views)
    batch = Batch(whole.rows[own], whole.pixels[own], views, None, whole.noise[own])
    torch.save([adversary(learner, batch, DOMAIN, {}) for adversary in AMONG_SEVERAL], f"{folder}/{rank}")


@pytest.mark.slow
def test_two_processes_attack_like_one(tmp_path: Path) -> None:
    start_processes(attack_a_half, (str(tmp_path),), nprocs=2, start_method="fork")
    learner, batch = learner_of(SimCLR()), batch_of(SimCLR())
    halves = [torch.load(tmp_path / str(rank)) for rank in (0, 1)]
    for adversary, one, other in zip(AMONG_SEVERAL, *halves, strict=True):
        assert torch.allclose(torch.cat([one, other]), adversary(learner, batch, DOMAIN, {}), atol=1e-6)
