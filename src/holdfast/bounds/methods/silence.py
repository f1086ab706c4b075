"""Silence: what compiled code prints past Python goes nowhere."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

_TURN = Lock()


@contextmanager
def silent() -> Iterator[None]:
    """Send all that the process writes to its standard output and error to nowhere, in one thread at a time."""
    with _TURN:
        _flush()
        closed = [descriptor for descriptor in (1, 2) if not _is_open(descriptor)]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in closed:  # first, or copies of the others would take their numbers
            os.dup2(nowhere, descriptor)
        copies = {descriptor: os.dup(descriptor) for descriptor in (1, 2) if descriptor not in closed}
        for descriptor in copies:
            os.dup2(nowhere, descriptor)
        try:
            yield
        finally:
            _flush()
            for descriptor, original in copies.items():
                os.dup2(original, descriptor)
            for descriptor in {nowhere, *closed, *copies.values()}:
                os.close(descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _flush() -> None:
    """Write out what Python and C hold back: it must not go where the other's text goes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # no stream, a broken or a closed one
            stream.flush()
    with suppress(AttributeError, OSError, TypeError):  # systems whose C library cannot be found so
        ctypes.CDLL(None).fflush(None)
