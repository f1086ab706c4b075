"""What processes agree on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes

from holdfast.training.processes import rank, share_statistics, somewhere


def work(own_rank: int, folder: str, number: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=own_rank, world_size=number)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4, affine=False)))
    network(torch.randn(8, 3, generator=torch.Generator().manual_seed(rank())))
    own = {name: buffer.clone() for name, buffer in network.named_buffers()}
    share_statistics(network)
    flags = [somewhere(flag, torch.device("cpu")) for flag in (False, rank() == 1, True)]
    torch.save((own, dict(network.named_buffers()), flags), f"{folder}/{rank()}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_all_have_the_running_statistics_of_the_first_and_stop_together(tmp_path: Path) -> None:
    start_processes(work, (str(tmp_path), 2), nprocs=2, start_method="fork")
    (own, first, flags), (other, second, others) = (torch.load(tmp_path / str(number)) for number in (0, 1))
    assert not torch.equal(own["1.running_mean"], other["1.running_mean"]), "vacuous: the same batch"
    for name in own:
        assert torch.equal(first[name], own[name])
        assert torch.equal(second[name], own[name])
    assert flags == others == [False, True, True]


def test_alone_there_is_nobody_to_ask() -> None:
    network = nn.BatchNorm1d(2)
    share_statistics(network)
    assert not network.get_buffer("running_mean").any()
    assert [somewhere(flag, torch.device("cpu")) for flag in (False, True)] == [False, True]
