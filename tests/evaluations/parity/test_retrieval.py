"""Answers that are kept, against the slow definition."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from holdfast.evaluations.parity.retrieval import Gallery, _ranks, answers


def codes(n: int, seed: int) -> Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("is_bank", [False, True])
def test_answers_are_those_of_the_definition(is_bank: bool) -> None:
    a = codes(30, 0)
    b = a + 0.5 * codes(30, 1)
    gallery = Gallery(codes(40, 2), codes(40, 2) + 0.5 * codes(40, 3), True) if is_bank else Gallery(a, b, False)
    kept = answers(a, b, gallery, 4)
    for x in range(30):
        others = [y for y in range(len(gallery.reference)) if is_bank or y != x]
        old = {y: float((a[x] - gallery.reference[y]).norm()) for y in others}
        new = {y: float((b[x] - gallery.candidate[y]).norm()) for y in others}
        mixed = {y: float((b[x] - gallery.reference[y]).norm()) for y in others}
        near = [set(sorted(others, key=each.__getitem__)[:4]) for each in (old, new, mixed)]
        assert float(kept.neighbours[x]) == len(near[0] & near[1]) / 4
        assert kept.mixed is not None
        assert float(kept.mixed[x]) == len(near[0] & near[2]) / 4
        assert bool(kept.nearest[x]) == (min(old, key=old.__getitem__) == min(new, key=new.__getitem__))
        expected = spearmanr([old[y] for y in others], [new[y] for y in others]).statistic
        assert float(kept.ranks[x]) == pytest.approx(expected)


def test_places_are_those_of_a_stable_sort() -> None:
    distances = codes(40, 0).abs()
    distances[:, 3] = distances[:, 1]
    distances[:, 4] = 0
    counted = codes(40, 1) > -1
    order = distances.masked_fill(~counted, torch.inf).argsort(stable=True, dim=1)
    assert (~counted).any()
    assert _ranks(distances, counted).tolist() == order.argsort(dim=1).tolist()


def test_codes_of_other_width_are_not_mixed() -> None:
    a, b = codes(20, 0), torch.nn.functional.pad(codes(20, 0), (0, 3))
    kept = answers(a, b, Gallery(a, b, False), 3)
    assert kept.mixed is None
    assert float(kept.neighbours.min()) == 1
