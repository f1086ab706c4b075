"""DINO against lightly: loss, centre and teacher; what is frozen; where a collapse sits."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain
from holdfast.training.learner import Setting
from holdfast.training.objectives.dino import DINO, DINOLearner
from tests.samples import builtin, digits
from tests.training.objectives import batches

SETTINGS = DINO(prototypes=9, hidden=8, projection=5, crops=1)


def made(settings: DINO = SETTINGS) -> DINOLearner:
    """A learner whose teacher and centre are no longer at their start."""
    learner = batches.learner(settings)
    assert isinstance(learner, DINOLearner)
    with torch.no_grad():
        for weight in learner.teacher.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        learner.center.copy_(torch.randn(settings.prototypes))
    return learner


def test_loss_and_centre_are_those_of_lightly() -> None:
    learner, batch = made(), batches.batch(views=3)
    learner.before_epoch(10, batches.no_codes)
    theirs = batches.lightly().DINOLoss(output_dim=9).double()
    theirs.center.copy_(learner.center)
    teacher = [learner.teacher(view) for view in batch.views[:2]]
    student = [learner.head(learner.encoder(view)) for view in batch.views]
    expected = theirs(teacher, student, teacher_temp=0.05)
    batches.same_with_gradients(learner(batch), expected, *learner.encoder.parameters())
    learner.after_step(0.0)
    torch.testing.assert_close(learner.center, theirs.center.flatten())


def test_an_attacked_view_is_one_more_of_the_students() -> None:
    learner, batch = made(), batches.batch(views=2, attacked=True)
    assert batch.attacked is not None
    alone = learner(batch)
    batch.views, batch.attacked = (*batch.views, batch.attacked), None
    torch.testing.assert_close(alone, learner(batch))


def test_under_attack_the_second_view_is_the_target() -> None:
    learner, batch = made().eval(), batches.batch(views=3)
    network, loss = learner.loss_under_attack(batch)
    target = ((learner.teacher(batch.views[1]) - learner.center) / 0.04).softmax(1)
    predicted = (network(batch.views[0]) / 0.1).softmax(1)
    torch.testing.assert_close(loss(network(batch.views[0])), -(target * predicted.log()).sum(1))


def stepped(learner: DINOLearner, epoch: int) -> tuple[Tensor, Tensor]:
    """The student's prototypes before and after a step."""
    optimiser = torch.optim.AdamW([weight for weight in learner.parameters() if weight.requires_grad], 0.1)
    prototypes = dict(learner.head.named_parameters())["5.weight"]
    before = prototypes.detach().clone()
    learner.before_epoch(epoch, batches.no_codes)
    learner(batches.batch(views=3)).backward()
    learner.before_step(0.0)
    optimiser.step()
    learner.after_step(0.0)
    return before, prototypes.detach()


def test_the_prototypes_of_the_student_are_frozen_in_the_first_epoch() -> None:
    first, second = stepped(made(), 0), stepped(made(), 1)
    assert torch.equal(*first)
    assert not torch.equal(*second)


def test_the_teacher_follows_with_its_momentum() -> None:
    learner = made()
    before = [weight.clone() for weight in learner.teacher.parameters()]
    stepped(learner, 1)
    student = nn.Sequential(learner.encoder, learner.head).parameters()
    for old, new, weight in zip(before, learner.teacher.parameters(), student, strict=True):
        torch.testing.assert_close(new, 0.996 * old + 0.004 * weight.detach())


def test_a_collapse_sits_at_the_logarithm_of_the_prototypes() -> None:
    learner = made()
    with torch.no_grad():
        learner.center.zero_()
        for weight in learner.head[-2].parameters():
            weight.zero_()
        learner.teacher.load_state_dict(nn.Sequential(learner.encoder, learner.head).state_dict())
    torch.testing.assert_close(learner(batches.batch(views=3)), torch.tensor(log(9), dtype=torch.float64))


def entropy_of_first_targets(norm: bool) -> float:
    """The mean entropy of what a new teacher says of digits, once it is centred."""
    torch.manual_seed(0)
    encoder = builtin("digits-random").module
    learner = DINO(prototypes=100, norm=norm).learner(encoder, Setting(Domain((1, 8, 8)), 32, 64, 0, 64)).train()
    assert isinstance(learner, DINOLearner)
    with torch.no_grad():
        scores = learner.teacher(digits(64).pixels(range(64)))
        learner.center.copy_(scores.mean(0))
        targets = learner.targets(scores)
    return float(-(targets * targets.log()).sum(1).mean())


def test_batch_norm_in_the_projection_gives_convolutions_something_to_learn() -> None:
    """Without it, a teacher of codes that have most in common says the same of all images, and training goes nowhere."""
    assert entropy_of_first_targets(norm=False) > 0.99 * log(100)
    assert entropy_of_first_targets(norm=True) < 0.85 * log(100)
