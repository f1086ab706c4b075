"""Shards one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import final

from holdfast.execution.engines.base import Done, Shard


@final
class Local:
    """Computes in this process.

    Example:
        >>> list(Local().map(sum, [[1, 2], [3]]))
        [([1, 2], 3), ([3], 3)]
    """

    def map(self, task: Callable[[Shard], Done], shards: Sequence[Shard]) -> Generator[tuple[Shard, Done], None, None]:
        return ((shard, task(shard)) for shard in shards)
