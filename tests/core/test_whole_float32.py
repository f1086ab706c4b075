"""Convolutions in float32 keep all of it while runs compute, and torch's setting is put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.core.records import Findings
from holdfast.core.run_settings import RunSettings, factors_are_rounded, without_tf32
from tests.samples import builtin, digits


@pytest.mark.parametrize("before", [True, False])
def test_batches_are_computed_whole_and_the_setting_is_put_back(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    seen = RunSettings(batch_size=2).batches(
        range(3), lambda rows: {"allowed": torch.full((len(rows),), torch.backends.cudnn.allow_tf32)}
    )
    assert not seen["allowed"].any()
    assert torch.backends.cudnn.allow_tf32 is before
    with pytest.raises(ZeroDivisionError):
        RunSettings().batches([0], lambda _: {"never": torch.tensor(1 / 0)})
    assert torch.backends.cudnn.allow_tf32 is before


def test_conclusions_are_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    seen, concluded = [], Displacement.conclude

    def conclude(self: Displacement, *given: Any) -> Findings:
        seen.append(torch.backends.cudnn.allow_tf32)
        return concluded(self, *given)

    monkeypatch.setattr(Displacement, "conclude", conclude)
    Displacement()(builtin(), digits(4))
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32


def test_whoever_set_the_newer_interface_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch refuses to read the older interface then."""

    class Newer:
        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch.backends, "cudnn", Newer())
    with without_tf32():
        assert len(builtin()(digits(2).pixels([0, 1]))) == 2


def test_either_interface_says_whether_factors_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert factors_are_rounded()
    with without_tf32():
        assert not factors_are_rounded()

    class Newer:
        conv = SimpleNamespace(fp32_precision="ieee")

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch.backends, "cudnn", Newer())
    assert not factors_are_rounded()
    Newer.conv.fp32_precision = "tf32"
    assert factors_are_rounded()
