"""Barlow Twins against lightly, and what an attack on it climbs."""

from __future__ import annotations

import torch

from holdfast.training.objectives.decorrelation import BarlowTwins, BarlowTwinsLearner, barlow
from tests.training.objectives import batches


def test_the_loss_is_that_of_lightly() -> None:
    one, two = batches.projections()
    theirs = batches.lightly().BarlowTwinsLoss(lambda_param=0.01)(one, two)
    batches.same_with_gradients(barlow(one, two, 0.01), theirs, one, two)


def test_features_that_agree_and_are_uncorrelated_have_no_loss() -> None:
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    assert float(barlow(corners, corners, 1.0)) < 1e-9
    assert float(barlow(corners, -corners, 1.0)) > 7.9


def test_an_adversary_adds_the_attacked_view() -> None:
    learner, batch = batches.learner(BarlowTwins(hidden=8, projection=7)), batches.batch(attacked=True)
    assert isinstance(learner, BarlowTwinsLearner)
    assert batch.attacked is not None
    one, two, moved = (learner.head(learner.encoder(view)) for view in (*batch.views, batch.attacked))
    torch.testing.assert_close(learner(batch), (barlow(one, two, 0.0051) + barlow(moved, two, 0.0051)) / 2)


def test_under_attack_the_samples_share_what_the_diagonal_misses() -> None:
    learner, batch = batches.learner(BarlowTwins(hidden=8, projection=7)), batches.batch()
    network, loss = learner.loss_under_attack(batch)
    one, two = (network(view) for view in batch.views)
    # In training mode the projections vary enough for the 1e-5 beside their variance not to matter.
    diagonal = torch.diagonal(torch.corrcoef(torch.cat([one, two], dim=1).T), 7)
    torch.testing.assert_close(loss(one).mean(), (1 - diagonal).sum(), rtol=1e-3, atol=0.0)
