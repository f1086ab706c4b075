"""SwAV against lightly: loss, balance and queue; what is frozen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.training.objectives.clustering import SwAV, SwAVLearner, sinkhorn
from tests.training.objectives import batches

SETTINGS = SwAV(prototypes=5, hidden=8, projection=4, crops=1)


def made(settings: SwAV = SETTINGS) -> SwAVLearner:
    learner = batches.learner(settings)
    assert isinstance(learner, SwAVLearner)
    return learner


def scores_of(learner: SwAVLearner, pixels: tuple[Tensor, ...]) -> list[Tensor]:
    """The scores of each view; batch norm sees all views at once."""
    return list(learner.prototypes(learner.head(learner.encoder(torch.cat(pixels)))).chunk(len(pixels)))


def test_the_loss_is_that_of_lightly() -> None:
    learner, batch = made(), batches.batch(views=3)
    one, two, crop = scores_of(learner, batch.views)
    expected = batches.lightly().SwaVLoss()([one, two], [crop])[0]
    batches.same_with_gradients(learner(batch), expected, *learner.encoder.parameters(), learner.prototypes.weight)


def test_a_full_queue_is_assigned_beside_the_batch() -> None:
    learner, batch = made(SwAV(prototypes=5, hidden=8, projection=4, queue=6, queue_epoch=2)), batches.batch()
    theirs = batches.lightly().SwaVLoss()
    for epoch, filled in ((0, 0), (2, 6)):
        before = learner.queue.clone()
        learner.before_epoch(epoch, batches.no_codes)
        torch.testing.assert_close(learner(batch), theirs(scores_of(learner, batch.views), [])[0])
        learner.after_step(0.0)
        assert int(learner.queued) == filled
        assert torch.equal(before, learner.queue) == (filled == 0)
    queued = [learner.prototypes(part) for part in learner.queue]
    expected = theirs(scores_of(learner, batch.views), [], queued)[0]
    torch.testing.assert_close(learner(batch), expected)
    assert abs(float((expected - theirs(scores_of(learner, batch.views), [])[0]).detach())) > 1e-6, "vacuous"


def test_the_queue_holds_the_newest_images_first() -> None:
    learner = made(SwAV(prototypes=5, hidden=8, projection=4, queue=6, queue_epoch=0)).eval()
    for first in (0, 4):
        learner(batches.batch(4, first=first))
        learner.after_step(0.0)
    whole = torch.nn.functional.normalize(learner.head(learner.encoder(batches.batch(8).views[1])), dim=1)
    torch.testing.assert_close(learner.queue[1], whole[[4, 5, 6, 7, 0, 1]].detach())


def test_a_checkpoint_holds_the_queue() -> None:
    learner, again = made(SwAV(queue=6)), made(SwAV(queue=6))
    learner.before_epoch(3, batches.no_codes)
    learner.queued = 5
    learner.queue.fill_(0.5)
    again.load_state_dict(learner.state_dict())
    assert (again.epoch, again.queued) == (3, 5)
    assert torch.equal(again.queue, learner.queue)


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_assignments_are_balanced(spread: float) -> None:
    scores = spread * torch.randn(40, 5, dtype=torch.float64) + torch.arange(5)
    Q = sinkhorn(scores, epsilon=0.5, iterations=200)
    torch.testing.assert_close(Q.sum(dim=1), torch.ones(40, dtype=torch.float64))
    torch.testing.assert_close(Q.sum(dim=0), torch.full((5,), 8.0, dtype=torch.float64), rtol=1e-6, atol=0.0)


def test_an_attacked_view_predicts_as_a_crop_does() -> None:
    learner, batch = made(), batches.batch(attacked=True)
    assert batch.attacked is not None
    attacked = learner(batch)
    batch.views, batch.attacked = (*batch.views, batch.attacked), None
    torch.testing.assert_close(attacked, learner(batch))


def test_under_attack_the_second_views_assignment_is_the_target() -> None:
    learner, batch = made().eval(), batches.batch()
    network, loss = learner.loss_under_attack(batch)
    one, two = (network(view) for view in batch.views)
    torch.testing.assert_close(loss(one), -(sinkhorn(two, 0.05, 3) * (one / 0.1).log_softmax(1)).sum(1))


def stepped(learner: SwAVLearner, epoch: int) -> tuple[Tensor, Tensor]:
    """The prototypes before and after a step."""
    optimiser = torch.optim.AdamW([weight for weight in learner.parameters() if weight.requires_grad], 0.1)
    before = learner.prototypes.weight.detach().clone()
    learner.before_epoch(epoch, batches.no_codes)
    learner(batches.batch(views=3)).backward()
    learner.before_step(0.0)
    optimiser.step()
    return before, learner.prototypes.weight.detach()


def test_the_prototypes_are_frozen_in_the_first_epoch() -> None:
    first, second = stepped(made(), 0), stepped(made(), 1)
    assert torch.equal(*first)
    assert not torch.equal(*second)


def test_a_queue_that_is_not_full_is_not_assigned() -> None:
    """Of twelve places eight are taken; the others hold zeros, which are no images."""
    learner, batch = made(SwAV(prototypes=5, hidden=8, projection=4, queue=12, queue_epoch=0)), batches.batch()
    learner(batch)
    learner.after_step(0.0)
    assert int(learner.queued) == 8
    one, two = scores_of(learner, batch.views)
    logs = ((scores / 0.1).log_softmax(1) for scores in (one, two))
    first, second = (sinkhorn(scores.detach(), 0.05, 3) for scores in (one, two))
    log_one, log_two = logs
    expected = (-(first * log_two).sum(1).mean() - (second * log_one).sum(1).mean()) / 2
    torch.testing.assert_close(learner(batch), expected)
