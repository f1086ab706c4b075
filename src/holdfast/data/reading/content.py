"""One encoded image, wherever it is kept: a file of its own, bytes at hand, or a part of something larger or distant."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.core.images import THREADS

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Stored:
    """An image in an archive or in a distant store."""

    read: Callable[[], bytes]
    identity: Path | str | None = None
    """Text that changes with the content, or None if there is nothing to tell by: then it is read at every start."""


Content = Path | bytes | Stored
Fetch = Callable[[int], Content]
"""From a row to its image; nothing of it is read yet, unless it is at hand."""


def identity(content: Content) -> Path | str | None:
    """Return what ``content`` is remembered by."""
    if isinstance(content, Stored):
        return content.identity
    return content if isinstance(content, Path) else None


def all_bytes(content: Content) -> bytes:
    """Return what is stored.

    Raises:
        ValueError: there is nothing, or a named pipe, which would make the reader wait for ever.
    """
    if isinstance(content, Path):
        if content.stat().st_size == 0:
            raise ValueError("zero bytes")
        return content.read_bytes()
    return content if isinstance(content, bytes) else content.read()


def side_by_side(work: Callable[[int], Found], rows: Sequence[int]) -> Iterator[Found]:
    """Yield what ``work`` makes of each of ``rows``, in their order, by several threads that stay a little ahead.

    Rows are handed out a few at a time: handing out one takes as long as decoding the smallest images does.
    """
    size = max(1, min(16, len(rows) // (4 * THREADS)))
    begun = deque[Future[list[Found]]]()
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(rows), size):
            begun.append(pool.submit(lambda some: [work(row) for row in some], rows[start : start + size]))
            if len(begun) > 4 * THREADS:  # a million tasks queued at once would outweigh the images
                yield from begun.popleft().result()
        while begun:
            yield from begun.popleft().result()
