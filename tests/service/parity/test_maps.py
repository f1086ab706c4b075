"""Maps between spaces against their definitions, and where they must not be fooled."""

from __future__ import annotations

from math import isfinite, isnan

import pytest
import torch
from torch import Tensor

from holdfast.service.parity_maps import GROUPS, linear_cka, unexplained


def normal(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def turned(codes: Tensor, width: int) -> Tensor:
    """Rotate codes into a space of ``width`` features, scale and shift them."""
    turn = torch.linalg.qr(normal(width, width, 9)).Q
    return 3 * torch.nn.functional.pad(codes, (0, width - codes.shape[1])) @ turn + 1


@pytest.mark.parametrize("features", [5, 64, 500])
def test_a_rotated_copy_is_predicted_and_unrelated_codes_are_not(features: int) -> None:
    a, order = normal(80, features, 0), torch.randperm(80, generator=torch.Generator().manual_seed(0))
    same = unexplained(a, turned(a, features), order)
    other = unexplained(a, normal(80, features, 1), order)
    assert float(same.rotated.max()) < 1e-12
    assert float(other.rotated.mean()) > 0.9, (
        "with more features than images, a map judged where it was fitted fits all"
    )
    assert same.scaled is not None
    assert float(same.scaled.mean()) > 0.5
    assert float(unexplained(a, 3 * a + 1, order).scaled.max()) < 1e-12  # type: ignore[union-attr]
    wide = unexplained(a, turned(a, features + 7), order)
    assert wide.as_it_is is None
    assert float(wide.rotated.max()) < 1e-12


def test_the_fitted_rotation_is_that_of_scipy() -> None:
    from scipy.linalg import orthogonal_procrustes

    a, order = normal(60, 4, 0), torch.arange(60)
    b = turned(a, 4) + 0.3 * normal(60, 4, 2)
    rotated = unexplained(a, b, order).rotated
    train, test = order[::2], order[1::2]
    near, far = a[train] - a[train].mean(0), b[train] - b[train].mean(0)
    turn, singular = orthogonal_procrustes(far.numpy(), near.numpy())
    ours, theirs = a[test] - a[train].mean(0), b[test] - b[train].mean(0)
    left = ours - singular / far.square().sum() * theirs @ torch.from_numpy(turn)
    expected = left.square().sum(1) / ours.square().sum(1).mean()
    assert torch.allclose(rotated[test], expected, rtol=1e-9)


def slow_hsic(k: Tensor, l: Tensor) -> float:  # noqa: E741
    """The average over all four distinct indices, of which the unbiased HSIC is the closed form."""
    n, total = len(k), 0.0
    indices = [(i, j, q, r) for i in range(n) for j in range(n) for q in range(n) for r in range(n)]
    distinct = [each for each in indices if len(set(each)) == 4]
    for i, j, q, r in distinct:
        total += float(k[i, j] * (l[i, j] + l[q, r] - 2 * l[i, q]))
    return total / len(distinct)


def test_the_cka_is_that_of_its_definition_and_the_jackknife_leaves_groups_out() -> None:
    a, b = normal(7, 3, 0), normal(7, 3, 0) + normal(7, 3, 1)
    kernels = [codes @ codes.T for codes in (a, b)]
    expected = slow_hsic(*kernels) / (slow_hsic(kernels[0], kernels[0]) * slow_hsic(kernels[1], kernels[1])) ** 0.5
    assert linear_cka(a, b, torch.arange(7))[0] == pytest.approx(expected)
    a, b = normal(60, 6, 0), normal(60, 6, 0) + normal(60, 6, 1)
    order = torch.arange(60)
    without = torch.tensor([linear_cka(a, b, order[order % GROUPS != g])[0] for g in range(GROUPS)])
    error = ((GROUPS - 1) / GROUPS * (without - without.mean()).square().sum()).sqrt()
    value, low, high = linear_cka(a, b, order)
    assert float(error) * 2.093 == pytest.approx(value - low, rel=1e-3)
    assert low < value < high


@pytest.mark.parametrize("others", [0.0, 0.3])
@pytest.mark.parametrize("count", [30, 60])
def test_the_cka_is_undefined_where_only_one_image_differs(others: float, count: int) -> None:
    """Its unbiased self-similarity is 0; divided by what rounding leaves of it, the CKA would be of any size."""
    lone = torch.full((count, 5), others, dtype=torch.float64)
    lone[3] += 1.7
    for pair in ((lone, normal(count, 5, 0)), (normal(count, 5, 0), lone), (lone, lone)):
        value, low, high = linear_cka(*pair, torch.arange(count))
        assert isnan(value)
        assert not isfinite(low)
        assert not isfinite(high)
    lone[5] -= 1.0
    assert isfinite(linear_cka(lone, normal(count, 5, 0), torch.arange(count))[0])


def test_the_cka_of_unrelated_codes_is_zero_however_wide() -> None:
    values = [linear_cka(normal(60, 2000, k), normal(60, 2000, 100 + k), torch.arange(60))[0] for k in range(10)]
    assert abs(sum(values) / len(values)) < 0.03
