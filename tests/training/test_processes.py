"""Two processes with half of each batch take the steps of one with all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes

from holdfast.training.learner import Learner, TrainingObjective, training_objectives
from holdfast.training.processes import own_rows, processes
from tests.training import tiny

STEPS = 3
State = dict[str, dict[str, Any]]


OBJECTIVES = [
    *training_objectives(),
    "supervised:uniformity=0.1",
    "swav:queue=12,queue_epoch=0",
    "distillation:clean=1",
]


def trained(text: str) -> dict[str, Any]:
    """What training leaves: gradients, the state, and this process's losses of single samples under attack."""
    objective = tiny.small(TrainingObjective.read(text))
    made = tiny.learner(objective).double()
    # Batch norm takes the statistics of a process's own images: here it takes none.
    for part in made.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()
    optimiser = tiny.optimiser(made)
    attackable = type(made).loss_under_attack is not Learner.loss_under_attack
    found: dict[str, Any] = {}
    for number in range(STEPS):
        data = tiny.batch(objective, number, torch.float64, attacked=attackable and number > 0)
        data = tiny.chosen(data, own_rows(tiny.IMAGES // processes()))
        optimiser.zero_grad()
        torch.manual_seed(number)
        made(data).backward()
        for weight in made.parameters():
            if weight.grad is not None and processes() > 1:
                dist.all_reduce(weight.grad)
                weight.grad /= processes()
        found |= {f"gradient {number} of {key}": weight.grad for key, weight in made.encoder.named_parameters()}
        made.before_step(number / STEPS)
        optimiser.step()
        made.after_step(number / STEPS)
    found |= made.state_dict()
    if attackable:
        with torch.no_grad():
            network, loss = made.eval().loss_under_attack(data)
            found["under attack"] = loss(network(data.views[0]))
    return found


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save({text: trained(text) for text in OBJECTIVES}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[State]:
    folder: Path = tmp_path_factory.mktemp("processes")
    start_processes(work, args=(str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_processes_take_the_steps_of_one(objective: str, together: list[State]) -> None:
    first, second = (state[objective] for state in together)
    alone = trained(objective)
    if "under attack" in alone:
        halves = first.pop("under attack"), second.pop("under attack")
        torch.testing.assert_close(torch.cat(halves), alone.pop("under attack"), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(first, alone, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(second, alone, rtol=1e-8, atol=1e-10)
