"""Fast counting against the definition, where it is hard: offsets, ties, duplicates, collapse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.core.divergences import DIVERGENCES, Cosine, Divergence, L2Distance
from holdfast.core.points import counting
from holdfast.core.points.counting import (
    _slow_crossings,
    closer_counts,
    crossings,
    nearest_rows,
    share_of_pairs_within,
    shares_within,
)

KINDS = [kind() for kind in DIVERGENCES.values()]


def codes(n: int, d: int, seed: int, offset: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, d, generator=generator) + offset).to(dtype)


def oracle(moved: Tensor, own: Tensor, clean: Tensor) -> Tensor:
    """The definition for l2: squared differences in float64, strict, self excluded by row."""
    distance = (moved.double()[:, None] - clean.double()).square().sum(2)
    mine = distance[torch.arange(len(own)), own]
    closer = distance < mine[:, None]
    closer[torch.arange(len(own)), own] = False
    return closer.sum(1)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 10.0, 1e3, 1e5]),
    st.integers(1, 40),
    st.sampled_from([1e-6, 1e-3, 0.3, 3.0]),
)
def test_counts_are_exact_whatever_the_offset(seed: int, offset: float, d: int, noise: float) -> None:
    clean = codes(150, d, seed, offset)
    own = torch.arange(40) * 3
    moved = clean[own] + noise * codes(40, d, seed + 1)
    assert torch.equal(closer_counts(L2Distance(), moved, own, clean), oracle(moved, own, clean))


def test_plain_distances_would_miscount() -> None:
    """The law above is awake: the obvious float32 computation fails it."""
    clean = codes(150, 20, 0, 1e3)
    own = torch.arange(40) * 3
    moved = clean[own] + 3 * codes(40, 20, 1)
    distance = torch.cdist(moved, clean)
    naive = (distance < distance[torch.arange(40), own][:, None]).sum(1)
    assert not torch.equal(naive, oracle(moved, own, clean))
    assert torch.equal(closer_counts(L2Distance(), moved, own, clean), oracle(moved, own, clean))


def test_duplicates_are_not_strictly_closer() -> None:
    clean = codes(30, 4, 0).repeat(2, 1)
    own = torch.arange(60)
    assert (closer_counts(L2Distance(), clean.clone(), own, clean) == 0).all()
    # Moved off a duplicated point, its twin is exactly as far: still not strictly closer.
    moved = clean + 1e-3 * codes(60, 4, 1)
    assert torch.equal(closer_counts(L2Distance(), moved, own, clean), oracle(moved, own, clean))


def test_collapsed_codes_count_nobody() -> None:
    clean = torch.full((50, 3), 0.1)
    assert (closer_counts(L2Distance(), clean + 0.5, torch.arange(50), clean) == 0).all()


@pytest.mark.parametrize("divergence", KINDS, ids=str)
def test_every_divergence_counts_by_its_definition(divergence: Divergence) -> None:
    clean = codes(60, 6, 3, dtype=torch.float64)
    divergence, own = divergence.fit(clean), torch.arange(20)
    moved = clean[own] + codes(20, 6, 4, dtype=torch.float64)
    counts = closer_counts(divergence, moved, own, clean)
    assert torch.equal(counts, _slow_crossings(divergence, moved, clean[own], clean)[0])
    assert counts.sum() > 0, "vacuous"


def test_counts_do_not_depend_on_order() -> None:
    clean, order = codes(90, 5, 7), torch.randperm(90)
    moved = clean + codes(90, 5, 8)
    own = torch.arange(90)
    back = torch.empty_like(order)
    back[order] = own
    straight = closer_counts(L2Distance(), moved, own, clean)
    assert torch.equal(straight[order], closer_counts(L2Distance(), moved[order], back[order], clean[order]))


@pytest.mark.parametrize("divergence", KINDS, ids=str)
def test_share_of_pairs_is_the_share_of_ordered_pairs(divergence: Divergence) -> None:
    clean = codes(70, 6, 5, dtype=torch.float64)
    divergence = divergence.fit(clean)
    pairs = torch.stack([divergence(clean[i].expand_as(clean), clean) for i in range(70)])
    values = pairs[~torch.eye(70, dtype=torch.bool)]
    thresholds = torch.cat(
        [values.quantile(torch.linspace(0.01, 0.99, 9).double()), torch.tensor([-1.0, 1e9, torch.nan])]
    )
    slow = torch.stack([(values * (1 - 1e-10) <= t).double().mean() for t in thresholds])
    fast = share_of_pairs_within(divergence, thresholds, clean)
    assert torch.allclose(fast[:-1], slow[:-1], atol=2 / len(values))
    assert fast[-3] == 0
    assert fast[-2] == 1
    assert fast[-1].isnan()


def test_zero_codes_have_no_cosine() -> None:
    clean = codes(20, 3, 0)
    clean[4] = 0
    counts = closer_counts(Cosine(), clean + 0.1, torch.arange(20), clean)
    assert (counts[torch.arange(20) != 4] >= 0).all()
    assert counts[4] == 0


def test_counting_needs_little_memory() -> None:
    """No array of all pairs: the largest one made is a tile."""
    clean, moved = codes(20_000, 8, 0), codes(1000, 8, 1)
    largest = 0
    original = torch.addmm

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        nonlocal largest
        result = original(*args, **kwargs)
        largest = max(largest, result.numel() * result.element_size())
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "addmm", watched)
        closer_counts(L2Distance(), moved, torch.arange(1000), clean)
    assert 0 < largest <= 16 * 2**20


@pytest.mark.parametrize("divergence", KINDS, ids=str)
def test_who_is_passed_is_counted_as_who_passes(divergence: Divergence) -> None:
    clean = codes(60, 6, 0, 1e3) if divergence.name in ("l2", "cosine") else codes(60, 6, 0)
    divergence, own = divergence.fit(clean), torch.arange(40)
    moved = clean[own] + codes(40, 6, 1)
    counts, passed = crossings(divergence, moved, own, clean)
    slow = _slow_crossings(divergence, moved, clean[own], clean)
    assert torch.equal(counts, slow[0])
    assert torch.equal(passed, slow[1])
    assert counts.sum() == passed.sum() > 0


@pytest.mark.parametrize("divergence", KINDS, ids=str)
def test_shares_within_average_to_the_share_of_pairs(divergence: Divergence) -> None:
    clean = codes(70, 6, 5, dtype=torch.float64)
    divergence = divergence.fit(clean)
    thresholds = divergence(clean[:4], clean[4:8])
    shares = shares_within(divergence, thresholds, clean)
    assert shares.shape == (4, 70)
    if divergence.embed(clean[:1]) is not None or divergence.name in ("l1", "linf"):  # symmetric ones
        assert torch.allclose(shares.mean(1), share_of_pairs_within(divergence, thresholds, clean), atol=2 / 70**2)
    first = divergence(clean[0].expand_as(clean), clean)
    assert shares[0, 0].item() == pytest.approx(float((first[1:] <= thresholds[0]).double().mean()), abs=1.1 / 69)


@pytest.mark.parametrize("divergence", KINDS, ids=str)
@pytest.mark.parametrize("tile", [40, 2**21])
def test_nearest_are_those_of_the_definition_in_blocks_of_any_size(
    divergence: Divergence, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = codes(50, 6, 0)
    divergence, own = divergence.fit(clean), [3, 49, 0, 20]
    asked = clean[own] + 0.3 * codes(4, 6, 1)
    distance = torch.stack([divergence(code.expand_as(clean), clean) for code in asked])
    distance[torch.arange(4), own] = torch.inf
    slow = distance.sort(1)
    monkeypatch.setattr(counting, "TILE", tile)
    found = nearest_rows(divergence, asked, clean, 5, own)
    # Stepwise divergences tie; then who is found is as near as who was expected.
    assert torch.allclose(distance.gather(1, found), slow.values[:, :5])
    assert nearest_rows(divergence, asked, clean, 99, own).shape == (4, 49)


@pytest.mark.parametrize("divergence", [L2Distance(), Cosine()], ids=str)
def test_codes_that_are_left_out_are_nobodys_neighbours(divergence, monkeypatch):
    monkeypatch.setattr("holdfast.core.points.counting.WIDE", 60)
    clean, moved = codes(50, 4, 0), codes(9, 4, 1)
    left_out, own = torch.zeros(50, dtype=torch.bool), torch.arange(9)
    left_out[20::3] = True
    counts, passed = crossings(divergence, moved, own, clean, left_out=left_out)
    kept, among_kept = crossings(divergence, moved, own, clean[~left_out])
    assert torch.equal(counts, kept)
    assert torch.equal(passed[~left_out], among_kept)
    assert not passed[left_out].any()
    assert torch.equal(counts, _slow_crossings(divergence, moved, clean[own], clean, left_out)[0])


def test_few_points_look_at_no_more_codes_at_once_than_many(monkeypatch):
    monkeypatch.setattr(counting, "WIDE", 4096)
    largest, original = [0], counting.Frame.embed

    def watched(frame: counting.Frame, points: Tensor) -> Tensor:
        largest[0] = max(largest[0], points.numel())
        return original(frame, points)

    monkeypatch.setattr(counting.Frame, "embed", watched)
    clean = codes(3000, 16, 0)
    closer_counts(L2Distance(), clean[:2] + 0.1, torch.arange(2), clean)
    nearest_rows(L2Distance(), clean[:2] + 0.1, clean, 3)
    assert 0 < largest[0] <= 4096


@pytest.mark.parametrize("name", ["kl", "gaussian_kl"])
def test_divergences_with_a_direction_are_taken_from_each_clean_code_to_the_moved_one(name: str) -> None:
    """``KL(clean || moved)``, as torch's distributions have it: the other way round, others would be closer."""

    def law(rows: Tensor) -> Any:
        if name == "kl":
            return torch.distributions.Categorical(logits=rows)
        mean, log_variance = rows.chunk(2, dim=-1)
        return torch.distributions.Independent(torch.distributions.Normal(mean, (log_variance / 2).exp()), 1)

    clean = 2 * codes(40, 6, 11, dtype=torch.float64)
    moved = clean + 2 * codes(40, 6, 12, dtype=torch.float64)
    toward, back = (torch.zeros(40, 40, dtype=torch.float64) for _ in range(2))
    for i in range(40):
        toward[i] = torch.distributions.kl_divergence(law(clean), law(moved[i].expand(40, -1)))
        back[i] = torch.distributions.kl_divergence(law(moved[i].expand(40, -1)), law(clean))
    for fit in (toward, back):
        fit -= fit.diagonal()[:, None].clone()
    counts = closer_counts(DIVERGENCES[name](), moved, torch.arange(40), clean)
    assert torch.equal(counts, (toward < -1e-9).sum(1))
    assert not torch.equal(counts, (back < -1e-9).sum(1)), "vacuous: the direction changes nothing"


def test_a_code_that_cannot_be_embedded_is_no_nearest_row() -> None:
    """A zero code has no direction; asked for more neighbours than there are, one gets it last."""
    clean = torch.tensor([[0.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    nearest = nearest_rows(Cosine(), torch.tensor([[1.0, 0.0]]), clean, 3)
    assert nearest.tolist() == [[1, 2, 0]]


def test_what_is_left_out_is_no_neighbour_even_where_nobody_else_has_a_distance() -> None:
    clean = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    nearest = nearest_rows(Cosine(), clean[:1], clean, 2, exclude=[0])
    assert nearest.tolist() == [[1, 2]]


def test_codes_without_a_direction_make_no_pairs() -> None:
    """Shares are over the others that have one: with or without zero codes among them, they are the same."""
    clean, thresholds = codes(12, 3, 5, dtype=torch.float64), torch.tensor([0.2, 0.9], dtype=torch.float64)
    with_zeros = torch.cat([clean[:4], torch.zeros(3, 3, dtype=torch.float64), clean[4:]])
    shares = shares_within(Cosine(), thresholds, clean)
    assert torch.equal(shares_within(Cosine(), thresholds, with_zeros), shares)
    assert 0 < shares.mean() < 1, "vacuous"
    pairs = share_of_pairs_within(Cosine(), thresholds, clean)
    assert torch.equal(share_of_pairs_within(Cosine(), thresholds, with_zeros), pairs)
