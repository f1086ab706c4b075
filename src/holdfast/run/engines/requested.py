"""Choice of the engine and the devices of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypedDict

import torch

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.options import Workers
from holdfast.measure.population import Population
from holdfast.run.engines.base import Engine, Local
from holdfast.run.engines.processes import Processes, automatic
from holdfast.run.engines.ranks import LEASES, RANKS, Ranks, process_rank
from holdfast.run.engines.ray import Ray

THREADED = 400_000_000
"""Bytes of weights above which one process with many threads computes an encoder: a copy in each worker fills the memory."""


class Devices(TypedDict, total=False):
    """Devices of a run."""

    device: str
    workers: str


def devices_of(cluster: str | None, device: str, workers: Workers = None) -> Devices:
    """Return where a run computes: on ``device``, here or else in workers that alone have it.

    Ranks on one machine take its GPUs in turn, unless one of them is named.
    """
    if cluster == RANKS:
        return Devices(
            device=f"cuda:{process_rank()[2] % max(1, torch.cuda.device_count())}" if device == "cuda" else device
        )
    several = isinstance(workers, int) and workers > 1
    return Devices(device=device) if cluster is None and not several else Devices(workers=device)


def check_cluster(verb: str, cluster: str | None, out: str | Path | None) -> None:
    """Raise if ``cluster`` asks for Slurm jobs, which repeat a command line, or for ranks that have no folder to meet in.

    Example:
        >>> check_cluster("attack", "slurm:ranks=8", None)
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: Slurm jobs repeat a command, which a call in Python is not; write it as ...
    """
    if cluster is not None and not isinstance(cluster, str):
        raise HoldfastError(f"cluster is text: auto, local, ranks or an address, got {cluster!r}")
    if cluster is not None and cluster.partition(":")[0] == "slurm":
        raise HoldfastError(
            "Slurm jobs repeat a command, which a call in Python is not; write it as "
            f"holdfast {verb} --cluster {cluster}, or start the same program on every node with cluster='ranks'"
        )
    if out is None and cluster == RANKS:
        raise HoldfastError("ranks meet in a folder that all of them see; name it as out")


def engine_of(cluster: str | None, device: str, workers: Workers, folder: Path) -> Engine:
    """Return the engine: this process, workers of this machine, ranks that share ``folder``, or a Ray cluster.

    Raises:
        HoldfastError: workers are asked for where they are of no use, or are no number of processes.
    """
    counted = isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1
    if not (counted or workers in (None, "auto")):
        raise OutOfRange("workers", workers, "a number of processes, at least 1, or 'auto'")
    if isinstance(workers, int) and (cluster is not None or device not in ("cpu", "cuda")):
        raise HoldfastError(
            "--workers are processes on the CPUs of this machine, or with --device cuda one for each of its GPUs; leave "
            "--cluster and any other --device out, or --workers"
        )
    if isinstance(workers, int) and workers != 1:
        count = torch.cuda.device_count() if device == "cuda" else 0
        if device == "cuda" and not count:
            raise HoldfastError("device 'cuda' was asked for but torch sees no GPU; use --device cpu")
        names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
        return Processes(workers, names[:count])
    if cluster is None:
        return automatic(threaded) if workers == "auto" and device == "cpu" else Local()
    if cluster == RANKS:
        rank, count, _ = process_rank()
        return Ranks(rank, count, folder / LEASES)
    if device.startswith("cuda:"):
        raise HoldfastError(
            f"each actor of a cluster gets a GPU of its own, which it knows as cuda; give --device cuda instead of {device}"
        )
    return Ray(cluster, gpus=1.0 if device.startswith("cuda") else 0.0)


def threaded(context: Any) -> bool:
    """Return whether threads of this process do the tasks in ``context``."""
    return isinstance(context, Population) and left_to_threads(context.encoder)


def left_to_threads(encoder: Encoder) -> bool:
    """Return whether this process's threads compute ``encoder``.

    They do if it has too many weights, and for stored embeddings: a worker would need a copy of every id and has almost
    nothing to do.
    """
    return encoder.codes_only or sum(weights.nbytes for weights in encoder.module.parameters()) > THREADED
