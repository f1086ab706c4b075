"""What an image's noisy copies are told from, and what is kept of their distances, by hand."""

from __future__ import annotations

import torch

from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.smoothing.copies import View, kept_ranks
from holdfast.smoothing.index import Index, Smoothing
from tests.samples import linear

ENTRIES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


def index() -> Index:
    """Its own entry at the origin, and two others."""
    return Index(ENTRIES, torch.zeros(2), ENTRIES.square().sum(1) / 2)


def test_a_copy_of_an_image_is_nobodys_neighbour() -> None:
    """Two images have the same pixels: whatever noise does, neither takes the other's copies away."""
    points = torch.tensor([[0.1, 0.1], [0.1, 0.1], [0.9, 0.9], [0.9, 0.1]])
    images = Images(points[:, None, None], [f"point {k}" for k in range(4)])
    population = Population(linear(torch.eye(2), (1, 1, 2)), images, RunSettings())
    for row in (0, 1):
        table = Index.of(population, row, lambda codes: codes, Smoothing(0.01, 10, 10, 4, 3))
        here = population.codes[[row]] + torch.tensor([[0.0, 0.0], [0.02, 0.01]])
        places = table.neighbours(here)
        nearest = table.entries[places] + table.origin
        assert (places > 0).all()
        torch.testing.assert_close(nearest, points[[3, 3]], rtol=0, atol=0.05)
        assert table.nearer(here).all(), "a copy is nearer than the image itself"


def test_halfway_between_two_entries_is_nearer_to_neither() -> None:
    halfway = torch.tensor([[0.5, 0.0], [0.4, 0.0], [0.6, 0.0]])
    assert index().nearer(halfway).tolist() == [[False, True], [True, True], [False, True]]


def test_of_the_distances_those_at_the_kept_ranks_are_kept() -> None:
    """Of copies at distances 1 .. 5000, in whatever order, the one of rank k is at distance k."""
    draws = 5000
    view = View(lambda codes: codes, torch.tensor([[3.0, 4.0]]), torch.zeros(2), 1.0, index(), 1)
    order = torch.randperm(draws, generator=torch.Generator().manual_seed(0))
    third = {
        "distances": (order + 1).double(),
        "nearer": torch.ones(draws, 2, dtype=torch.int32),
        "kept": order < 7,
        "retrieved": order < 9,
    }
    summary = view.summary({"held": torch.tensor([True, True, False, True])}, third, draws)
    assert summary["distances"].tolist() == kept_ranks(draws).tolist()
    assert (int(summary["kept"]), int(summary["retrieved"]), float(summary["held"])) == (7, 9, 0.75)
    assert summary["nearer"].tolist() == [draws, draws]
    assert float(summary["error"]) == 5.0
