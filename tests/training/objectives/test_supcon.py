"""SupCon equals that of pytorch-metric-learning; with attacked views, the equation's own loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from holdfast.training.objectives.contrastive import SupCon, SupConLearner
from tests.training import tiny

OBJECTIVE = SupCon(temperature=0.2, projection=7)


def slow(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Equation 2 of the paper, one term at a time."""
    count, total = len(labels), projections.new_zeros(())
    for i in range(count):
        others = [a for a in range(count) if a != i]
        chances = {a: torch.exp(cosine_similarity(projections[i], projections[a], dim=0) / temperature) for a in others}
        everything = torch.stack([*chances.values()]).sum()
        terms = [-torch.log(chances[a] / everything) for a in others if labels[a] == labels[i]]
        total = total + torch.stack(terms).mean()
    return total / count


def made() -> SupConLearner:
    learner = tiny.learner(OBJECTIVE).double()
    assert isinstance(learner, SupConLearner)
    return learner


@pytest.mark.slow  # importing the other library takes seconds
def test_it_is_that_of_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.losses import SupConLoss

    learner, data = made(), tiny.batch(OBJECTIVE, dtype=torch.float64)
    assert data.labels is not None
    expected = SupConLoss(temperature=0.2)(learner.head(learner.encoder(torch.cat(data.views))), data.labels.repeat(2))
    tiny.assert_same(learner, learner(data), expected)


def test_attacked_views_are_a_third_view() -> None:
    learner, data = made(), tiny.batch(OBJECTIVE, dtype=torch.float64, attacked=True)
    assert data.labels is not None
    assert data.attacked is not None
    projections = learner.head(learner.encoder(torch.cat([*data.views, data.attacked])))
    tiny.assert_same(learner, learner(data), slow(projections, data.labels.repeat(3), 0.2))


def test_an_attack_climbs_the_loss_against_the_second_views() -> None:
    learner, data = made().eval(), tiny.batch(OBJECTIVE, dtype=torch.float64)
    labels = data.labels
    assert labels is not None
    network, loss = learner.loss_under_attack(data)
    queries, targets = network(data.views[0]), network(data.views[1])
    for i, found in enumerate(loss(queries)):
        chances = torch.exp(cosine_similarity(queries[i], targets, dim=1) / 0.2)
        expected = -torch.log(chances / chances.sum())[labels == labels[i]].mean()
        torch.testing.assert_close(found, expected)
