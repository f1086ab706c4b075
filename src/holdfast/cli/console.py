"""Standard output for tables: as wide as the terminal, and as wide as they need where there is none."""

from __future__ import annotations

import sys

from rich.console import Console

UNLIMITED = 10_000


def console() -> Console:
    """Return a console that prints names as they are, without markup or colours of its own."""
    return Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED)
