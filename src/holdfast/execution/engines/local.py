"""Shards one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import final

from holdfast.execution.engines.base import Context, Output, Unit


@final
class Local:
    """Computes in this process.

    Example:
        >>> list(Local().map(pow, 10, [2, 3]))
        [(2, 100), (3, 1000)]
    """

    def map(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        return ((shard, task(context, shard)) for shard in shards)
