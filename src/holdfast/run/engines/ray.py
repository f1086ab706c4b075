"""Shards on a Ray cluster (https://docs.ray.io), in actors that keep the context of their tasks.

If an actor is lost, alone or with its machine, another one computes its shard, and a new actor is requested. Ray's own
restarts are not used: a shard would wait for its actor's machine while others are idle.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any, final

from holdfast.core.errors import HoldfastError, explained, first_line
from holdfast.encoders.loading.inputs import declare_missing_operators, operators_are_declared
from holdfast.run.engines.base import Context, Outcomes, Output, Task, Unit

RETRIES = 3
"""Actors that may be lost in a row without a finished shard in between."""


class Worker:
    """Keeps its context until that changes."""

    def __init__(self) -> None:
        self.reference, self.context = "", None

    def begin(self) -> None:
        """Return once there is room for this actor."""

    def apply(self, task: Callable[[Any, Any], Any], where: Sequence[Any], shard: Any, declared: bool) -> Any:
        """Return what ``task`` makes of ``shard`` and of the one object that ``where`` refers to.

        ``declared``: whether torchvision's operators must be declared before that object is read.
        """
        import ray

        if self.reference != where[0].hex():
            if declared:
                declare_missing_operators()
            self.context = None  # so that both are never in memory
            self.reference, self.context = where[0].hex(), ray.get(where[0])
        return task(self.context, shard)


@final
@dataclass(frozen=True)
class Ray:
    """Computes on the Ray cluster at ``address``: ``auto`` finds the one around this machine, ``local`` starts one here.

    Args:
        address: of the cluster, as ``ray.init`` takes it.
        gpus: how many (or which fraction of one) each actor needs; without, it needs a CPU.
    """

    address: str = "auto"
    gpus: float = 0.0
    _sent: list[tuple[Any, Any]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The last context, and where the cluster has it."""
    _actors: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    """Actors that have begun."""

    def map(
        self, task: Task[Context, Unit, Output], context: Context, shards: Iterable[Unit]
    ) -> Outcomes[Unit, Output]:
        ray = self.connected()
        if not self._sent or self._sent[0][0] is not context:
            self._sent[:] = [(context, ray.put(context))]
        coming, left, idle, losses = iter(shards), deque[Unit](), list(self._actors), 0
        waiting: dict[Any, tuple[Any, list[Unit]]] = {}
        resources, finished = ray.cluster_resources(), list[tuple[Unit, Output]]()
        # As many actors as fit into the whole cluster.
        room = max(1, int(resources.get("GPU", 0.0) / self.gpus if self.gpus else resources.get("CPU", 1.0)))
        try:
            while True:
                at_work = sum(len(shards_of_actor) for _, shards_of_actor in waiting.values())
                left.extend(islice(coming, max(0, room - at_work - len(left))))
                while left and idle:
                    actor, shard = idle.pop(), left.popleft()
                    answer = actor.apply.remote(task, [self._sent[0][1]], shard, operators_are_declared())
                    waiting[answer] = actor, [shard]
                for _ in range(len(left) - sum(not shards_of_actor for _, shards_of_actor in waiting.values())):
                    hired = ray.remote(num_cpus=0 if self.gpus else 1, num_gpus=self.gpus, max_restarts=0)(Worker)
                    actor = hired.remote()
                    waiting[actor.begin.remote()] = actor, []
                yield from finished  # while the actors go on
                finished.clear()
                if not left and not any(shards_of_actor for _, shards_of_actor in waiting.values()):
                    return
                done = ray.wait(list(waiting))[0][0]
                actor, shards_of_actor = waiting.pop(done)
                try:
                    value, losses = ray.get(done), 0
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except ray.exceptions.RayActorError as error:
                    losses += 1
                    if losses > RETRIES:
                        raise HoldfastError(
                            f"Ray lost {losses} workers in a row ({error}); check the memory, or use fewer"
                        ) from error
                    self._actors[:] = [other for other in self._actors if other is not actor]
                    left.extendleft(shards_of_actor)
                    continue
                except ray.exceptions.RayError as error:  # a machine that is gone, or the whole cluster
                    raise HoldfastError(
                        f"the Ray cluster lost what it was given ({first_line(error)}); look whether its machines are "
                        "alive, then run the same command again, which goes on from what is kept"
                    ) from error
                if not shards_of_actor:
                    self._actors.append(actor)
                idle.append(actor)
                finished.extend((shard, value) for shard in shards_of_actor)
        finally:
            for actor, _ in waiting.values():  # at work, which nothing else stops, or not begun for lack of room
                ray.kill(actor)
                self._actors[:] = [other for other in self._actors if other is not actor]

    def connected(self) -> ModuleType:
        """Return Ray, connected to the cluster.

        Raises:
            HoldfastError: Ray is not installed, or there is no such cluster.
        """
        with explained("a cluster needs Ray", "pip install ray", ImportError):
            import ray
        if not ray.is_initialized():
            handler = signal.getsignal(signal.SIGTERM)
            fix = "start one with `ray start --head`, or use 'local'"
            try:
                with explained(f"no Ray cluster at {self.address!r}", fix, ConnectionError, ValueError):
                    ray.init(address=self.address, log_to_driver=False, include_dashboard=False)
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)  # Ray's own ends all without a word
        return ray
