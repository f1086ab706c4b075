"""Warnings of a command: each once, and at most three."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MOST = 3
"""Warnings that a command prints; a reader of more acts on none."""
_printed: ContextVar[dict[str, None] | None] = ContextVar("printed", default=None)


@contextmanager
def limited(debug: bool) -> Iterator[None]:
    """Let a command print ``MOST`` warnings, and at its end how many more there are; all of them with ``debug``."""
    sentences: dict[str, None] = {}
    token = _printed.set(None if debug else sentences)
    try:
        yield
    finally:
        _printed.reset(token)
        if not debug and len(sentences) > MOST:
            print(f"holdfast: {len(sentences) - MOST} more: add --debug to see them", file=sys.stderr)


def may_warn(sentence: str) -> bool:
    """Return whether a command may print this warning; outside of a command it always may."""
    sentences = _printed.get()
    if sentences is None:
        return True
    if sentence in sentences:
        return False
    sentences[sentence] = None
    return len(sentences) <= MOST
