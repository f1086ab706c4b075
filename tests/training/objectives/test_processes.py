"""Several processes that share a batch take the step that one takes alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from holdfast.training.learner import TrainingObjective
from holdfast.training.objectives.barlow_twins import BarlowTwins
from holdfast.training.objectives.deepcluster_v2 import DeepClusterV2
from holdfast.training.objectives.dino import DINO
from holdfast.training.objectives.distillation import Distillation
from holdfast.training.objectives.mae import MAE
from holdfast.training.objectives.swav import SwAV
from holdfast.training.objectives.vicreg import VICReg
from tests.training.objectives import batches

SMALL: list[TrainingObjective] = [
    BarlowTwins(hidden=8, projection=7),
    VICReg(hidden=8, projection=7),
    DeepClusterV2(prototypes=4, hidden=8, projection=5),
    DINO(prototypes=9, hidden=8, projection=5),
    Distillation(clean=1.0),
    MAE(patch=2, decoder_width=8),
    SwAV(prototypes=5, hidden=8, projection=4, queue=6, queue_epoch=0),
]
PROCESSES = 2


def step(objective: TrainingObjective, first: int, size: int) -> list[torch.Tensor]:
    """Return the gradients of this process's part of a batch, averaged over processes, and the state after the step."""
    # In eval mode, for the statistics of batch norm are those of a process.
    learner = batches.learner(objective).eval()
    learner.before_epoch(0, lambda: torch.arange(72.0, dtype=torch.float64).reshape(12, 6).sin())
    gradients = batches.gradients(learner(batches.batch(size, attacked=True, first=first)), learner)
    if dist.is_initialized():
        for gradient in gradients:
            dist.all_reduce(gradient.div_(PROCESSES))
    learner.after_step(0.5)
    return [*gradients, *learner.buffers()]


def process(rank: int, meeting: Path, results: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES, timeout=timedelta(seconds=60)
    )
    share = 8 // PROCESSES
    stepped = {objective.name: step(objective, rank * share, share) for objective in SMALL}
    torch.save(stepped, results / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_together_take_the_step_of_one(tmp_path: Path) -> None:
    multiprocessing.start_processes(process, (tmp_path / "meeting", tmp_path), PROCESSES, start_method="spawn")
    for rank in range(PROCESSES):
        together = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for objective in SMALL:
            alone = step(objective, 0, 8)
            assert float(alone[0].abs().max()) > 0, "vacuous"
            torch.testing.assert_close(together[objective.name], alone, msg=lambda text, of=objective: f"{of}: {text}")
