"""Answers that are kept, against the slow definition."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from holdfast.service.parity_maps import Gallery, Kept, _ranks, answers


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
        assert float(kept.neighbours.values[x]) == len(near[0] & near[1]) / 4
        assert kept.mixed is not None
        assert float(kept.mixed.values[x]) == len(near[0] & near[2]) / 4
        assert bool(kept.nearest.values[x]) == (min(old, key=old.__getitem__) == min(new, key=new.__getitem__))
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
    assert float(kept.neighbours.values.min()) == 1


def one_left_out(a: Tensor, b: Tensor, gallery: Gallery, x: int, which: str, k: int) -> float:
    """The mean without image ``x``, searched anew."""
    rest = [y for y in range(len(a)) if y != x]
    less = Gallery(gallery.reference[rest], gallery.candidate[rest], False)
    kept: Kept = getattr(answers(a[rest], b[rest], less, k), which)
    return float(kept.values.mean())


@pytest.mark.parametrize("which", ["neighbours", "nearest", "mixed"])
def test_influences_are_those_of_leaving_out_each_image(which: str) -> None:
    a = codes(30, 0)
    b = a + 0.5 * codes(30, 1)
    b[3] = 0
    gallery = Gallery(a, b, False)
    kept: Kept = getattr(answers(a, b, gallery, 4), which)
    mean = float(kept.values.mean())
    pseudo = torch.tensor([30 * mean - 29 * one_left_out(a, b, gallery, x, which, 4) for x in range(30)])
    torch.testing.assert_close(kept.influences, pseudo.double() - pseudo.double().mean() + mean, rtol=0, atol=1e-4)
    assert kept.influences.std() > 1.2 * kept.values.std(), "an image counts as a neighbour, too"


def test_influences_in_a_bank_and_of_as_many_neighbours_as_there_are_are_the_values() -> None:
    a, b = codes(10, 0), codes(10, 1)
    for gallery, k in ((Gallery(codes(12, 2), codes(12, 3), True), 3), (Gallery(a, b, False), 9)):
        kept = answers(a, b, gallery, k).neighbours
        assert kept.influences.tolist() == kept.values.tolist()
