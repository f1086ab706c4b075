"""Where a command computes: with other processes under torchrun or srun, as Slurm jobs, or as its flags state."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, final

from holdfast.core.errors import HoldfastError, explained
from holdfast.core.settings import read
from holdfast.run.engines.ranks import RANKS, process_rank

EXECUTOR = "slurm"
"""What submitit (https://github.com/facebookincubator/submitit) hands jobs to."""


@final
@dataclass(frozen=True)
class Slurm:
    """Jobs of the same command that share its folder, each with its own time, CPUs, GPUs and memory."""

    name: ClassVar[str] = "slurm"
    ranks: int = 2
    """How many jobs."""
    timeout: int = 60
    """Minutes after which Slurm ends a job, which is then submitted again."""
    cpus: int = 1
    gpus: int = 0
    memory: float | None = None
    """Gigabytes."""
    partition: str | None = None
    account: str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return what submitit calls these."""
        return {
            "name": "holdfast",
            "timeout_min": self.timeout,
            "cpus_per_task": self.cpus,
            "gpus_per_node": self.gpus or None,
            "mem_gb": self.memory,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
        }


@dataclass
class JobsRequestedError(Exception):
    """The command is to be carried out by jobs; their logs go to ``folder``."""

    slurm: Slurm
    folder: Path


@final
class Rank:
    """One job: this command as one of several ranks. A job that Slurm ends or preempts is submitted again."""

    def __call__(self, arguments: Sequence[str], rank: int, count: int) -> tuple[int, str]:
        """Return the exit status and what was printed."""
        from holdfast.cli.app import run

        os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK="0")
        with redirect_stdout(StringIO()) as printed:
            status = run([*_without_cluster(arguments), "--cluster", RANKS])
        return status, printed.getvalue()

    def checkpoint(self, *arguments: Any) -> Any:
        """Return what goes on where this job was ended: the same, for everything finished is in the folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def _without_cluster(arguments: Sequence[str]) -> list[str]:
    """Return ``arguments`` without ``--cluster`` and its value.

    Example:
        >>> _without_cluster(["spade", "a", "--cluster", "slurm:ranks=2", "--out", "b", "--cluster=local"])
        ['spade', 'a', '--out', 'b']
    """
    kept, skipped = list[str](), False
    for word in arguments:
        if not skipped and word != "--cluster" and not word.startswith("--cluster="):
            kept.append(word)
        skipped = word == "--cluster" and not skipped
    return kept


def cluster_of(cluster: str | None, workers: int | str | None, out: Path) -> str | None:
    """Return the ``cluster`` that is named, or else ``ranks`` where torchrun or srun started several processes.

    Raises:
        HoldfastError: torchrun started several processes, and each would start workers of its own.
        JobsRequestedError: jobs are to do the work.
    """
    if cluster is None and workers is None:
        return RANKS if process_rank()[1] > 1 else None
    if cluster != RANKS and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise HoldfastError("torchrun starts the processes that share the work; leave --cluster and --workers out")
    if cluster is not None and cluster.partition(":")[0] == Slurm.name:
        raise JobsRequestedError(read(cluster, {Slurm.name: Slurm}, "cluster"), out / ".slurm")
    return cluster


def submit(request: JobsRequestedError, arguments: Sequence[str]) -> int:
    """Have jobs carry out the command ``arguments``, wait for the first, show what it said and return its exit status.

    Raises:
        HoldfastError: submitit or Slurm is missing, or the first job did not end by itself.
    """
    with explained("--cluster slurm needs submitit", "pip install submitit", ImportError):
        import submitit
    fix = "use --workers here, or torchrun on each machine"
    with explained("there is no Slurm on this machine", fix, RuntimeError):
        executor = submitit.AutoExecutor(request.folder, cluster=EXECUTOR)
    executor.update_parameters(**request.slurm.parameters())
    count = request.slurm.ranks
    jobs = executor.map_array(Rank(), [list(arguments)] * count, range(count), [count] * count)
    print(f"{count} jobs are submitted, the first as {jobs[0].job_id}; logs in {request.folder}", file=sys.stderr)
    try:
        status, printed = jobs[0].result()
    except KeyboardInterrupt:
        for job in jobs:
            job.cancel()
        raise
    except (submitit.core.utils.FailedJobError, submitit.core.utils.UncompletedJobError) as error:
        raise HoldfastError(
            f"the first job did not end by itself; see {jobs[0].paths.stderr}, then run the same command again to continue"
        ) from error
    print(jobs[0].stderr() or "", end="", file=sys.stderr)
    print(printed, end="")
    return int(status)
