"""Start time of a command, from which budgets count: on the command line, the start of the process.

Loading torch takes seconds, and a user who allows two minutes includes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

LOADED = monotonic()
"""When this module was loaded: among the first of the library, before torch."""
_BEGAN: ContextVar[float | None] = ContextVar("began", default=None)


@contextmanager
def running_since(began: float) -> Iterator[None]:
    """Let the command inside have begun at ``began``, by ``time.monotonic``."""
    token = _BEGAN.set(began)
    try:
        yield
    finally:
        _BEGAN.reset(token)


def budget_start() -> float:
    """Start time of the running command on the clock of ``time.monotonic``, else now.

    Functions that a command calls, as ``harden`` does with shares of its budget, begin when they are called.

    Example:
        >>> with running_since(5.0):
        ...     budget_start(), budget_start() > 5.0
        (5.0, True)
    """
    began = _BEGAN.get()
    _BEGAN.set(None)
    return monotonic() if began is None else began
