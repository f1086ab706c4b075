"""NT-Xent equals lightly's, and RoCL's three views equal a loop over terms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.training.objectives.contrastive import SimCLR, SimCLRLearner, nt_xent
from tests.training import tiny

OBJECTIVE = SimCLR(temperature=0.3)


def slow(views: list[Tensor], temperature: float) -> Tensor:
    """NT-Xent as equation 1 of the paper says it, one term at a time, for any number of views of each image."""
    count, all_views = len(views[0]), torch.cat(views)
    total = all_views.new_zeros(())
    for i, anchor in enumerate(all_views):
        chances = [torch.exp(cosine_similarity(anchor, view, dim=0) / temperature) for view in all_views]
        others = torch.stack([chance for k, chance in enumerate(chances) if k != i]).sum()
        for p, chance in enumerate(chances):
            if p != i and p % count == i % count:
                total = total - torch.log(chance / others)
    return total / len(all_views)


def projections(made: SimCLRLearner, *views: Tensor) -> tuple[Tensor, ...]:
    return made.head(made.encoder(torch.cat(views))).chunk(len(views))


def made() -> SimCLRLearner:
    learner = tiny.learner(OBJECTIVE).double()
    assert isinstance(learner, SimCLRLearner)
    return learner


@pytest.mark.slow  # importing lightly takes seconds
def test_it_is_lightlys_nt_xent() -> None:
    declare_missing_operators()
    from lightly.loss import NTXentLoss

    learner, data = made(), tiny.batch(OBJECTIVE, dtype=torch.float64)
    tiny.assert_same(learner, learner(data), NTXentLoss(0.3)(*projections(learner, *data.views)))


def test_with_an_adversary_it_is_rocl() -> None:
    learner, data = made(), tiny.batch(OBJECTIVE, dtype=torch.float64, attacked=True)
    assert data.attacked is not None
    one, two, moved = projections(learner, *data.views, data.attacked)
    expected = slow([one, two, moved], 0.3) + slow([moved, two], 0.3) / 256
    tiny.assert_same(learner, learner(data), expected)


def test_without_one_it_is_simclr() -> None:
    learner, data = made(), tiny.batch(OBJECTIVE, dtype=torch.float64)
    tiny.assert_same(learner, learner(data), slow(list(projections(learner, *data.views)), 0.3))


def test_by_hand() -> None:
    one, two = torch.eye(2), 5 * torch.eye(2)
    # Cosines with the three others: 1 with the other view, 0 and 0 with the views of the other image.
    assert float(nt_xent((one, two), 1.0)) == pytest.approx(float(torch.log(torch.tensor(2 + torch.e)) - 1))
    # Of three views each anchor has two others, and the two positives are added.
    three = 2 * (torch.log(torch.tensor(3 + 2 * torch.e)) - 1)
    assert float(nt_xent((one, two, one), 1.0)) == pytest.approx(float(three))


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(HoldfastError, match="temperature must be positive"):
        SimCLR(temperature=0.0)


def test_a_batch_of_one_is_refused() -> None:
    with pytest.raises(HoldfastError, match="at least 2 on each process, got a batch of 1"):
        tiny.learner(OBJECTIVE, batch=1)


def test_the_head_of_v2_has_three_layers_with_batch_norm() -> None:
    learner = tiny.learner(SimCLR(v2=True)).double()
    assert isinstance(learner, SimCLRLearner)
    shapes = [tuple(part.weight.shape) for part in learner.head.modules() if isinstance(part, nn.Linear)]
    assert shapes == [(tiny.WIDTH, tiny.WIDTH), (tiny.WIDTH, tiny.WIDTH), (128, tiny.WIDTH)]
    data = tiny.batch(SimCLR(v2=True), dtype=torch.float64)
    z = learner.encoder(torch.cat(data.views))
    norms = [part for part in learner.head.modules() if isinstance(part, nn.BatchNorm1d)]
    linear = [part for part in learner.head.modules() if isinstance(part, nn.Linear)]
    for layer, norm in zip(linear, norms, strict=True):
        z = z @ layer.weight.T
        z = (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()
        z = z if layer is linear[-1] else (z * norm.weight + norm.bias).relu()
    tiny.assert_same(learner, learner(data), slow(list(z.chunk(2)), 0.5))


def test_v2_is_a_head() -> None:
    with pytest.raises(HoldfastError, match="v2"):
        SimCLR(v2=True, head=False)
