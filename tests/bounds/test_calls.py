"""What is bounded is what is executed: in its own precision, in every batch and mode, with the weights it has now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.bounds import certified_radius, lower_bound
from holdfast.bounds.network.tracing import TENSOR_CORES, rounding, trace
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from tests.marks import rest_slow
from tests.samples import builtin

SHAPE = (2, 4, 4)


class Fickle(nn.Module):
    """Two features; their signs change where ``asks`` says so."""

    def __init__(self, asks: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.linear, self.asks = nn.Linear(32, 2), asks

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x.flatten(1)).relu()
        return -y if self.asks(x) else y


def fickle(asks: Callable[[Tensor], bool]) -> Encoder:
    torch.manual_seed(0)
    return Encoder(Fickle(asks).eval(), "fickle", Domain(SHAPE))


def bound(encoder: Encoder) -> Tensor:
    specifications = torch.ones(1, 1, 2, dtype=torch.float64)
    return lower_bound(encoder, torch.full((1, *SHAPE), 0.5), specifications, Linf(0.01))


MODES: dict[str, tuple[Callable[[Tensor], bool], str]] = {
    "single precision": (lambda x: x.dtype == torch.float32, "32 than"),
    "double precision": (lambda x: x.dtype == torch.float64, "32 than"),
    "more images than probes": (lambda x: len(x) >= 13, "in a batch of 13"),
    "the batch of a run": (lambda x: len(x) > 200, "in a batch of 224"),
    "a hundred images": (lambda x: len(x) == 100, "in a batch of 100"),
    "large batches": (lambda x: len(x) > 600, "in a batch of 800"),
    "gradients": (lambda x: torch.is_grad_enabled() and not torch.compiler.is_exporting(), "where gradients are on"),
    "images with gradients": (lambda x: x.requires_grad, "where images need gradients"),
    "inference mode": (lambda x: torch.is_inference_mode_enabled(), "in inference mode"),
    "inference tensors": (lambda x: x.is_inference(), "in inference mode"),
    "channels last": (lambda x: x.is_contiguous(memory_format=torch.channels_last), "with channels last in memory"),
    "strides": (lambda x: x.stride()[-1] == 16 * len(x) or x.stride()[-1] == 2, "in memory"),
    "contiguity": (lambda x: not x.is_contiguous(), "in memory"),
    "offsets": (lambda x: x.storage_offset() > 0, "parts of others in memory"),
    "four images": (lambda x: len(x) == 4, "in a batch of 4"),
    "24 images": (lambda x: len(x) == 24, "in a batch of 24"),
    "50 images": (lambda x: len(x) == 50, "in a batch of 50"),
    "200 images": (lambda x: len(x) == 200, "in a batch of 200"),
    "multiples of seven": (lambda x: len(x) % 7 == 0, "in a batch of 7"),
    "computed images": (lambda x: x.grad_fn is not None, "where images are computed"),
    "another thread": (lambda x: threading.current_thread() is not threading.main_thread(), "in another thread"),
    "the default type": (lambda x: torch.get_default_dtype() == torch.float64, "default type is float64"),
    "a larger batch in double precision": (
        lambda x: x.dtype == torch.float64 and len(x) == 32,
        "64 in a batch of 32",
    ),
}


@pytest.mark.parametrize("mode", rest_slow(MODES, fast=6))
def test_a_module_that_is_another_function_in_some_mode_is_refused(mode: str) -> None:
    asks, said = MODES[mode]
    with pytest.raises(HoldfastError, match=f"fickle gives other embeddings in float.*{said}") as caught:
        bound(fickle(asks))
    assert "\n" not in str(caught.value)


def test_a_module_that_is_one_function_is_bounded() -> None:
    assert bound(fickle(lambda x: False)).isfinite().all()


def test_layouts_that_a_module_does_not_take_do_no_harm() -> None:
    class Viewed(Fickle):
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.view(len(x), -1))

    encoder = Encoder(Viewed(lambda x: False).eval(), "viewed", Domain(SHAPE))
    with pytest.raises(RuntimeError, match="view"):
        encoder.forward(torch.rand(2, *SHAPE).mT.contiguous().mT)
    assert bound(encoder).isfinite().all()


def test_a_copy_in_double_precision_that_does_not_round_hides_nothing() -> None:
    """Rounding to half precision moves codes by less than the comparison of codes would find."""

    class Rounded(Fickle):
        def forward(self, x: Tensor) -> Tensor:
            return self.linear((x.half().float() if x.dtype == torch.float32 else x).flatten(1))

    with pytest.raises(HoldfastError, match=r"rounded .*torch\.float16 .*torch\.float32"):
        bound(Encoder(Rounded(lambda x: False).eval(), "rounded", Domain(SHAPE)))


def test_autocast_of_single_precision_alone_is_refused() -> None:
    class Autocast(Fickle):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=x.dtype == torch.float32):
                return self.linear(x.flatten(1)).relu()

    with pytest.raises(HoldfastError, match=r"computes under autocast in torch\.bfloat16"):
        bound(Encoder(Autocast(lambda x: False).eval(), "autocast", Domain(SHAPE)))


def test_a_counter_of_calls_in_single_precision_is_refused() -> None:
    class Counted(Fickle):
        count = 0

        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.float32:
                self.count += 1
            y = self.linear(x.flatten(1))
            return y if self.count < 10_000 else -y

    with pytest.raises(HoldfastError, match="changes its own 'count'"):
        bound(Encoder(Counted(lambda x: False).eval(), "counted", Domain(SHAPE)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_bounded_as_executed(dtype: torch.dtype) -> None:
    encoder = builtin().to("cpu", dtype)
    specifications, x = torch.ones(1, 1, 32, dtype=torch.float64), torch.full((1, 1, 8, 8), 0.5)
    bound = lower_bound(encoder, x, specifications, Linf(0.01))
    assert bound == lower_bound(encoder, x, specifications, Linf(0.01), arithmetic="executed")
    assert bound < lower_bound(encoder.to("cpu", torch.float64), x, specifications, Linf(0.01)) - 0.01
    with pytest.raises(HoldfastError, match="computed in float64"):
        certified_radius(encoder, x, specifications.float(), Linf(0.01))


def test_a_graph_of_real_numbers_is_not_that_of_half_precision() -> None:
    with pytest.raises(HoldfastError, match=r"weights in torch\.bfloat16 .*rounding that no bound accounts for"):
        trace(builtin().to("cpu", torch.bfloat16))


def test_one_weight_in_half_precision_is_enough() -> None:
    encoder = fickle(lambda x: False).to("cpu", torch.float64)
    encoder.module.register_buffer("shift", torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(HoldfastError, match=r"weights in torch\.bfloat16 \(shift\)"):
        bound(encoder)


@contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield


def test_bounds_within_autocast_are_refused() -> None:
    with autocast(), pytest.raises(HoldfastError, match=r"under autocast in torch\.bfloat16"):
        bound(fickle(lambda x: False))


def in_place(module: Any) -> None:
    with torch.no_grad():
        module.linear.weight.neg_()


def behind_autograd(module: Any) -> None:
    module.linear.weight.data.neg_()


def another_tensor(module: Any) -> None:
    module.linear.weight.data = -module.linear.weight.data


def of_numpy(module: Any) -> None:
    module.linear.weight.data.numpy()[:] *= -1


def another_parameter(module: Any) -> None:
    module.linear.weight = nn.Parameter(-module.linear.weight.data, requires_grad=False)


def loaded(module: Any) -> None:
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})


def buffer(module: Any) -> None:
    module.scale.mul_(-1)


def attribute(module: Any) -> None:
    module.gain = -1.0


class Scaled(nn.Module):
    """A linear map with a buffer and a number beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gain = nn.Linear(32, 2), 1.0
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)) * self.scale * self.gain


EDITS = (in_place, behind_autograd, another_tensor, of_numpy, another_parameter, loaded, buffer, attribute)


@pytest.mark.parametrize("dtype", rest_slow([torch.float64, torch.float32]))
@pytest.mark.parametrize("edit", rest_slow(EDITS, fast=4), ids=lambda edit: edit.__name__)
def test_weights_that_were_edited_get_bounds_of_their_own(
    edit: Callable[[nn.Module], None], dtype: torch.dtype
) -> None:
    encoder = Encoder(Scaled().eval(), "scaled", Domain(SHAPE))
    x, specifications = torch.full((1, *SHAPE), 0.5), torch.ones(1, 1, 2, dtype=dtype)
    first = lower_bound(encoder, x, specifications, Linf(1e-4))
    edit(encoder.module)
    value = encoder.forward(x).sum().to(dtype)
    assert torch.allclose(lower_bound(encoder, x, specifications, Linf(1e-4))[0, 0], value, atol=0.01)
    assert not torch.allclose(first[0, 0], value, atol=0.05), "vacuous"


def test_an_encoder_that_stays_as_it_is_is_traced_once() -> None:
    encoder = builtin()
    assert trace(encoder) is trace(encoder)


def test_what_tensor_cores_round_is_allowed_for_where_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert rounding(torch.float32, gpu) == TENSOR_CORES
    assert rounding(torch.float32, cpu) == torch.finfo(torch.float32).eps
    assert rounding(torch.float64, gpu) == torch.finfo(torch.float64).eps
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert rounding(torch.float32, gpu) == torch.finfo(torch.float32).eps
