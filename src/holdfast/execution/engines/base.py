"""What every engine does."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

Shard = TypeVar("Shard")
Done = TypeVar("Done")


@runtime_checkable
class Engine(Protocol):
    """Applies one function to many shards, wherever there is room; the answers do not depend on where."""

    def map(self, task: Callable[[Shard], Done], shards: Sequence[Shard]) -> Generator[tuple[Shard, Done], None, None]:
        """Yield each shard with what ``task`` made of it, as they finish.

        The first error of a task ends it; closing the generator abandons what is not done.
        """
        ...
