"""BYOL and SimSiam equal what lightly's cosine loss makes of the same networks; MoCo v3 equals loops over its equation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.training.learner import TrainingObjective
from holdfast.training.objectives.contrastive import MoCoV3
from holdfast.training.objectives.siamese import BYOL, SiameseLearner, SimSiam, distance, half_distance
from tests.training import tiny

Loss = Callable[[Tensor, Tensor], Tensor]


def negative_cosine(queries: Tensor, keys: Tensor) -> Tensor:
    cosines = [query @ key / (query.norm() * key.norm()) for query, key in zip(queries, keys, strict=True)]
    return -torch.stack(cosines).mean()


def contrast(queries: Tensor, keys: Tensor) -> Tensor:
    """``ctr`` of MoCo v3's algorithm 1 with temperature 0.2, one term at a time."""
    total = queries.new_zeros(())
    for i, query in enumerate(queries):
        chances = [torch.exp(cosine_similarity(query, key, dim=0) / 0.2) for key in keys]
        total = total - torch.log(chances[i] / torch.stack(chances).sum())
    return 2 * 0.2 * total / len(queries)


WIDTHS = {"hidden": 16, "projection": 7}
CASES: list[tuple[TrainingObjective, Loss]] = [
    (BYOL(**WIDTHS), lambda queries, keys: 2 + 2 * negative_cosine(queries, keys)),
    (SimSiam(projection=16, bottleneck=4), lambda queries, keys: negative_cosine(queries, keys) / 2),
    (MoCoV3(**WIDTHS), contrast),
]
IDS = ["byol", "simsiam", "moco-v3"]


def made(objective: TrainingObjective) -> SiameseLearner:
    learner = tiny.learner(objective).double()
    assert isinstance(learner, SiameseLearner)
    return learner


def query(learner: SiameseLearner, view: Tensor) -> Tensor:
    return learner.predictor(learner.projector(learner.encoder(view)))


def key(learner: SiameseLearner, view: Tensor) -> Tensor:
    network = learner.target or nn.Sequential(learner.encoder, learner.projector)
    return network(view).detach()


@pytest.mark.parametrize("attacked", [False, True])
@pytest.mark.parametrize(("objective", "loss"), CASES, ids=IDS)
def test_the_loss_is_the_sum_over_both_ways(objective: TrainingObjective, loss: Loss, attacked: bool) -> None:
    learner = made(objective)
    # A step parts the target from what it follows.
    tiny.step(learner, tiny.optimiser(learner), tiny.batch(objective, seed=1, dtype=torch.float64), 0.5)
    data = tiny.batch(objective, dtype=torch.float64, attacked=attacked)
    one, two = data.views
    expected = loss(query(learner, one), key(learner, two)) + loss(query(learner, two), key(learner, one))
    if data.attacked is not None:
        expected = expected + loss(query(learner, data.attacked), key(learner, two))
        expected = expected + loss(query(learner, two), key(learner, data.attacked))
    tiny.assert_same(learner, learner(data), expected)


@pytest.mark.parametrize(("objective", "loss"), CASES, ids=IDS)
def test_an_attack_climbs_the_loss_against_the_second_views_keys(objective: TrainingObjective, loss: Loss) -> None:
    learner, data = made(objective).eval(), tiny.batch(objective, dtype=torch.float64)
    network, gain = learner.loss_under_attack(data)
    expected = loss(query(learner, data.views[0]), key(learner, data.views[1]))
    torch.testing.assert_close(gain(network(data.views[0])).mean(), expected)


@pytest.mark.parametrize("objective", [BYOL(momentum=0.9, **WIDTHS), MoCoV3(momentum=0.9, **WIDTHS)], ids=str)
def test_the_target_follows_ever_more_slowly(objective: TrainingObjective) -> None:
    learner = made(objective)
    optimiser, slow = tiny.optimiser(learner), {k: v.clone() for k, v in learner.online.state_dict().items()}
    # (cos(pi t) + 1) / 2 is 1, 3/4, 1/2, 1/4 and 0 at these shares of the training.
    for progress, lag in ((0.0, 1), (1 / 3, 3 / 4), (1 / 2, 1 / 2), (2 / 3, 1 / 4), (1.0, 0)):
        tiny.step(learner, optimiser, tiny.batch(objective, seed=int(9 * progress), dtype=torch.float64), progress)
        momentum = 1 - 0.1 * lag
        assert learner.target is not None
        for name, weight in learner.online.named_parameters():
            slow[name] = momentum * slow[name] + (1 - momentum) * weight.detach()
            torch.testing.assert_close(learner.target.get_parameter(name).detach(), slow[name], rtol=1e-9, atol=1e-12)


def test_simsiam_has_no_copy() -> None:
    assert all(weight.requires_grad for weight in made(SimSiam(projection=16, bottleneck=4)).parameters())


def layers(head: nn.Module) -> list[str]:
    return [str(layer) for layer in head.modules() if not [*layer.children()]]


@pytest.mark.slow  # importing lightly takes seconds
def test_losses_and_heads_are_those_of_lightly() -> None:
    declare_missing_operators()
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import heads

    queries, keys = torch.randn(2, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(half_distance(keys)(queries).mean(), NegativeCosineSimilarity()(queries, keys) / 2)
    torch.testing.assert_close(distance(keys)(queries).mean(), 2 + 2 * NegativeCosineSimilarity()(queries, keys))

    byol, simsiam = made(BYOL(**WIDTHS)), made(SimSiam(projection=16, bottleneck=4))
    assert layers(byol.projector) == layers(heads.BYOLProjectionHead(tiny.WIDTH, 16, 7))
    assert layers(byol.predictor) == layers(heads.BYOLPredictionHead(7, 16, 7))
    assert layers(simsiam.projector) == layers(heads.SimSiamProjectionHead(tiny.WIDTH, 16, 16))
    assert layers(simsiam.predictor) == layers(heads.SimSiamPredictionHead(16, 4, 16))
    # In the authors' program of MoCo v3 the last batch norm has no weights; in lightly's head it has.
    projector = layers(made(MoCoV3(**WIDTHS)).projector)
    assert projector[:-1] == layers(heads.MoCoProjectionHead(tiny.WIDTH, 16, 7, num_layers=3, batch_norm=True))[:-1]
    assert "affine=False" in projector[-1]


@pytest.mark.parametrize("kind", [BYOL, MoCoV3])
def test_a_momentum_beyond_one_is_refused(kind: type[BYOL | MoCoV3]) -> None:
    with pytest.raises(HoldfastError, match=r"momentum must be in \[0, 1\], got 1.5"):
        kind(momentum=1.5)


@pytest.mark.parametrize("kind", [SimSiam, MoCoV3])
def test_projections_of_a_batch_have_mean_zero_and_variance_one(kind: type[SimSiam | MoCoV3]) -> None:
    """The last layer of these projectors is a batch norm without weights (SimSiam, section 3; MoCo v3, section 4.1)."""
    objective = SimSiam(projection=16, bottleneck=4) if kind is SimSiam else MoCoV3(**WIDTHS)
    learner, data = made(objective).train(), tiny.batch(objective, dtype=torch.float64)
    projected = 100 * learner.encoder(data.views[0]) + 7
    projected = learner.projector(projected)
    torch.testing.assert_close(projected.mean(0), torch.zeros_like(projected[0]), rtol=0, atol=1e-6)
    assert (projected.var(0, unbiased=False) > 0.9).all()


@pytest.mark.parametrize(("objective", "loss"), CASES, ids=IDS)
def test_an_attack_climbs_against_the_target_network_where_there_is_one(
    objective: TrainingObjective, loss: Loss
) -> None:
    """After a step the target differs from what it follows; keys are the target's."""
    learner = made(objective)
    tiny.step(learner, tiny.optimiser(learner), tiny.batch(objective, seed=1, dtype=torch.float64), 0.5)
    learner, data = learner.eval(), tiny.batch(objective, dtype=torch.float64)
    network, gain = learner.loss_under_attack(data)
    queries = network(data.views[0])
    torch.testing.assert_close(gain(queries).mean(), loss(queries, key(learner, data.views[1])))
    if learner.target is not None:
        online = loss(queries, learner.online(data.views[1]).detach())
        assert abs(float((gain(queries).mean() - online).detach())) > 1e-6, "vacuous: target and online are the same"
