"""Shards on a Ray cluster (https://docs.ray.io). A lost worker costs the shards it held: Ray computes them again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, final

from holdfast.core.errors import HoldfastError
from holdfast.execution.engines.base import Done, Shard


@final
@dataclass(frozen=True)
class Ray:
    """Computes on the Ray cluster at ``address``: ``auto`` finds the one around this machine, ``local`` starts one here.

    Args:
        address: of the cluster, as ``ray.init`` takes it.
        gpus: how many (or which share of one) each shard needs.
        retries: how often a shard is tried again after its worker was lost.
    """

    address: str = "auto"
    gpus: float = 0.0
    retries: int = 3

    def map(self, task: Callable[[Shard], Done], shards: Sequence[Shard]) -> Generator[tuple[Shard, Done], None, None]:
        try:
            import ray
        except ImportError as error:
            raise HoldfastError("a cluster needs Ray: pip install ray") from error
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, log_to_driver=False, include_dashboard=False)
            except (ConnectionError, ValueError) as error:
                raise HoldfastError(
                    f"no Ray cluster at {self.address!r} ({error}); start one with `ray start --head`, or use 'local'"
                ) from error
        held = ray.put(task)
        apply: Any = ray.remote(num_gpus=self.gpus, max_retries=self.retries)(_apply)
        waiting = {apply.remote(held, shard): shard for shard in shards}
        try:
            while waiting:
                for done in ray.wait(list(waiting))[0]:
                    shard = waiting.pop(done)
                    try:
                        value = ray.get(done)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from error
                    yield shard, value
        finally:
            for unfinished in waiting:
                ray.cancel(unfinished)


def _apply(task: Callable[[Shard], Done], shard: Shard) -> Done:
    return task(shard)
