"""Which actor of a Ray cluster gets which shard, with a clock and a cluster made up for these tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.run.engines import ray as engine
from holdfast.run.engines.ray import Ray
from tests.run.engines.tasks import power

NEVER = float("inf")


class ActorLostError(Exception):
    """Stands for the error of a lost actor."""


class TaskError(Exception):
    """Stands for the error of a task."""

    cause = ValueError("the task failed")


class LostError(Exception):
    """Stands for every other error of Ray."""


@dataclass(eq=False)
class Answer:
    """What an actor answers at a time: a value, or an error."""

    at: float
    value: Any


@dataclass(eq=False)
class Actor:
    """An actor that takes what the plan of the cluster says; without one, a second for a shard and none to begin."""

    cluster: Cluster
    number: int
    apply: Any = None
    begin: Any = None

    def __post_init__(self) -> None:
        self.begin = SimpleNamespace(remote=lambda: self.cluster.ask(self, None))
        self.apply = SimpleNamespace(remote=lambda task, where, shard, declared: self.cluster.ask(self, shard))


class Cluster(ModuleType):
    """What the engine uses of ``ray``: time passes only while it waits.

    ``plan`` tells the seconds and the answer of an actor, by the shard and how often that was asked for before.
    """

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayActorError=ActorLostError, RayError=LostError)

    def __init__(self, cpus: int, plan: Plan) -> None:
        super().__init__("ray")
        self.cpus, self.plan, self.now = cpus, plan, 0.0
        self.asked, self.killed, self.hired = list[int | None](), list[int](), list[Actor]()

    def put(self, value: object) -> object:
        return value

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)}

    def remote(self, **needs: object) -> Callable[[type], SimpleNamespace]:
        return lambda kind: SimpleNamespace(remote=self.hire)

    def hire(self) -> Actor:
        self.hired.append(Actor(self, len(self.hired)))
        assert len(self.hired) < 100, "hired without end"
        return self.hired[-1]

    def ask(self, actor: Actor, shard: int | None) -> Answer:
        seconds, value = self.plan(actor, shard, self.asked.count(shard))
        self.asked.append(shard)
        return Answer(self.now + seconds, value)

    def wait(
        self, answers: Sequence[Answer], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Answer], list[Answer]]:
        if timeout != 0:
            first = min(answer.at for answer in answers)
            assert timeout is not None or first < NEVER, "waits for ever"
            self.now = max(self.now, min(first, NEVER if timeout is None else self.now + timeout))
        assert self.now < 1000, "waits for ever"
        ready = [answer for answer in answers if answer.at <= self.now][:num_returns]
        return ready, [answer for answer in answers if answer not in ready]

    def get(self, answer: Answer) -> Any:
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor.number)


Plan = Callable[[Actor, int | None, int], tuple[float, Any]]
Clustered = Callable[[int, Plan], tuple[Ray, Cluster]]


@pytest.fixture
def clustered(monkeypatch: pytest.MonkeyPatch) -> Clustered:
    """Return an engine on a made-up cluster, with the cluster."""

    def made(cpus: int, plan: Plan) -> tuple[Ray, Cluster]:
        cluster = Cluster(cpus, plan)
        monkeypatch.setattr(Ray, "connected", lambda self: cluster)
        monkeypatch.setattr(engine, "monotonic", lambda: cluster.now)
        return Ray(), cluster

    return made


def square(shard: int | None) -> tuple[float, Any]:
    return (0.0, None) if shard is None else (1.0, shard * shard)


def squares(count: int) -> dict[int, int]:
    return {shard: shard * shard for shard in range(count)}


def test_each_shard_has_one_answer_and_actors_are_kept(clustered: Clustered) -> None:
    ray, cluster = clustered(3, lambda actor, shard, before: square(shard))
    assert sorted(ray.map(power, 0, range(10))) == sorted(squares(10).items())
    assert dict(ray.map(power, 0, range(4))) == squares(4)
    assert (len(cluster.hired), cluster.killed) == (3, [])


def test_no_shards_need_no_actor(clustered: Clustered) -> None:
    ray, cluster = clustered(3, lambda actor, shard, before: square(shard))
    assert list(ray.map(power, 0, [])) == []
    assert cluster.hired == []


def test_a_shard_that_kills_every_actor_ends_the_call(clustered: Clustered) -> None:
    def plan(actor: Actor, shard: int | None, before: int) -> tuple[float, Any]:
        return (1.0, ActorLostError("out of memory")) if shard == 2 else square(shard)

    ray, cluster = clustered(2, plan)
    with pytest.raises(HoldfastError, match="Ray lost 4 workers"):
        list(ray.map(power, 0, range(3)))
    assert cluster.asked.count(2) == engine.RETRIES + 1


def test_actors_that_never_begin_end_the_call(clustered: Clustered) -> None:
    ray, cluster = clustered(2, lambda actor, shard, before: (0.1, ActorLostError("no module")))
    with pytest.raises(HoldfastError, match="as they began"):
        list(ray.map(power, 0, range(3)))
    assert len(cluster.hired) <= 2 * engine.RETRIES + 2


@pytest.mark.parametrize("at_work", [True, False])
def test_a_machine_of_many_actors_may_be_lost(clustered: Clustered, at_work: bool) -> None:
    """It is lost while its eight actors compute, or before they are given anything again."""
    lost = set[int]()

    def plan(actor: Actor, shard: int | None, before: int) -> tuple[float, Any]:
        gone = actor.number < 8 and shard is not None and (bool(lost) or shard >= 16)
        return (0.5, ActorLostError("the machine is gone")) if gone else square(shard)

    ray, cluster = clustered(8, plan)
    if at_work:
        assert dict(ray.map(power, 0, range(40))) == squares(40)
    else:
        assert dict(ray.map(power, 0, range(16))) == squares(16)
        lost.add(0)
        assert dict(ray.map(power, 0, range(1))) == squares(1)
    assert len(cluster.hired) > 8
    assert all(actor.number >= 8 for actor in ray._actors) or not at_work


def test_an_idle_actor_repeats_what_a_slow_one_holds_and_the_slow_one_is_stopped(clustered: Clustered) -> None:
    ray, cluster = clustered(2, lambda actor, shard, before: (NEVER, 0) if (shard, before) == (5, 0) else square(shard))
    assert dict(ray.map(power, 0, range(8))) == squares(8)
    assert cluster.asked.count(5) == 2
    assert len(cluster.killed) == 1
    assert len(ray._actors) == 1


def test_what_is_fast_is_never_repeated(clustered: Clustered) -> None:
    ray, cluster = clustered(2, lambda actor, shard, before: (4.9, shard) if shard == 5 else square(shard))
    assert len(list(ray.map(power, 0, range(6)))) == 6
    assert cluster.asked.count(5) == 1


def test_the_first_answer_counts_and_the_second_is_left_out(clustered: Clustered) -> None:
    """The slow actor of shard 3 answers while that of shard 2 is still at work."""

    def plan(actor: Actor, shard: int | None, before: int) -> tuple[float, Any]:
        slow = {(3, 0): (7.0, -1), (3, 1): (0.5, 9), (2, 0): (20.0, 4), (2, 1): (NEVER, 0)}
        return slow.get((shard or 0, before), square(shard)) if shard is not None else square(None)

    ray, cluster = clustered(4, plan)
    found = list(ray.map(power, 0, range(5)))
    assert len(found) == 5
    assert cluster.now >= 20
    assert dict(found) == squares(5)


@pytest.mark.parametrize("value", [TaskError(), LostError("gone"), ActorLostError("gone")])
def test_an_error_of_an_answer_that_is_not_needed_harms_nothing(clustered: Clustered, value: Exception) -> None:
    def plan(actor: Actor, shard: int | None, before: int) -> tuple[float, Any]:
        slow = {(3, 0): (7.0, value), (2, 0): (20.0, 4), (2, 1): (NEVER, 0)}
        return slow.get((shard or 0, before), square(shard)) if shard is not None else square(None)

    ray, cluster = clustered(4, plan)
    assert dict(ray.map(power, 0, range(5))) == squares(5)
    assert cluster.asked.count(3) == 2


def test_an_error_of_a_task_is_raised_and_stops_what_has_begun(clustered: Clustered) -> None:
    ray, cluster = clustered(3, lambda actor, shard, before: (0.5, TaskError()) if shard == 1 else square(shard))
    with pytest.raises(ValueError, match="the task failed"):
        list(ray.map(power, 0, range(3)))
    assert len(cluster.killed) == 2
    assert len(ray._actors) == 1  # the one whose task failed is as good as before


def test_the_last_idle_actor_looks_for_late_shards_though_a_shard_waits_for_a_lost_actor(clustered: Clustered) -> None:
    """Shard 0 is lost while its copy is computed, there is no room for another actor, and shard 1 stands still."""

    def plan(actor: Actor, shard: int | None, before: int) -> tuple[float, Any]:
        if shard is None:
            return (0.0, None) if actor.number < 3 else (NEVER, None)
        slow = {(0, 0): (8.0, ActorLostError("gone")), (0, 1): (6.0, 0), (1, 0): (NEVER, 1)}
        return slow.get((shard, before), square(shard))

    ray, _ = clustered(3, plan)
    assert dict(ray.map(power, 0, range(3))) == squares(3)


def test_closing_stops_what_is_at_work_and_keeps_idle_actors(clustered: Clustered) -> None:
    ray, cluster = clustered(2, lambda actor, shard, before: square(shard))
    answers = ray.map(power, 0, range(20))
    next(answers)
    answers.close()
    assert len(cluster.killed) == 2
    assert ray._actors == []
    assert dict(ray.map(power, 0, range(3))) == squares(3)
