"""The command line in a process of its own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence


def listening(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process that hears interrupts, even where this one was started in the background and ignores them."""
    return subprocess.Popen(
        arguments,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
