"""VICReg against lightly, and what an attack on it climbs."""

from __future__ import annotations

import torch

from holdfast.training.objectives.decorrelation import VICReg, VICRegLearner
from tests.training.objectives import batches


def made() -> VICRegLearner:
    learner = batches.learner(VICReg(10.0, 20.0, 3.0, hidden=8, projection=7))
    assert isinstance(learner, VICRegLearner)
    return learner


def test_the_loss_is_that_of_lightly() -> None:
    one, two = batches.projections()
    theirs = batches.lightly().VICRegLoss(lambda_param=10.0, mu_param=20.0, nu_param=3.0)(one, two)
    batches.same_with_gradients(made().between(one, two), theirs, one, two)


def test_an_adversary_adds_the_attacked_view() -> None:
    learner, batch = made(), batches.batch(attacked=True)
    assert batch.attacked is not None
    one, two, moved = (learner.head(learner.encoder(view)) for view in (*batch.views, batch.attacked))
    torch.testing.assert_close(learner(batch), (learner.between(one, two) + learner.between(moved, two)) / 2)


def test_under_attack_the_samples_share_the_invariance() -> None:
    learner, batch = made().eval(), batches.batch()
    network, loss = learner.loss_under_attack(batch)
    one, two = (network(view) for view in batch.views)
    torch.testing.assert_close(loss(one).mean(), torch.nn.functional.mse_loss(one, two))
