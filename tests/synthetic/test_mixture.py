"""The synthetic classes are what they are said to be, and the moments of their codes add up."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.synthetic.mixture import DIRECTIONS, Mixture, Pooled, direction

NAMES = [str(k) for k in range(20_000)]


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("shape", [(1,), (7,), (1, 1, 5), (3, 8, 6)])
def test_directions_have_unit_length(kind: str, shape: tuple[int, ...]) -> None:
    vector = direction(kind, shape)
    assert vector.shape == shape
    assert vector.norm().item() == pytest.approx(1)


def test_directions_are_three_different_ones() -> None:
    ones, smooth, signs = (direction(kind, (3, 8, 6)) for kind in DIRECTIONS)
    assert ones.std() == 0
    assert smooth.sum().item() == pytest.approx(0, abs=1e-12)
    assert torch.equal(smooth[0], smooth[2])
    assert sorted(set(signs.flatten().tolist())) == pytest.approx([-(144**-0.5), 144**-0.5])
    assert not torch.equal(signs, direction("signs", (3, 8, 6), seed=1))
    with pytest.raises(HoldfastError, match="Did you mean 'signs'"):
        direction("sign", (2,))


def test_samples_have_the_mixtures_moments() -> None:
    x, y = Mixture(2 * direction("ones", (1, 2, 2))).sample(Noise.of(0, NAMES), torch.float64)
    assert set(y.tolist()) == {-1.0, 1.0}
    assert y.mean().item() == pytest.approx(0, abs=0.03)
    around = x.flatten(1) - y[:, None]
    assert around.mean(0).abs().max() < 0.03
    assert (around.T @ around / len(x) - torch.eye(4)).abs().max() < 0.05


def test_samples_are_named_not_counted() -> None:
    mixture = Mixture(direction("ones", (5,)))
    x, y = mixture.sample(Noise.of(0, NAMES[:10]))
    again, labels = mixture.sample(Noise.of(0, NAMES[4:10]))
    assert torch.equal(x[4:], again)
    assert torch.equal(y[4:], labels)


def test_large_images_need_no_covariance_matrix() -> None:
    x, _ = Mixture(direction("ones", (3, 224, 224))).sample(Noise.of(0, NAMES[:2]))  # 150,528^2 numbers are 90 GB
    assert x.shape == (2, 3, 224, 224)


def made(n: int, d: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (n,), generator=generator) * 2.0 - 1
    return 1e3 + labels[:, None] + torch.randn(n, d, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("cuts", [[50], [1, 2, 99], [0, 33, 66]])
def test_moments_add_up(cuts: list[int]) -> None:
    codes, labels = made(100)
    whole = Pooled.of(codes, labels)
    first, *others = (Pooled.of(c, y) for c, y in zip(codes.tensor_split(cuts), labels.tensor_split(cuts), strict=True))
    for other in others:
        first = first + other
    for name in ("count", "mean", "scatter"):
        assert torch.allclose(getattr(first, name), getattr(whole, name), rtol=1e-12), name
    up, down = codes[labels > 0], codes[labels < 0]
    assert torch.allclose(whole.half_gap, (up.mean(0) - down.mean(0)) / 2)
    pooled = (len(up) - 1) * up.T.cov() + (len(down) - 1) * down.T.cov()
    assert torch.allclose(whole.covariance, pooled / 98, rtol=1e-9)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_rounding_is_no_direction_in_any_unit(unit: float) -> None:
    codes, labels = made(400)
    flat = (torch.cat([codes, codes.sum(1, keepdim=True)], 1) * unit).float()
    values, vectors = Pooled.of(flat, labels).modes(torch.float32)
    assert vectors.shape == (4, 3)
    assert (values / unit**2 > 0.1).all()


def test_constant_codes_have_no_direction() -> None:
    for constant in (0.0, 0.1, 3e7):
        codes = torch.full((50, 4), constant)
        assert len(Pooled.of(codes, made(50)[1]).modes(torch.float32)[0]) == 0
