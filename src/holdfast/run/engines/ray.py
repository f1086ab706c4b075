"""Shards on a Ray cluster (https://docs.ray.io), in actors that keep the context of their tasks.

If an actor is lost, alone or with its machine, another one computes its shard, and a new actor is requested. Ray's own
restarts are not used: a shard would wait for its actor's machine while others are idle. An idle actor computes again what
a slow one holds for too long, and the first answer counts.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from types import ModuleType
from typing import Any, final

from holdfast.core.errors import HoldfastError, explained, first_line
from holdfast.encoders.loading.inputs import declare_missing_operators, operators_are_declared
from holdfast.run.engines.base import Context, Outcomes, Output, Task, Unit
from holdfast.run.engines.ranks import LATE, SOONEST

RETRIES = 3
"""Actors that may be lost in a row without a finished shard in between."""
LOOK = 0.5
"""Seconds between two looks at whether a shard is late, while an actor is idle."""


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


@dataclass(frozen=True)
class _Task:
    """What an actor was asked for: the shard at ``place``, or None: to begin."""

    actor: Any
    place: int | None
    began: float = field(default_factory=monotonic)


def _late(ray: ModuleType, waiting: Mapping[Any, _Task], among: Set[int], patience: float | None) -> list[int]:
    """Return shards whose actors have taken longer than ``patience``, the oldest first; none without patience."""
    if patience is None:
        return []
    _, at_work = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
    tasks = [waiting[answer] for answer in at_work]
    old = [each for each in tasks if each.place in among and monotonic() - each.began > patience]
    return [each.place for each in sorted(old, key=lambda each: each.began) if each.place is not None]


def _value(ray: ModuleType, answer: Any) -> Any:
    """Return an actor's answer; what the task raised is raised as in this process."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayActorError:
        raise
    except ray.exceptions.RayError as error:  # a machine that is gone, or the whole cluster
        raise HoldfastError(
            f"the Ray cluster lost what it was given ({first_line(error)}); look whether its machines are alive, then run "
            "the same command again, which goes on from what is kept"
        ) from error


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
        coming, left, idle, losses = iter(enumerate(shards)), deque[int](), list(self._actors), 0
        unfinished, longest, repeated = dict[int, Unit](), 0.0, set[int]()
        waiting, finished = dict[Any, _Task](), list[tuple[Unit, Output]]()
        room = self._room(ray)
        try:
            while True:
                begun = dict(islice(coming, max(0, room - len(unfinished))))
                unfinished |= begun
                left.extend(begun)
                patience = None if left or not idle or not longest else max(SOONEST, LATE * longest)
                late = _late(ray, waiting, unfinished.keys() - repeated, patience)[: len(idle)]
                left.extend(late)
                repeated.update(late)
                while left and idle:
                    if (place := left.popleft()) not in unfinished:  # a copy of it was faster
                        continue
                    actor = idle.pop()
                    where = [self._sent[0][1]]
                    answer = actor.apply.remote(task, where, unfinished[place], operators_are_declared())
                    waiting[answer] = _Task(actor, place)
                for _ in range(len(left) - sum(each.place is None for each in waiting.values())):
                    actor = self._hire(ray)
                    waiting[actor.begin.remote()] = _Task(actor, None)
                yield from finished  # while the actors go on
                finished.clear()
                if not unfinished:
                    return
                answers, _ = ray.wait(list(waiting), timeout=LOOK if patience else None)
                if not answers:
                    continue
                done = waiting.pop(answers[0])
                superseded = done.place is not None and done.place not in unfinished
                try:
                    value, losses = _value(ray, answers[0]), 0
                except Exception as error:
                    if not superseded and not isinstance(error, ray.exceptions.RayActorError):
                        raise
                    self._actors[:] = [other for other in self._actors if other is not done.actor]
                    if superseded:  # its answer is no longer needed, nor is an actor that fails
                        ray.kill(done.actor)
                        continue
                    losses += 1
                    if losses > RETRIES:
                        raise HoldfastError(
                            f"Ray lost {losses} workers in a row ({error}); check the memory, or use fewer"
                        ) from error
                    if done.place is not None:  # a copy of it, if there is one, may stand still
                        left.appendleft(done.place)
                    continue
                if done.place is None:
                    self._actors.append(done.actor)
                elif done.place in unfinished:  # the first answer of several
                    finished.append((unfinished.pop(done.place), value))
                    longest = max(longest, monotonic() - done.began)
                idle.append(done.actor)
        finally:
            for each in waiting.values():  # at work, which nothing else stops, or not begun for lack of room
                ray.kill(each.actor)
                self._actors[:] = [other for other in self._actors if other is not each.actor]

    def _room(self, ray: ModuleType) -> int:
        """Return how many actors fit into the whole cluster."""
        resources = ray.cluster_resources()
        return max(1, int(resources.get("GPU", 0.0) / self.gpus if self.gpus else resources.get("CPU", 1.0)))

    def _hire(self, ray: ModuleType) -> Any:
        return ray.remote(num_cpus=0 if self.gpus else 1, num_gpus=self.gpus, max_restarts=0)(Worker).remote()

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
