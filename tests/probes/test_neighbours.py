"""The nearest-neighbour probe: its definition by loops, its exact search, ties, hard inputs."""

from __future__ import annotations

from math import exp, inf

import pytest
import torch
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.data import load
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.probes.neighbours import WIDTH, Knn, largest, unit
from holdfast.transforms.base import Transform, transformed
from tests.probes.known import accuracy, clouds, population


def test_scores_are_those_of_the_definition() -> None:
    asked = population()
    probe = asked.learned(Knn(k=7, temperature=0.2))
    scores = probe.scores(asked.codes)
    bank, labels = asked.bank.codes, asked.bank.labels
    for code, found in zip(asked.codes, scores, strict=True):
        cosines = [float(code @ other / code.norm() / other.norm()) for other in bank]
        nearest = sorted(range(len(bank)), key=lambda row: -cosines[row])[:7]
        votes = {3: 0.0, 4: 0.0, 5: 0.0}
        for row in nearest:
            votes[int(labels[row])] += exp(cosines[row] / 0.2)
        assert found.tolist() == pytest.approx([votes[label] for label in (3, 4, 5)])
    assert 0.5 < accuracy(probe.ranks(asked.codes, asked.labels)) < 1


def test_logits_are_all_votes_and_have_slopes() -> None:
    asked = population()
    probe = asked.learned(Knn(k=len(asked.bank.images)))
    codes = asked.codes.clone().requires_grad_()
    assert torch.allclose(probe.logits(codes), probe.scores(codes).log())
    (slopes,) = torch.autograd.grad(asked.learned(Knn(k=1)).logits(codes)[:, 0].sum(), codes)
    assert (slopes.norm(dim=1) > 0).all()


@pytest.mark.parametrize("n", [10, 6 * WIDTH + 3, 40 * WIDTH, 40 * WIDTH + 17])
def test_the_largest_are_found(n: int) -> None:
    products = torch.randn(5, n, generator=torch.Generator().manual_seed(n))
    products[0] = torch.arange(n)
    products[1] = 1.0
    values, places = largest(products, 9)
    assert torch.equal(values.sort(1).values, products.topk(9).values.sort(1).values)
    assert torch.equal(products.gather(1, places), values)
    assert all(len(set(row)) == 9 for row in places.tolist())


def test_the_scale_of_codes_changes_nothing() -> None:
    codes = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(unit(codes * 1e-30), unit(codes))
    assert torch.equal(unit(torch.zeros(1, 3)), torch.zeros(1, 3))


def test_k_beyond_the_bank_is_capped_and_said() -> None:
    asked = population(clouds(12, 1))
    assert "asks 200 neighbours, and the bank has 12 images" in asked.learned(Knn()).caution
    assert asked.learned(Knn(k=12)).caution == ""
    assert torch.equal(asked.learned(Knn()).scores(asked.codes), asked.learned(Knn(k=12)).scores(asked.codes))


def test_a_tie_decides_nothing_and_an_unknown_label_is_wrong() -> None:
    half = torch.tensor([[0.2, 0.8], [0.8, 0.2]])
    bank = Images(torch.cat([half, half], 1).reshape(2, 1, 2, 2), labels=torch.tensor([0, 1]))
    images = Images(torch.cat([torch.full((2, 1, 2, 2), 0.5), bank.pixels([0])]), labels=torch.tensor([0, 7, 0]))
    asked = population(bank, images, RunSettings())
    probe = asked.learned(Knn(k=2))
    assert probe.ranks(asked.codes, asked.labels).tolist() == [1, inf, 0]


@pytest.mark.parametrize("shuffle", ["global-shuffle:grid=4", "local-shuffle:grid=2"])
def test_on_raw_pixels_no_shuffle_changes_an_answer(shuffle: str) -> None:
    encoder = Encoder(nn.Flatten(), "pixels", Domain((1, 8, 8)))
    images, bank = (
        load("builtin:digits", encoder.domain, limit=60),
        load("builtin:digits-train", encoder.domain, limit=200),
    )
    ranks = []
    for change in (None, Transform.read(shuffle)):
        pair = [one if change is None else transformed(one, change) for one in (images, bank)]
        asked = Population(encoder, pair[0], RunSettings(), bank=Population(encoder, pair[1], RunSettings()))
        ranks.append(asked.learned(Knn(k=20)).ranks(asked.codes, asked.labels))
    assert torch.equal(*ranks)
    assert 0.5 < accuracy(ranks[0]) < 1


def test_what_cannot_be_learned_is_refused_in_a_sentence() -> None:
    with pytest.raises(HoldfastError, match="all 20 images of the bank clouds 1 show one class"):
        population(clouds(20, 1, classes=1)).learned(Knn())
    plain = clouds(20, 1)
    with pytest.raises(HoldfastError, match="this needs labels, and images has none"):
        population(Images(plain.pixels(range(20)))).learned(Knn())
    with pytest.raises(HoldfastError, match=r"(k must be positive|temperature must be at least 0\.02)"):
        Probe.read("knn:k=0")
    opposite = Images(
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(1, 2).reshape(2, 1, 2, 2), labels=torch.tensor([3, 4])
    )
    coldest = population(opposite, run=RunSettings()).learned(Knn(temperature=0.02))
    assert coldest.logits(-opposite.pixels([0, 1]).flatten(1)).isfinite().all()
    with pytest.raises(HoldfastError, match="Did you mean 'knn'"):
        Probe.read("knm")
