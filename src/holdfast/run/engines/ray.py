"""Shards on a Ray cluster (https://docs.ray.io), in actors that keep the context of their tasks.

If an actor is lost, alone or with its machine, another one computes its shard, and a new actor is requested. Ray's own
restarts are not used: a shard would wait for its actor's machine while others are idle. An idle actor computes again what
a slow one holds for too long, and the first answer counts.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from types import ModuleType
from typing import Any, final

from holdfast.core.errors import HoldfastError, explained, first_line
from holdfast.run.engines.base import Context, Outcomes, Output, Task, Unit
from holdfast.run.engines.ranks import LATE, SOONEST

RETRIES = 3
"""Actors that may be lost with one shard, or as they begin, for each that there is room for."""
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
            if declared:  # without torch until here, so that an actor begins at once
                from holdfast.encoders.loading.inputs import declare_missing_operators

                declare_missing_operators()
            self.context = None  # so that both are never in memory
            self.reference, self.context = where[0].hex(), ray.get(where[0])
        return task(self.context, shard)


@dataclass(frozen=True)
class _Work:
    """What an actor was asked for: the shard at ``place``, or None: to begin."""

    actor: Any
    place: int | None
    began: float = field(default_factory=lambda: monotonic())


@dataclass
class _Call:
    """Shards of one call of ``map``, by their places in it, and the actors at work on them."""

    ray: ModuleType
    actors: list[Any]
    """Actors that have begun, in this call or before."""
    room: int
    """How many actors fit into the cluster."""
    coming: Iterator[tuple[int, Any]]
    unfinished: dict[int, Any] = field(default_factory=dict)
    left: deque[int] = field(default_factory=deque)
    """Unfinished shards to be handed out, again where an actor was lost."""
    repeated: set[int] = field(default_factory=set)
    """Shards that two actors were given, because the first was slow."""
    waiting: dict[Any, _Work] = field(default_factory=dict)
    """Work that has not been answered."""
    losses: Counter[int | None] = field(default_factory=Counter)
    """How many actors each shard has cost, and how many were lost since one began."""
    longest: float = 0.0
    """Seconds that a shard took at most."""

    def __post_init__(self) -> None:
        self.idle, self.untried = list(self.actors), list(self.actors)

    def hand_out(self, begin: Callable[[Any, Any], Any], hire: Callable[[], Any]) -> None:
        """Give each idle actor a shard, by ``begin``, and ``hire`` actors for the shards that are left."""
        begun = dict(islice(self.coming, max(0, self.room - len(self.unfinished))))
        self.unfinished |= begun
        self.left.extend(begun)
        if not self.left:
            self.left.extend(late := self._late())
            self.repeated.update(late)
        while self.left and self.idle:
            actor, place = self.idle.pop(), self.left.popleft()
            self.waiting[begin(actor, self.unfinished[place])] = _Work(actor, place)
        for _ in range(len(self.left) - sum(each.place is None for each in self.waiting.values())):
            actor = hire()
            self.waiting[actor.begin.remote()] = _Work(actor, None)

    def _late(self) -> list[int]:
        """Return the oldest shards that take much longer than finished ones, as many as there are idle actors."""
        if not self.idle or not self.longest:
            return []
        patience, now = max(SOONEST, LATE * self.longest), monotonic()
        answered, _ = self.ray.wait(list(self.waiting), num_returns=len(self.waiting), timeout=0)
        old = [
            work.place
            for answer, work in self.waiting.items()
            if answer not in answered and now - work.began > patience
        ]
        late = [place for place in old if place in self.unfinished and place not in self.repeated]
        return late[: len(self.idle)]

    def answer(self) -> tuple[Any, Any] | None:
        """Wait, and return a shard with what was made of it, or None where nothing new is known of any.

        Raises:
            HoldfastError: actors are lost again and again, or the cluster is.
            Exception: what the task raised.
        """
        answers, _ = self.ray.wait(list(self.waiting), timeout=LOOK if self.idle else None)
        if not answers:
            return None
        work = self.waiting.pop(answers[0])
        superseded = work.place is not None and work.place not in self.unfinished
        try:
            value = _value(self.ray, answers[0])
        except Exception as error:
            if not superseded and not isinstance(error, self.ray.exceptions.RayActorError):
                raise
            self.dismiss(work.actor)  # also one that fails where its answer is no longer needed
            if not superseded:
                self._try_again(work, error)
            return None
        self.idle.append(work.actor)
        self.untried = [other for other in self.untried if other is not work.actor]
        if work.place is None:
            self.actors.append(work.actor)
            self.losses[None] = 0
        if work.place is None or superseded:
            return None
        self.longest = max(self.longest, monotonic() - work.began)
        self.left = deque(place for place in self.left if place != work.place)
        return self.unfinished.pop(work.place), value

    def _try_again(self, work: _Work, error: Exception) -> None:
        # An actor of an earlier call may have been lost before it was given this shard.
        self.losses[work.place] += all(other is not work.actor for other in self.untried)
        if self.losses[work.place] > RETRIES * (self.room if work.place is None else 1):  # all may begin on one machine
            doing = "as they began" if work.place is None else "with one piece of work"
            raise HoldfastError(
                f"Ray lost {self.losses[work.place]} workers {doing} ({first_line(error)}); check the memory, or use fewer"
            ) from error
        if work.place is not None and work.place not in self.left:  # a copy of it, if there is one, may stand still
            self.left.appendleft(work.place)

    def dismiss(self, actor: Any) -> None:
        """Stop ``actor``, which nothing else does while it is at work or waits for room."""
        self.ray.kill(actor)
        self.actors[:] = [other for other in self.actors if other is not actor]


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
        from holdfast.encoders.loading.inputs import operators_are_declared

        ray = self.connected()
        if not self._sent or self._sent[0][0] is not context:
            self._sent[:] = [(context, ray.put(context))]
        resources = ray.cluster_resources()
        room = int(resources.get("GPU", 0.0) / self.gpus if self.gpus else resources.get("CPU", 1.0))
        hired = ray.remote(num_cpus=0 if self.gpus else 1, num_gpus=self.gpus, max_restarts=0)(Worker)
        call, done = _Call(ray, self._actors, max(1, room), enumerate(shards)), None
        try:
            while True:
                call.hand_out(
                    lambda actor, shard: actor.apply.remote(task, [self._sent[0][1]], shard, operators_are_declared()),
                    hired.remote,
                )
                if done is not None:
                    yield done  # while the actors go on
                if not call.unfinished:
                    return
                done = call.answer()
        finally:
            for work in call.waiting.values():
                call.dismiss(work.actor)

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
