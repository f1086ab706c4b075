"""Standard output for tables, as wide as the terminal, and as wide as they need where there is none; a line beforehand."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

UNLIMITED = 10_000


def console() -> Console:
    """Return a console that prints names as they are, without markup or colours of its own."""
    return Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED)


def show(table: Table) -> None:
    """Print ``table`` without the spaces that would fill each line to its width."""
    out = console()
    with out.capture() as captured:
        out.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def announce(sentence: str) -> None:
    """Print ``sentence`` on stderr before what takes long and says nothing, where somebody is looking."""
    if sys.stderr.isatty():
        print(sentence, file=sys.stderr, flush=True)


def size(count: int) -> str:
    """Return a number of bytes as people read it.

    Example:
        >>> size(0), size(2_340_000)
        ('0 B', '2.3 MB')
    """
    amount, power = float(count), 0
    while amount >= 1000 and power < 4:
        amount, power = amount / 1000, power + 1
    return f"{amount:.1f} {'kMGT'[power - 1]}B" if power else f"{count} B"
