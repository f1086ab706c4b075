"""Noise is a pure function of (seed, id, stream, position), and it is random."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from holdfast.core.files import hashed
from holdfast.core.noise import Noise

DRAWS = ("bits", "uniform", "normal", "gaussian", "signs")
IDS = [f"image-{k}" for k in range(7)]
N = 100_000


def draw(noise: Noise, kind: str, shape: tuple[int, ...] = (3, 2)) -> torch.Tensor:
    return getattr(noise, kind)(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_draws_in_small_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype):
    whole = Noise.of(3, IDS).normal((3, 2), dtype)
    monkeypatch.setattr("holdfast.core.noise.CACHED", 13)
    assert torch.equal(Noise.of(3, IDS).normal((3, 2), dtype), whole)
    assert Noise.of(3, []).normal((3, 2), dtype).shape == (0, 3, 2)


@pytest.mark.parametrize("kind", DRAWS)
@given(order=st.permutations(IDS), kept=st.integers(1, len(IDS)))
def test_a_draw_ignores_order_and_companions(kind: str, order: list[str], kept: int):
    whole = dict(zip(IDS, draw(Noise.of(3, IDS), kind), strict=True))
    for name, value in zip(order[:kept], draw(Noise.of(3, order[:kept]), kind), strict=True):
        assert torch.equal(value, whole[name])


@pytest.mark.parametrize("kind", DRAWS)
def test_another_seed_id_stream_or_position_gives_other_draws(kind: str):
    shape = (64,)
    base = draw(Noise.of(0, ["a"]), kind, shape)
    others = [
        draw(Noise.of(1, ["a"]), kind, shape),
        draw(Noise.of(0, ["b"]), kind, shape),
        draw(Noise.of(0, ["a"]).fork("start"), kind, shape),
        draw(Noise.of(0, ["a"]).fork("step", 1), kind, shape),
        draw(Noise.of(0, ["a"]).fork("step", 2), kind, shape),
        draw(Noise.of(0, ["a"]).fork("step").fork(1), kind, shape),
        draw(Noise.of(0, ["a"]).fork(1).fork("step"), kind, shape),
        draw(Noise.of(0, ["a"]).fork("step").fork("step"), kind, shape),
        draw(Noise.of(0, ["a"]), kind, (65,))[:, 1:],
    ]
    assert torch.equal(base, draw(Noise.of(0, ["a"]), kind, shape))
    for k, other in enumerate(others):
        assert not torch.equal(base, other)
        assert not any(torch.equal(other, again) for again in others[:k])


def test_rows_are_the_same_streams():
    noise = Noise.of(0, IDS)
    assert torch.equal(noise[2:4].uniform((5,)), noise.uniform((5,))[2:4])
    assert torch.equal(noise[torch.tensor([6, 0])].uniform((5,)), noise.uniform((5,))[[6, 0]])


def test_a_hash_keeps_its_parts_apart_and_never_changes():
    assert (
        len({hashed("ab"), hashed("a", "b"), hashed("a", "b", ""), hashed("b", "a"), hashed("a1"), hashed("a", 1)}) == 6
    )
    # Another hash would change every draw of every stored run.
    assert hashed(0, "a") == 2962476648899723354


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 2, 2)])
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("ids", [[], ["a"], IDS])
def test_shapes(shape: tuple[int, ...], kind: str, ids: list[str]):
    assert draw(Noise.of(0, ids), kind, shape).shape == (len(ids), *shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("many", ["positions", "ids", "streams"])
@pytest.mark.parametrize(("kind", "law"), [("uniform", "uniform"), ("normal", "norm"), ("gaussian", "norm")])
def test_distributions(kind: str, law: str, many: str, dtype: torch.dtype):
    """Kolmogorov and Smirnov's test, along each of the axes that draws are addressed by."""
    if many == "positions":
        values = getattr(Noise.of(0, ["a"]), kind)((N,), dtype)
    elif many == "ids":
        values = getattr(Noise.of(0, [str(k) for k in range(N // 10)]), kind)((1,), dtype)
    else:
        values = torch.cat([getattr(Noise.of(0, ["a"]).fork("step", k), kind)((1,), dtype) for k in range(N // 100)])
    assert stats.kstest(values.flatten().double().numpy(), law).pvalue > 0.01


def test_the_test_of_distributions_is_awake():
    values = Noise.of(0, ["a"]).uniform((N,))[0].double().numpy()
    assert stats.kstest(values**1.03, "uniform").pvalue < 0.01, "vacuous test"


def test_signs_are_fair():
    signs = Noise.of(0, ["a"]).signs((N,))[0]
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int((signs > 0).sum()), N).pvalue > 0.01


@pytest.mark.parametrize("kind", ["uniform", "normal", "gaussian", "signs"])
def test_neighbouring_positions_ids_and_streams_are_uncorrelated(kind: str):
    """The smallest of the p-values of all pairs at lags 1 to 3, corrected for their number."""
    rows, columns = 40, 2500
    table = draw(Noise.of(0, [str(k) for k in range(rows)]), kind, (columns,)).double().numpy()
    forked = draw(Noise.of(0, [str(k) for k in range(rows)]).fork("step", 1), kind, (columns,)).double().numpy()
    pairs = [(table, forked), (table[:, :-1], forked[:, 1:])]
    pairs += [(table[:-lag], table[lag:]) for lag in (1, 2, 3)]
    pairs += [(table[:, :-lag], table[:, lag:]) for lag in (1, 2, 3)]
    smallest = min(stats.pearsonr(one.ravel(), two.ravel()).pvalue for one, two in pairs)
    assert smallest > 0.01 / len(pairs)


def test_every_bit_is_a_fair_coin_and_pairs_of_bits_are_independent():
    words = Noise.of(0, ["a"]).bits((20_000,))[0].numpy().view(np.uint64)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).astype(float) * 2 - 1
    z = bits.mean(0) * np.sqrt(len(bits))
    pairs = (bits.T @ bits / np.sqrt(len(bits)))[np.triu_indices(64, 1)]
    assert np.abs(z).max() < stats.norm.isf(0.005 / 64)
    assert np.abs(pairs).max() < stats.norm.isf(0.005 / len(pairs))


@pytest.mark.parametrize(
    ("dtype", "digits"), [(torch.float64, 53), (torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)]
)
def test_uniform_draws_use_every_digit_of_their_type_and_never_reach_one(dtype: torch.dtype, digits: int):
    values = Noise.of(0, ["a"]).uniform((N,), dtype)
    assert values.dtype == dtype
    assert 0 <= values.min() <= values.max() < 1
    scaled = values.double() * 2.0**digits
    assert torch.equal(scaled, scaled.round())
    assert (scaled % 2 == 1).double().mean() == pytest.approx(0.5, abs=0.01), "the last digit is not used"


def test_uniform_draws_of_two_types_agree_up_to_their_digits():
    noise = Noise.of(0, IDS)
    fine = noise.uniform((50,), torch.float64)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        coarse = noise.uniform((50,), dtype).double()
        assert ((fine - coarse >= 0) & (fine - coarse < torch.finfo(dtype).eps)).all()


@pytest.mark.parametrize("word", [0, -1, 1, (1 << 63) - 1, -(1 << 63)])
def test_draws_from_extreme_bits_are_finite_and_inside(word: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Noise, "bits", lambda self, shape: torch.full((1, *shape), word))
    noise = Noise.of(0, ["a"])
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert 0 <= noise.uniform((1,), dtype).item() < 1
        assert torch.isfinite(noise.normal((1,), dtype)).all()
        assert torch.isfinite(noise.gaussian((1,), dtype)).all()
        assert noise.signs((1,), dtype).abs().item() == 1


def test_normal_draws_are_symmetric_at_the_ends(monkeypatch: pytest.MonkeyPatch):
    ends = torch.tensor([[0, -1]])
    monkeypatch.setattr(Noise, "bits", lambda self, shape: ends)
    low, high = Noise.of(0, ["a"]).normal((2,), torch.float64)[0].tolist()
    assert low == -high
    assert 8 < high < 9


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (0, 1), (1, 0)])
def test_draws_are_distinct_over_many_keys(seed: int, step: int):
    shape = (5, 4)
    bits = Noise.of(seed, [str(k) for k in range(5000)]).fork(step).bits(shape)
    assert len(bits.unique()) == 5000 * prod(shape)


def test_devices_agree(device: str):
    here, there = Noise.of(0, IDS), Noise.of(0, IDS, device)
    assert torch.equal(here.bits((9,)), there.bits((9,)).cpu())
    assert torch.equal(here.uniform((9,)), there.uniform((9,)).cpu())
    torch.testing.assert_close(here.normal((9,)), there.normal((9,)).cpu())


def test_gaussian_draws_reach_far_and_their_halves_are_unrelated():
    """The two draws of one hash, which share a length and an angle, are independent."""
    values = Noise.of(0, ["a"]).gaussian((4 * N,))[0].double()
    one, two = values.chunk(2)
    assert stats.pearsonr(one.numpy(), two.numpy()).pvalue > 0.01
    assert stats.pearsonr(one.square().numpy(), two.square().numpy()).pvalue > 0.01
    assert 4 < values.abs().max() < 7.6


def test_numbered_draws_do_not_depend_on_the_blocks_they_are_drawn_in():
    one = Noise.of(0, ["a"]).fork("smoothing")
    whole = one.numbered(torch.arange(20)).gaussian((3, 5))
    parts = [one.numbered(torch.arange(start, min(start + 7, 20))).gaussian((3, 5)) for start in range(0, 20, 7)]
    assert torch.equal(whole, torch.cat(parts))
    values = one.numbered(torch.arange(N // 10)).gaussian((3,)).double()
    assert stats.kstest(values.flatten().numpy(), "norm").pvalue > 0.01
    assert len(values[:, 0].unique()) > 0.99 * len(values)
