"""What is measured of an encoder, and what the C library is told."""

from __future__ import annotations

import sys

import pytest
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.run import plan
from holdfast.run.plan import keep_freed_memory
from tests.samples import builtin


def test_small_networks_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "gradient_seconds", lambda *_: pytest.fail("measured"))
    assert plan.attacked_together(builtin("digits-random")) == 1


def test_large_networks_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Conv2d(3, 64, 7, padding=3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    encoder = Encoder(network, "wide", Domain((3, 64, 64)), mean=(0.5,) * 3, std=(0.5,) * 3)
    batches: list[int] = []

    def seconds(_: Encoder, count: int) -> float:
        batches.append(count)
        return 0.02 + 0.01 * count

    monkeypatch.setattr(plan, "gradient_seconds", seconds)
    assert plan.attacked_together(encoder) == plan.attacked_together(encoder) == 8
    assert batches == [1, 2, 4, 8]


def test_an_encoder_that_cannot_be_measured_is_attacked_one_by_one() -> None:
    def fail(count: int) -> float:
        raise RuntimeError("no gradient")

    assert plan.fastest(fail) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is of Linux")
def test_whoever_told_the_c_library_otherwise_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("the C library was told something")

    monkeypatch.setattr("ctypes.CDLL", refuse)
    for name, value in (("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not keep_freed_memory.__wrapped__()  # which is asked once in a process
