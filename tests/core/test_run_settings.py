"""The world an evaluation is given, and batches that halve when memory runs out."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.run_settings import PRECISIONS, Observed, RunSettings
from tests.facts import refused, warned

VALUES = torch.arange(23.0)
Full = Callable[[], RuntimeError | MemoryError]
"""Makes the error of a full memory."""


def squares(rows: Sequence[int]) -> Observed:
    return {"value": VALUES[list(rows)].square(), "pair": torch.stack([VALUES[list(rows)]] * 2, dim=1)}


def within(
    limit: int, sizes: list[int], error: Callable[[], RuntimeError | MemoryError]
) -> Callable[[Sequence[int]], Observed]:
    """Return ``squares`` for a machine whose memory holds ``limit`` samples; ``sizes`` notes what was tried."""

    def work(rows: Sequence[int]) -> Observed:
        sizes.append(len(rows))
        if len(rows) > limit:
            raise error()
        return squares(rows)

    return work


def torch_out_of_memory() -> RuntimeError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def really_out_of_memory() -> RuntimeError:
    """Return what this torch raises when the machine itself has no memory left."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize("batch_size", [1, 2, 7, 23, 1000])
def test_batches_change_nothing(batch_size: int):
    sizes: list[int] = []
    found = RunSettings(batch_size=batch_size).batches(range(23), within(batch_size, sizes, torch_out_of_memory))
    assert torch.equal(found["value"], VALUES.square())
    assert found["pair"].shape == (23, 2)
    assert max(sizes) == min(batch_size, 23)
    assert sum(sizes) == 23


def no_memory() -> MemoryError:
    """Return what Python and numpy raise."""
    return MemoryError("Unable to allocate 20.0 GiB for an array")


def cuda_without_memory() -> RuntimeError:
    """Return what libraries under torch say in their own words."""
    return RuntimeError("CUDA error: out of memory")


@pytest.mark.filterwarnings("ignore:a batch does not fit")
@pytest.mark.parametrize("error", [torch_out_of_memory, really_out_of_memory, no_memory, cuda_without_memory])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_running_out_of_memory_halves_the_batch_and_loses_no_row(
    limit: int, error: Callable[[], RuntimeError | MemoryError]
):
    sizes: list[int] = []
    found = RunSettings(batch_size=16).batches(range(23), within(limit, sizes, error))
    assert torch.equal(found["value"], VALUES.square())
    assert sizes[0] == 16, "vacuous fixture"
    assert sum(size for size in sizes if size <= limit) == 23
    assert all(later <= earlier for earlier, later in pairwise(sizes))


def test_what_fits_is_remembered_and_said_once():
    run, sizes = RunSettings(batch_size=16), list[int]()
    work = within(5, sizes, no_memory)
    with warned(HoldfastWarning, "4 samples", "untargeted", "memory") as said:
        run.batches(range(23), work, "untargeted of mine")
    assert len(said) == 1, "16, 8 and 4 were tried, which nobody needs to know"
    sizes.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.batches(range(23), work, "untargeted of mine")
    assert max(sizes) == 4
    assert run == RunSettings(batch_size=16), "it is no setting"
    sizes.clear()
    run.batches(range(5), within(23, sizes, no_memory), "codes of mine")
    assert sizes == [5], "other work has its own memory"


def test_the_failed_attempt_is_let_go_before_the_next():
    """An error holds the frames it passed through, and these their tensors, for as long as it is handled."""
    held: list[weakref.ref[Tensor]] = []

    def work(rows: Sequence[int]) -> Observed:
        assert all(one() is None for one in held)
        big = torch.zeros(len(rows))
        held.append(weakref.ref(big))
        if len(rows) > 2:
            raise MemoryError(f"no room for {big.numel()}")
        return squares(rows)

    with pytest.warns(HoldfastWarning, match="does not fit"):
        RunSettings(batch_size=8).batches(range(8), work)
    assert len(held) == 2 + 4, "8 and 4 at a time, then 2"


@pytest.mark.filterwarnings("ignore:a batch does not fit")
def test_memory_may_run_out_late():
    calls = 0

    def work(rows: Sequence[int]) -> Observed:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise torch_out_of_memory()
        return squares(rows)

    assert torch.equal(RunSettings(batch_size=8).batches(range(23), work)["value"], VALUES.square())
    assert calls == 3 + 3, "batches of 8, 8, 7 (which fails), 3, 3 and 1"


@pytest.mark.parametrize("batch_size", [1, 64])
def test_one_sample_that_does_not_fit_is_said_so(batch_size: int):
    sizes: list[int] = []
    with refused(HoldfastError, "smaller", "encoder"):
        RunSettings(batch_size=batch_size).batches([4], within(0, sizes, torch_out_of_memory))


def test_other_failures_are_not_hidden():
    sizes: list[int] = []
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        RunSettings(batch_size=8).batches(
            range(23), within(3, sizes, lambda: RuntimeError("mat1 and mat2 do not match"))
        )
    assert sizes == [8]


def test_rows_are_passed_on_as_given():
    found = RunSettings(batch_size=2).batches([5, 3, 3, 0], squares)
    assert found["value"].tolist() == [25, 9, 9, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "float"}, "precision.*'float'.*bfloat16, float16, float32, float64"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"device": "gpu"}, "device.*'gpu'.*cpu, cuda"),
    ],
)
def test_impossible_worlds_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(HoldfastError, match=message):
        RunSettings(**settings)


def test_a_missing_gpu_is_said_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(HoldfastError, "'cuda:1'", "GPU", "--device", "device"):
        RunSettings(device="cuda:1")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions_are_torch_types(precision: str):
    assert str(RunSettings(precision=precision).dtype) == f"torch.{precision}"


def test_noise_follows_the_seed_and_the_ids():
    one = RunSettings(seed=3, batch_size=5).noise(["a", "b"])
    assert torch.equal(one.keys, RunSettings(seed=3).noise(["a", "b"]).keys)
    assert not torch.equal(one.keys, RunSettings(seed=4).noise(["a", "b"]).keys)


def test_a_device_that_cannot_compute_is_refused():
    with pytest.raises(HoldfastError, match=r"device 'meta' cannot be used \(.*\); use --device cpu"):
        RunSettings(device="meta")


def test_a_gpu_that_is_not_there_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert RunSettings(device="cuda:1").device == "cuda:1"
    with refused(HoldfastError, "'cuda:2'", "cuda:0", "cuda:1", "device"):
        RunSettings(device="cuda:2")
