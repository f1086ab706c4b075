"""What callers of the two public functions may get wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.bounds import Interval, certified_radius, lower_bound
from holdfast.core.balls import Linf
from holdfast.core.errors import HoldfastError
from holdfast.encoders import load
from tests.bounds.test_operations import context


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_a_tolerance_that_never_ends_is_refused(tolerance: float) -> None:
    encoder, x, specifications = context("linear")
    with pytest.raises(HoldfastError, match="tolerance must be"):
        certified_radius(encoder, x, specifications, Linf(0.1), tolerance=tolerance)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.bool, torch.complex64, torch.float16, torch.bfloat16]
)
@pytest.mark.parametrize("method", ["crown", "exact"])
def test_specifications_of_another_kind_are_refused(dtype: torch.dtype, method: str, unchecked: None) -> None:
    encoder, x, specifications = context("linear")
    for ask in (lower_bound, certified_radius):
        with pytest.raises(HoldfastError, match=rf"specifications must (be in float32|be real numbers).* got {dtype}"):
            ask(encoder, x, specifications.to(dtype), Linf(0.1), method)


def test_lists_are_refused(unchecked: None) -> None:
    encoder, x, specifications = context("linear")
    lists = dict[str, Any](pixels=x.tolist(), specifications=specifications.tolist())
    with pytest.raises(HoldfastError, match=r"specifications .* list.*torch\.as_tensor"):
        lower_bound(encoder, x, lists["specifications"], Linf(0.1))
    with pytest.raises(HoldfastError, match=r"pixels .* list.*torch\.as_tensor"):
        lower_bound(encoder, lists["pixels"], specifications, Linf(0.1))


def test_pixels_in_half_precision_are_refused(unchecked: None) -> None:
    encoder, x, specifications = context("linear")
    with pytest.raises(HoldfastError, match=r"pixels must be in float32 or float64, got torch\.bfloat16"):
        lower_bound(encoder, x.bfloat16(), specifications, Linf(0.1))


def test_methods_have_a_text_form() -> None:
    encoder, x, specifications = context("linear")
    with pytest.raises(HoldfastError, match="Did you mean 'alpha'"):
        lower_bound(encoder, x, specifications, Linf(0.1), "alhpa")
    spelled, made = (lower_bound(encoder, x, specifications, Linf(0.1), method) for method in ("interval", Interval()))
    assert torch.equal(spelled, made)


def test_what_is_no_encoder_or_ball_is_refused(unchecked: None) -> None:
    encoder, x = load("builtin:digits-random"), torch.rand(1, 1, 8, 8)
    rows, anything = torch.randn(1, 1, 32).double(), dict[str, Any](module=encoder.module, radius=0.1)
    with pytest.raises(HoldfastError, match="wrap the module in one"):
        lower_bound(anything["module"], x, rows, Linf(0.1))
    with pytest.raises(HoldfastError, match="a ball is needed, as in Linf"):
        lower_bound(encoder, x, rows, anything["radius"])
    with pytest.raises(HoldfastError, match="specifications must be of shape"):
        certified_radius(encoder, x, rows[0], Linf(0.1))
