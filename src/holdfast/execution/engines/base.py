"""What every engine does."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

Given = TypeVar("Given")
Shard = TypeVar("Shard")
Done = TypeVar("Done")


@runtime_checkable
class Engine(Protocol):
    """Applies one function to many shards, wherever there is room; the answers do not depend on where."""

    def map(
        self, task: Callable[[Given, Shard], Done], given: Given, shards: Sequence[Shard]
    ) -> Generator[tuple[Shard, Done], None, None]:
        """Yield each shard with what ``task`` made of it and of what is ``given`` to all, as they finish.

        What is given may be large; it is sent once, also if the next call gives the same. The first error of a task ends
        it; closing the generator abandons what is not done.
        """
        ...
