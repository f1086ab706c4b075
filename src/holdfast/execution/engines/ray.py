"""Shards on a Ray cluster (https://docs.ray.io). A lost worker costs the shards it held: Ray computes them again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, final

from holdfast.core.errors import HoldfastError
from holdfast.execution.engines.base import Done, Given, Shard


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
    _sent: list[tuple[Any, Any]] = field(default_factory=list, init=False, repr=False, compare=False)
    """What was given last, and where the cluster has it."""

    def map(
        self, task: Callable[[Given, Shard], Done], given: Given, shards: Iterable[Shard]
    ) -> Generator[tuple[Shard, Done], None, None]:
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
        if not self._sent or self._sent[0][0] is not given:
            self._sent[:] = [(given, ray.put(given))]
        apply: Any = ray.remote(num_gpus=self.gpus, max_retries=self.retries)(task)
        coming, waiting = iter(shards), dict[Any, Shard]()
        try:
            while True:
                for shard in islice(coming, self._room(ray.cluster_resources()) - len(waiting)):
                    waiting[apply.remote(self._sent[0][1], shard)] = shard
                if not waiting:
                    return
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

    def _room(self, resources: Mapping[str, float]) -> int:
        """Return how many shards are worked on at a time, and one more, so that no worker waits for the next."""
        return 1 + max(1, int(resources.get("GPU", 0.0) / self.gpus if self.gpus else resources.get("CPU", 1.0)))
