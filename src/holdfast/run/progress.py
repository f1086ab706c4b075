"""Progress on stderr: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from threading import Timer
from time import monotonic
from types import TracebackType
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

QUIET_SECONDS = 5.0
"""Seconds between plain lines."""
LOADING = "loading"
"""First text of the display, until the run reports another one."""
SETTLING_SECONDS = 3.0
"""Seconds of observation before the first estimate of the time."""


@runtime_checkable
class Display(Protocol):
    """Shows how far a run is."""

    def __call__(self, doing: str, share: float, seconds: float, /) -> None:
        """Show what is being done, the finished fraction of all work, and the seconds left (infinite if unknown)."""

    def say(self, sentence: str, /) -> None:
        """Show one line of its own."""


class Shown:
    """Shows how far things are: the display of a terminal or a log."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.bar = Progress(
            BarColumn(24),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task(LOADING, total=1.0, left="")
        self.waiting = Timer(QUIET_SECONDS, self.say, [f"{0:4.0%}  {LOADING}"])
        self.waiting.daemon = True
        self.began: tuple[float, float] | None = None
        self.said = -QUIET_SECONDS

    def __enter__(self) -> Shown:
        self.bar.start()
        if self.bar.disable:
            self.waiting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.waiting.cancel()
        self.bar.stop()

    def __call__(self, doing: str, share: float, seconds: float | None = None) -> None:
        """Show what is being done, which fraction of everything is, and the ``seconds`` left or, by default, as it went."""
        now = monotonic()
        self.waiting.cancel()
        self.began = self.began or (now, share)
        so_far = remaining(now - self.began[0], share - self.began[1], 1 - share)
        left = so_far if seconds is None else duration(seconds)
        if not self.bar.disable:
            self.bar.update(self.task, completed=share, description=doing, left=left)
        elif now - self.said >= QUIET_SECONDS:
            self.said = now
            self.say(f"{share:4.0%}  {doing}" + (f", {left}" if left else ""))

    def say(self, sentence: str) -> None:
        """Write one line of its own."""
        self.waiting.cancel()
        self.console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def remaining(seconds: float, finished: float, unfinished: float) -> str:
    """Return how long the ``unfinished`` share will take if the ``finished`` one took ``seconds``.

    Example:
        >>> remaining(30.0, 0.25, 0.75), remaining(3600.0, 0.5, 0.5), remaining(1.0, 0.0, 1.0), remaining(9.0, 1.0, 0.0)
        ('1 min 30 s left', '1 h 0 min left', '', '')
    """
    if finished <= 0 or unfinished <= 0 or seconds < SETTLING_SECONDS:
        return ""
    return duration(seconds * unfinished / finished)


def duration(seconds: float) -> str:
    """Return a duration in words; empty if zero or unknown.

    Example:
        >>> duration(90.4), duration(3600.0), duration(inf)
        ('1 min 30 s left', '1 h 0 min left', '')
    """
    if seconds <= 0 or seconds == inf:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s left"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s left"
    return f"{whole // 3600} h {whole % 3600 // 60} min left"


@contextmanager
def shown(progress: bool | None) -> Iterator[Shown | None]:
    """Give a display on stderr if ``progress`` is True, or if it is None and a person watches."""
    console = Console(stderr=True)
    if progress or (progress is None and (console.is_terminal or console.is_jupyter)):
        with Shown(console) as show:
            yield show
    else:
        yield None
