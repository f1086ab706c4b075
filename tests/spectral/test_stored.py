from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from holdfast.spectral.analysis import scored
from holdfast.spectral.graph_pair import KNN, checked, draw
from holdfast.spectral.stability import spade_of, tensors_of


def same(left: Any, right: Any) -> bool:
    """Equal bit for bit, field by field."""
    if is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)
        )
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("repair", ["none", "mst", "largest"])
@pytest.mark.parametrize("whole", [True, False])
def test_scores_come_back_bit_for_bit(repair: str, whole: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    x[7] = x[3]  # a duplicate
    y = x * [1.0, 1.0, 5.0] if whole else np.where(np.arange(60)[:, None] < 20, x + 100, x)
    found = scored(draw(*checked(x, y), 4, KNN(), repair, 0), 0)
    assert np.isinf(found.score) == (not whole and repair == "none"), "vacuous"
    back = spade_of(safetensors.torch.load(safetensors.torch.save(tensors_of(found))))
    assert same(found, back)
    assert not same(found, spade_of(tensors_of(scored(draw(*checked(x, y), 5, KNN(), repair, 0), 0)))), "vacuous"
