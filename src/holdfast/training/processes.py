"""Batches shared by the processes of one training run.

Each of ``P`` processes holds one ``P``-th of every batch, in order; together they hold the batch of a run in one process.
Losses are means over a process's own samples, compared with all samples. Gradients are averaged over processes, and a
gathered tensor passes gradients back to the process that made it, so the step equals that of a run in one process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather


def processes() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process among them, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def gathered(values: Shaped[Tensor, "b ..."]) -> Shaped[Tensor, "n ..."]:
    """Return what all processes hold, in the order of the batch; gradients pass."""
    if processes() == 1:
        return values
    if values.requires_grad and torch.is_grad_enabled():
        return torch.cat(all_gather(values))
    parts = [torch.empty_like(values) for _ in range(processes())]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)


def own_rows(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Positions of this process's samples among those of all processes.

    Args:
        count: Samples of this process.
    """
    return torch.arange(count, device=device) + rank() * count


def somewhere(flag: bool, device: torch.device) -> bool:
    """True if a flag is true in any process; all processes must call it."""
    if processes() == 1:
        return flag
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags)


def share_statistics(module: nn.Module) -> None:
    """Give all processes the running statistics of batch norm that the first has.

    Then attacks, scores and what is measured after an epoch see one encoder, though batches differ.
    """
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    buffers = [buffer for part in norms for buffer in part.buffers(recurse=False) if buffer.is_floating_point()]
    if processes() == 1 or not buffers:
        return
    everything = torch.cat([buffer.flatten() for buffer in buffers])
    dist.broadcast(everything, 0)
    for buffer, shared in zip(buffers, everything.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(shared.view_as(buffer))
