"""Distillation: the losses of UNTAR and TAR as their listing has them, and a target that stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain
from holdfast.core.errors import Conflict, HoldfastError
from holdfast.training.adversaries.base import OnLoss
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective
from holdfast.training.objectives.teachers import Distillation, DistillationLearner
from tests.training.objectives import batches

Listed = Callable[[nn.Module, nn.Module, Tensor, Tensor | None], Tensor]


def moved_on(objective: Distillation) -> tuple[Learner, nn.Module]:
    """A learner after some training, and the encoder that it began with."""
    original = batches.encoder()
    setting = Setting(batches.DOMAIN, batches.WIDTH, batches.SAMPLES, 0, 8)
    learner = objective.learner(original, setting)
    start = batches.encoder()
    start.load_state_dict(original.state_dict())
    with torch.no_grad():
        for weight in learner.encoder.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return learner, start


def untar(start: nn.Module, tuned: nn.Module, x: Tensor, x_adv: Tensor | None) -> Tensor:
    return mse_loss(tuned(x_adv), start(x).detach())


def tar(start: nn.Module, tuned: nn.Module, x: Tensor, x_adv: Tensor | None) -> Tensor:
    assert x_adv is not None
    return mse_loss(tuned(torch.cat([x, x_adv])), start(x).detach().repeat(2, 1))


@pytest.mark.parametrize(("clean", "listed"), [(0.0, untar), (1.0, tar)])
def test_the_losses_are_those_of_the_listing(clean: float, listed: Listed) -> None:
    learner, start = moved_on(Distillation(clean))
    batch = batches.batch(views=1, attacked=True)
    ours, theirs = learner(batch), listed(start, learner.encoder, batch.views[0], batch.attacked)
    assert ours > 0, "vacuous"
    torch.testing.assert_close(ours, theirs)
    for own, other in zip(batches.gradients(ours, learner), batches.gradients(theirs, learner.encoder), strict=True):
        torch.testing.assert_close(own, other)


def test_without_an_adversary_the_view_itself_is_held() -> None:
    learner, start = moved_on(Distillation(0.5))
    batch = batches.batch(views=1)
    torch.testing.assert_close(learner(batch), untar(start, learner.encoder, batch.views[0], batch.views[0]))


def test_under_attack_each_sample_is_as_far_as_its_code_moved() -> None:
    learner, start = moved_on(Distillation())
    batch = batches.batch(views=1)
    moved = batches.batch(views=1, attacked=True).attacked
    assert moved is not None
    network, loss = learner.loss_under_attack(batch)
    distances = [
        float((start(x[None]) - network(y[None])).detach().norm()) ** 2
        for x, y in zip(batch.views[0], moved, strict=True)
    ]
    assert loss(network(moved)).tolist() == pytest.approx(distances)


def test_the_target_is_the_starting_encoder_in_eval_mode() -> None:
    setting = Setting(batches.DOMAIN, batches.WIDTH, batches.SAMPLES, 0, 8)
    normed = nn.Sequential(batches.encoder(), nn.BatchNorm1d(batches.WIDTH).double(), nn.Dropout(0.5)).eval()
    batch = batches.batch(views=1)
    codes = normed(batch.views[0]).detach()
    learner = Distillation().learner(normed, setting).train()
    optimiser = torch.optim.SGD([weight for weight in learner.parameters() if weight.requires_grad], 1.0)
    learner(batch).backward()
    optimiser.step()
    _, loss = learner.loss_under_attack(batch)
    assert loss(codes).tolist() == [0.0] * 8
    assert not torch.equal(learner.encoder.eval()(batch.views[0]), codes), "vacuous: nothing was trained"


def test_hardening_brings_attacked_codes_back() -> None:
    """FARE on a network that one pixel sways: training lowers what the attack can do."""
    torch.manual_seed(0)
    steep = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).double()
    learner = Distillation().learner(steep, Setting(Domain((1, 4, 4)), 4, batches.SAMPLES, 0, 8))
    optimiser = torch.optim.Adam([weight for weight in learner.parameters() if weight.requires_grad], 3e-3)
    plain = batches.batch(views=1)
    adversary = OnLoss(Linf(0.1))

    def attacked() -> Batch:
        moved = adversary(learner, plain, batches.DOMAIN, {})
        return Batch(plain.rows, plain.pixels, plain.views, None, plain.noise, moved)

    before = float(learner(attacked()).detach())
    for _ in range(30):
        optimiser.zero_grad()
        learner(attacked()).backward()
        optimiser.step()
    assert float(learner(attacked()).detach()) < 0.75 * before


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(HoldfastError, match="clean must be 0 or more"):
        Distillation(-1.0)


def test_the_clean_view_counts_as_many_times_as_asked() -> None:
    """``clean = 3``: three parts of the view as it is, one of the attacked one, over four."""
    learner, start = moved_on(Distillation(3.0))
    batch = batches.batch(views=1, attacked=True)
    view, moved = batch.views[0], batch.attacked
    expected = (untar(start, learner.encoder, view, moved) + 3 * untar(start, learner.encoder, view, view)) / 4
    torch.testing.assert_close(learner(batch), expected)


def test_with_a_temperature_each_image_finds_its_original_among_those_of_the_batch() -> None:
    """InfoNCE by hand, image by image, of the attacked and, twice, of the clean view."""
    learner, start = moved_on(Distillation(2.0, temperature=0.3))
    batch = batches.batch(views=1, attacked=True)
    assert batch.attacked is not None
    keys = nn.functional.normalize(start(batch.views[0]).detach(), dim=1)

    def by_hand(pixels: Tensor) -> list[float]:
        units = nn.functional.normalize(learner.encoder(pixels).detach(), dim=1)
        likenesses = [[float((unit * key).sum()) / 0.3 for key in keys] for unit in units]
        return [log(sum(map(exp, row))) - row[place] for place, row in enumerate(likenesses)]

    moved, still = by_hand(batch.attacked), by_hand(batch.views[0])
    assert float(learner(batch).detach()) == pytest.approx((sum(moved) + 2 * sum(still)) / 3 / len(moved))
    network, loss = learner.loss_under_attack(batch)
    assert loss(network(batch.attacked)).tolist() == pytest.approx(moved)


def test_a_fresh_network_learns_what_its_teacher_knows() -> None:
    setting = Setting(batches.DOMAIN, batches.WIDTH, batches.SAMPLES, 0, 8)
    teacher, batch = batches.encoder(), batches.batch(views=1)
    codes = teacher(batch.views[0]).detach()
    learner = Distillation(temperature=0.2, fresh=True).learner(teacher, setting)
    assert isinstance(learner, DistillationLearner)
    torch.testing.assert_close(learner.target(batch), codes)
    first, own = float(learner(batch).detach()), float(learner.distance(codes, codes))
    assert first > own + 0.3, "vacuous: it knew"
    optimiser = torch.optim.Adam(learner.encoder.parameters(), 1e-2)
    for _ in range(50):
        optimiser.zero_grad()
        learner(batch).backward()
        optimiser.step()
    torch.testing.assert_close(learner.target(batch), codes)
    assert float(learner(batch).detach()) < own


def test_weights_that_no_layer_draws_cannot_be_fresh() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, pixels: Tensor) -> Tensor:
            return pixels.flatten(1) * self.scale

    with pytest.raises(HoldfastError, match="Scaled"):
        Distillation(fresh=True).learner(Scaled(), Setting(batches.DOMAIN, 16, batches.SAMPLES, 0, 8))


def test_a_temperature_compares_images_and_a_distance_does_not() -> None:
    alone = Setting(batches.DOMAIN, batches.WIDTH, batches.SAMPLES, 0, 1)
    with pytest.raises(HoldfastError, match="at least 2"):
        Distillation(temperature=0.2).learner(nn.Linear(1, 1), alone)
    assert isinstance(Distillation().learner(nn.Linear(1, 1), alone), DistillationLearner)


@pytest.mark.parametrize("more", ["fresh=true", "temperature=0.2"])
def test_a_floor_is_of_the_starting_encoder_and_its_cosines(more: str) -> None:
    with pytest.raises(Conflict):
        TrainingObjective.read(f"distillation:agreement=0.9,{more}")
