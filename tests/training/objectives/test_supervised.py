"""The supervised loss equals its equation; its second term is the uniformity that is measured."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from holdfast.core.errors import HoldfastError
from holdfast.training.objectives.teachers import Supervised, SupervisedLearner
from tests.training import tiny


@pytest.mark.parametrize("attacked", [False, True])
def test_the_loss_is_its_equation(attacked: bool) -> None:
    objective = Supervised(uniformity=0.3)
    learner, data = tiny.learner(objective).double(), tiny.batch(objective, dtype=torch.float64, attacked=attacked)
    assert isinstance(learner, SupervisedLearner)
    assert data.labels is not None
    codes = learner.encoder(data.views[0] if data.attacked is None else data.attacked)
    chances = torch.softmax(learner.head(codes), dim=1)
    right = torch.stack([chance[label] for chance, label in zip(chances, data.labels, strict=True)])
    units = normalize(codes, dim=1)
    potentials = [torch.exp(-2 * (units[i] - units[j]).square().sum()) for j in range(tiny.IMAGES) for i in range(j)]
    expected = -right.log().mean() + 0.3 * torch.stack(potentials).mean().log()
    tiny.assert_same(learner, learner(data), expected)


def test_uniformity_of_one_image_is_refused() -> None:
    with pytest.raises(HoldfastError, match="at least 2 on each process"):
        tiny.learner(Supervised(uniformity=0.01), batch=1)
