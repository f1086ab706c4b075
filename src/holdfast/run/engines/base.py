"""Interface of engines, and the engine that computes shards in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol, TypeVar, final, runtime_checkable

Context = TypeVar("Context")
Unit = TypeVar("Unit")
Output = TypeVar("Output")
Task = Callable[[Context, Unit], Output]
"""What is done with each shard and the context that all share."""
Outcomes = Generator[tuple[Unit, Output], None, None]
"""Each shard with what a task made of it."""


@runtime_checkable
class Engine(Protocol):
    """Applies one function to many shards, wherever there is room; the answers do not depend on where."""

    def map(
        self, task: Task[Context, Unit, Output], context: Context, shards: Iterable[Unit]
    ) -> Outcomes[Unit, Output]:
        """Yield each shard with what ``task`` made of it and of the ``context``, which all share, as they finish.

        The context may be large; it is sent once, also if the next call has the same. Shards are taken one by one, when
        there is room for them: which one is next, and whether there is time for any, is decided then. The first error of a
        task ends it. Closing the generator, as Ctrl-C does, abandons what is not done and stops what has begun.
        """
        ...


@final
class Local:
    """Computes in this process.

    Example:
        >>> list(Local().map(pow, 10, [2, 3]))
        [(2, 100), (3, 1000)]
    """

    def map(
        self, task: Task[Context, Unit, Output], context: Context, shards: Iterable[Unit]
    ) -> Outcomes[Unit, Output]:
        return ((shard, task(context, shard)) for shard in shards)
