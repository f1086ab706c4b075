"""The library's shapes are checked while tests run, at first calls and at some of many."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from holdfast.bounds.network.consistency import unlike
from tests.shapes import EVERY, FIRST

GOOD, BAD = torch.zeros(2, 3), torch.zeros(2)


def test_a_wrong_shape_is_refused_at_the_first_call() -> None:
    with pytest.raises(TypeCheckError):
        unlike(BAD, BAD, 0.1)


def test_one_of_many_later_calls_is_checked() -> None:
    for _ in range(FIRST + EVERY - 1):
        unlike(GOOD, GOOD, 0.1)
    with pytest.raises(TypeCheckError):
        unlike(BAD, BAD, 0.1)
