"""MoCo v2 equals lightly's InfoNCE with a memory bank; its queue and momentum equal a slow, obvious version."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.training.objectives.contrastive import MoCoV2, MoCoV2Learner
from tests.training import tiny

OBJECTIVE = MoCoV2(temperature=0.3, momentum=0.7, queue=3 * tiny.IMAGES, projection=5)


def made() -> MoCoV2Learner:
    learner = tiny.learner(OBJECTIVE).double()
    assert isinstance(learner, MoCoV2Learner)
    return learner


@pytest.mark.slow  # importing lightly takes seconds
def test_it_is_lightlys_info_nce_with_a_memory_bank() -> None:
    declare_missing_operators()
    from lightly.loss import NTXentLoss

    learner, data = made(), tiny.batch(OBJECTIVE, dtype=torch.float64)
    tiny.step(learner, tiny.optimiser(learner), tiny.batch(OBJECTIVE, seed=1, dtype=torch.float64), 0.5)
    theirs = NTXentLoss(temperature=0.3, memory_bank_size=(OBJECTIVE.queue, 5))
    theirs.memory_bank.bank = learner.queue.clone()
    with torch.no_grad():
        keys = learner.key_network(data.views[1])
    expected = theirs(learner.head(learner.encoder(data.views[0])), keys)
    tiny.assert_same(learner, learner(data), expected)


def test_with_an_adversary_there_are_twice_the_queries_for_the_same_keys() -> None:
    learner, data = made(), tiny.batch(OBJECTIVE, dtype=torch.float64, attacked=True)
    assert data.attacked is not None
    with torch.no_grad():
        keys = normalize(learner.key_network(data.views[1]), dim=1)
    clean, moved = (learner.head(learner.encoder(view)) for view in (data.views[0], data.attacked))
    queries = normalize(torch.cat([clean, moved]), dim=1)
    logits = torch.cat([(queries * torch.cat([keys, keys])).sum(dim=1, keepdim=True), queries @ learner.queue.T], dim=1)
    expected = cross_entropy(logits / 0.3, torch.zeros(2 * tiny.IMAGES, dtype=torch.long))
    tiny.assert_same(learner, learner(data), expected)
    learner.after_step(0.5)
    assert int(learner.oldest) == tiny.IMAGES, "attacked views have no keys in the queue"
    assert torch.equal(learner.queue[: tiny.IMAGES], keys)


def test_queue_and_key_network_over_several_steps() -> None:
    learner = made()
    optimiser = tiny.optimiser(learner)
    queue, slow = [*learner.queue.clone()], {k: v.clone() for k, v in learner.key_network.state_dict().items()}
    for number in range(5):
        data = tiny.batch(OBJECTIVE, seed=number, dtype=torch.float64)
        with torch.no_grad():
            queue = [*queue[tiny.IMAGES :], *normalize(learner.key_network(data.views[1]), dim=1)]
        tiny.step(learner, optimiser, data, number / 5)
        for name, weight in learner.network.named_parameters():
            slow[name] = 0.7 * slow[name] + 0.3 * weight.detach()
            torch.testing.assert_close(learner.key_network.get_parameter(name).detach(), slow[name], rtol=1e-12, atol=0)
        # Oldest first: the ring is read from where the next keys go.
        assert torch.equal(learner.queue.roll(-int(learner.oldest), dims=0), torch.stack(queue))
    assert int(learner.oldest) == 5 * tiny.IMAGES % OBJECTIVE.queue, "vacuous: the queue never wrapped around"


def test_the_key_network_starts_as_the_query_network_and_is_not_trained() -> None:
    learner = made()
    pairs = zip(learner.key_network.parameters(), learner.network.parameters(), strict=True)
    assert all(torch.equal(key, query) and key is not query and not key.requires_grad for key, query in pairs)


@pytest.mark.parametrize(("queue", "fitting"), [(12, 16), (4, 8), (20, 16)])
def test_a_queue_of_broken_batches_is_refused(queue: int, fitting: int) -> None:
    with pytest.raises(HoldfastError, match=f"{queue} is no multiple of 8; set queue={fitting}"):
        tiny.learner(MoCoV2(queue=queue))


def test_a_queue_longer_than_the_images_is_warned_of() -> None:
    with pytest.warns(HoldfastWarning, match="there are only 32"):
        tiny.learner(MoCoV2(queue=40))


def test_memory_is_that_of_the_queue() -> None:
    learner, other = tiny.learner(MoCoV2(queue=16)), tiny.learner(MoCoV2(queue=32))
    sizes = [sum(value.numel() for value in one.state_dict().values()) for one in (learner, other)]
    assert sizes[1] - sizes[0] == 16 * MoCoV2().projection
