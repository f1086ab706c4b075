"""What kernels do that the formula of an operation does not say: products stored, casts, constants and sums on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.bounds import lower_bound
from holdfast.bounds.rounding.executed import executed_encoder
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from tests.marks import rest_slow

HALF = (torch.float16, torch.bfloat16)


class Called(nn.Module):
    """A linear layer and what is done with its features."""

    def __init__(self, after: Callable[[Tensor], Tensor], scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.after = nn.Linear(8, 12), after
        with torch.no_grad():
            self.linear.weight.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.linear(x))


def encoder_of(after: Callable[[Tensor], Tensor], scale: float = 1.0) -> Encoder:
    return Encoder(Called(after, scale).eval(), "called", Domain((8,)))


def cast_and_back(h: Tensor) -> Tensor:
    wide = h.float() * 0.7
    return wide + 6 * (wide - wide.to(h.dtype).float())


HELD: dict[str, Callable[[Tensor], Tensor]] = {
    "added times a factor": lambda h: torch.add(h[:, :6], h[:, 6:], alpha=0.37),
    "subtracted times a factor": lambda h: torch.sub(h[:, :6], h[:, 6:], alpha=2.97),
    "at least a constant": lambda h: torch.maximum(h, torch.tensor(0.3001)),
    "at most a constant": lambda h: torch.minimum(torch.tensor(0.3001), h),
}


@pytest.mark.parametrize("name", rest_slow(HELD, fast=2))
@pytest.mark.parametrize("dtype", rest_slow(HALF), ids=str)
def test_no_execution_lies_below_its_bound(name: str, dtype: torch.dtype) -> None:
    executed = executed_encoder(encoder_of(HELD[name]), dtype, "cpu")
    torch.manual_seed(1)
    x = torch.rand(40, 8, dtype=torch.float64).to(dtype).double()
    rows = torch.eye(executed.graph.nodes[-1].shape[-1], dtype=torch.float64).expand(len(x), -1, -1)
    with torch.no_grad():
        codes = executed.forward(x)
    for sign in (1.0, -1.0):
        bound = lower_bound(executed.encoder, x, sign * rows, Linf(1e-9), "crown", "executed")
        assert (sign * codes >= bound).all()


def test_what_is_cast_is_not_what_was_there_before() -> None:
    executed = executed_encoder(encoder_of(cast_and_back), torch.bfloat16, "cpu")
    torch.manual_seed(1)
    x = torch.rand(20, 8, dtype=torch.float64).bfloat16().double()
    rows = torch.eye(12, dtype=torch.float64).expand(len(x), -1, -1)
    with torch.no_grad():
        codes = executed.forward(x)
    for sign in (1.0, -1.0):
        bound = lower_bound(executed.encoder, x, sign * rows, Linf(1e-9), "crown", "executed")
        assert (sign * codes >= bound).all()


@pytest.mark.parametrize(
    ("after", "name"),
    rest_slow(
        [
            (lambda h: functional.interpolate(h[:, None], 20, mode="linear")[:, 0], "upsample_linear1d"),
            (
                lambda h: functional.conv_transpose1d(h[:, None], torch.ones(1, 1, 3, dtype=h.dtype))[:, 0],
                "conv_transpose1d",
            ),
            (lambda h: functional.instance_norm(h.reshape(-1, 2, 6)).flatten(1), "instance_norm"),
            (lambda h: functional.adaptive_avg_pool3d(h.reshape(-1, 1, 3, 2, 2), 1).flatten(1), "adaptive_avg_pool3d"),
        ]
    ),
)
@pytest.mark.parametrize("dtype", rest_slow(HALF), ids=str)
def test_kernels_that_keep_half_precision_on_the_way_are_refused(
    after: Callable[[Tensor], Tensor], name: str, dtype: torch.dtype
) -> None:
    with pytest.raises(HoldfastError, match=f"operation '{name}'"):
        executed_encoder(encoder_of(after), dtype, "cpu")


@pytest.mark.parametrize(
    "after", rest_slow([lambda h: h.float().sum(1, True, dtype=h.dtype), lambda h: h.float().softmax(1, h.dtype)])
)
def test_operands_that_are_narrowed_first_are_refused(after: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(HoldfastError, match="its operands are converted to bfloat16 first"):
        executed_encoder(encoder_of(after), torch.bfloat16, "cpu")


@pytest.mark.parametrize("after", [lambda h: h.mean(1, True), lambda h: functional.avg_pool1d(h, 12)])
def test_a_mean_is_a_sum_first(after: Callable[[Tensor], Tensor]) -> None:
    """Its entries are far below the largest number, and so is the mean; the sum is not."""
    executed = executed_encoder(encoder_of(after, 1e38), torch.float32, "cpu")
    x = torch.full((1, 8), 0.5, dtype=torch.float64)
    rows = torch.ones(1, 1, 1, dtype=torch.float64)
    assert lower_bound(executed.encoder, x, rows, Linf(0.1), "crown", "executed").isneginf().all()


def test_convolutions_without_onednn_are_refused_where_nnpack_may_compute_them() -> None:
    """NNPACK's transforms round more than a sum of products does: executed bounds were crossed in batches of 16."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.nnpack.is_available()):
        pytest.skip("this torch has no NNPACK, or no oneDNN to be without")
    convolution = Encoder(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).eval(), "convolution", Domain((1, 8, 8)))
    executed_encoder(convolution, torch.float32, "cpu")
    with torch.backends.mkldnn.flags(enabled=False):
        executed_encoder(encoder_of(torch.relu), torch.float32, "cpu")  # which convolves nothing
        executed_encoder(convolution, torch.bfloat16, "cpu")
        with pytest.raises(HoldfastError, match="NNPACK"):
            executed_encoder(convolution, torch.float32, "cpu")  # though it is kept
        with torch.backends.nnpack.flags(enabled=False):
            executed_encoder(convolution, torch.float32, "cpu")
    executed_encoder(convolution, torch.float32, "cpu")


def test_factors_of_less_than_float32_are_refused() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(HoldfastError, match="factors of less than float32"):
            executed_encoder(encoder_of(torch.relu), torch.float32, "cpu")
        torch.set_float32_matmul_precision("highest")
        executed_encoder(kept := encoder_of(torch.relu), torch.float32, "cpu")
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(HoldfastError, match="factors of less than float32"):
            executed_encoder(kept, torch.float32, "cpu")
    finally:
        torch.set_float32_matmul_precision("highest")
