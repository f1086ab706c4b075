"""The library's shapes are checked while tests run, once for each function and kinds of arguments."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from holdfast.bounds.network.consistency import unlike


def test_a_wrong_shape_is_refused_whenever_it_comes() -> None:
    good, bad = torch.zeros(2, 3), torch.zeros(2)
    for _ in range(3):
        unlike(good, good, torch.full((3,), 0.1))
        with pytest.raises(TypeCheckError):
            unlike(bad, bad, torch.full((3,), 0.1))
    with pytest.raises(TypeCheckError):
        unlike(good, good.long(), torch.full((3,), 0.1))
