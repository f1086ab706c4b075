"""Ctrl-C, and requests to terminate, in training: they wait for the end of the step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import final

from holdfast.training.gathering import processes

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals after which a checkpoint is written: Ctrl-C, a scheduler's request, a terminal that is closed."""
STOPPING = "stopping as soon as this step is done; Ctrl-C again stops at once, without a checkpoint"


@final
class Interruption:
    """Whether this process was asked to stop while signals were ``deferred``; ``say`` is told so at once."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.requested, self.say = False, say

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let signals request an interruption, so that a checkpoint can be written; outside the main thread none arrive."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        received = list[int]()

        def request(number: int, frame: FrameType | None) -> None:
            received.append(number)
            # Torchrun passes on what reached this process already, so of several none loses patience.
            if self.requested and processes() == 1:
                raise KeyboardInterrupt
            if self.say and not self.requested:
                with suppress(RuntimeError):  # the signal came while another line was being written
                    self.say(STOPPING)
            self.requested = True

        # What nohup ignores stays ignored.
        before = {number: handler for number in ENDING if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, request)
        try:
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        except KeyboardInterrupt:
            if received and callable(before[received[-1]]):
                signal.raise_signal(received[-1])  # whoever handles it knows then which it was
            raise
