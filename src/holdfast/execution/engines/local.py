"""Shards one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import final

from holdfast.execution.engines.base import Done, Given, Shard


@final
class Local:
    """Computes in this process.

    Example:
        >>> list(Local().map(pow, 10, [2, 3]))
        [(2, 100), (3, 1000)]
    """

    def map(
        self, task: Callable[[Given, Shard], Done], given: Given, shards: Iterable[Shard]
    ) -> Generator[tuple[Shard, Done], None, None]:
        return ((shard, task(given, shard)) for shard in shards)
