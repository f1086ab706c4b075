"""DeepCluster v2 against slow, obvious versions of its clustering and its loss; what it remembers."""

from __future__ import annotations

import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import normalize

from holdfast.training.objectives.clustering import DeepClusterLearner, DeepClusterV2, spherical_kmeans
from tests.training.objectives import batches

SETTINGS = DeepClusterV2(prototypes=4, heads=3, hidden=8, projection=5, crops=1)


def made() -> DeepClusterLearner:
    """A learner that is ready for its first epoch."""
    learner = batches.learner(SETTINGS)
    assert isinstance(learner, DeepClusterLearner)
    learner.before_epoch(0, lambda: torch.randn(batches.SAMPLES, batches.WIDTH, dtype=torch.float64))
    return learner


def around(directions: Tensor, each: int) -> Tensor:
    noise = 0.2 * torch.randn(len(directions), each, directions.shape[1], dtype=torch.float64)
    return normalize((directions[:, None] + noise).flatten(0, 1), dim=1)


@pytest.mark.parametrize("block", [7, 8192])
def test_kmeans_is_the_obvious_one(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.training.objectives.clustering.BLOCK", block)
    units = normalize(torch.randn(30, 3, dtype=torch.float64), dim=1)
    slow = [list(map(float, unit)) for unit in units[:6]]
    for _ in range(3):
        members: list[list[Tensor]] = [[] for _ in slow]
        for unit in units:
            cosines = [sum(float(a) * b for a, b in zip(unit, centroid, strict=True)) for centroid in slow]
            members[cosines.index(max(cosines))].append(unit)
        slow = [
            (torch.stack(own).sum(0) / torch.stack(own).sum(0).norm()).tolist() if own else old
            for own, old in zip(members, slow, strict=True)
        ]
    centroids, clusters = spherical_kmeans(units, units[:6], 3)
    torch.testing.assert_close(centroids, torch.tensor(slow, dtype=torch.float64))
    assert clusters.tolist() == [int((unit @ centroids.T).argmax()) for unit in units]


def test_clusters_far_apart_are_those_of_scikit_learn() -> None:
    units = around(torch.eye(4, dtype=torch.float64), 10)
    _, clusters = spherical_kmeans(units, units[::10], 10)
    theirs = KMeans(4, init=units[::10].numpy(), n_init=1).fit_predict(units.numpy())
    assert clusters.tolist() == theirs.tolist()


def test_a_centroid_without_vectors_stays() -> None:
    units = around(torch.eye(2, dtype=torch.float64), 5)
    start = torch.stack([units[0], units[5], -units[0]])
    centroids, clusters = spherical_kmeans(units, start, 10)
    assert torch.equal(centroids[2], start[2])
    assert set(clusters.tolist()) == {0, 1}


def test_the_loss_is_the_obvious_one() -> None:
    learner, batch = made(), batches.batch(views=3)
    projected = normalize(learner.head(learner.encoder(torch.cat(batch.views))), dim=1)
    terms = []
    for place, z in enumerate(projected):
        row = batch.rows[place % 8]
        for centroids, clusters in zip(learner.centroids, learner.clusters, strict=True):
            terms.append(-(centroids @ z / 0.1).softmax(0)[clusters[row]].log())
    batches.same_with_gradients(learner(batch), torch.stack(terms).mean(), *learner.encoder.parameters())


def test_projections_are_remembered_from_both_views_and_clustered_in_the_next_epoch() -> None:
    learner, batch = made(), batches.batch(views=3, first=2)
    before = learner.memory.clone()
    projected = normalize(learner.head(learner.encoder(torch.cat(batch.views))), dim=1).detach().chunk(3)
    learner(batch)
    learner.after_step(0.0)
    torch.testing.assert_close(learner.memory[:, 2:10], torch.stack(projected[:2]))
    assert torch.equal(learner.memory[:, :2], before[:, :2])
    learner.before_epoch(1, batches.no_codes)
    for head, (centroids, clusters) in enumerate(zip(learner.centroids, learner.clusters, strict=True)):
        assert clusters.tolist() == (learner.memory[head % 2] @ centroids.T).argmax(1).tolist()


def test_clusterings_of_heads_and_epochs_begin_differently() -> None:
    learner = made()
    first = learner.centroids.clone()
    learner.before_epoch(1, batches.no_codes)
    assert not torch.equal(first[0], first[2]), "heads 0 and 2 cluster the same projections"
    assert not torch.equal(first, learner.centroids)


def test_fewer_images_than_clusters_have_one_each() -> None:
    learner = batches.learner(DeepClusterV2(prototypes=300, hidden=8, projection=5))
    assert isinstance(learner, DeepClusterLearner)
    assert learner.centroids.shape == (3, batches.SAMPLES, 5)


def test_an_attacked_view_is_one_more() -> None:
    learner, batch = made().eval(), batches.batch(attacked=True)
    assert batch.attacked is not None
    attacked = learner(batch)
    network, loss = learner.loss_under_attack(batch)
    views = (*batch.views, batch.attacked)
    torch.testing.assert_close(attacked, torch.stack([loss(network(view)).mean() for view in views]).mean())
