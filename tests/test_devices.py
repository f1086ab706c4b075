"""What one device computes another confirms: run with ``--device cuda`` where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from holdfast.core.run_settings import RunSettings
from holdfast.protocol.evaluation import Evaluation
from tests.samples import builtin, digits
from tests.test_laws import COUNT, every, same


@pytest.fixture(autouse=True)
def _present(device: str) -> None:
    if device == "cpu":
        pytest.skip("compares a GPU with the CPU: give --device cuda")


@every
def test_devices_agree(evaluation: Evaluation, device: str) -> None:
    here = evaluation(builtin(), digits(COUNT), RunSettings(precision="float64"))
    there = evaluation(builtin(), digits(COUNT), RunSettings(precision="float64", device=device))
    assert same(here, there, 1e-6)


@every
def test_batch_size_changes_nothing_there_either(evaluation: Evaluation, device: str) -> None:
    whole = evaluation(builtin(), digits(COUNT), RunSettings(precision="float64", device=device))
    parts = evaluation(builtin(), digits(COUNT), RunSettings(precision="float64", device=device, batch_size=3))
    assert same(whole, parts, 1e-6)


def test_memory_that_runs_out_halves_the_batch(device: str) -> None:
    """A batch that cannot fit is cut until it does, and every row comes back once."""
    limit = torch.cuda.get_device_properties(device).total_memory // 3

    def hungry(rows: Sequence[int]) -> dict[str, torch.Tensor]:
        chosen = list(rows)
        scratch = torch.empty(len(chosen) * limit, dtype=torch.uint8, device=device)
        return {"row": torch.tensor(chosen) + 0 * scratch[:1].long().cpu()}

    seen = RunSettings(device=device, batch_size=8).batches(range(8), hungry)
    assert seen["row"].tolist() == list(range(8))
