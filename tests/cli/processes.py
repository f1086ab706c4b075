"""The command line in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from holdfast.cli.app import run


def listening(arguments: Sequence[str], said: Path) -> BaseProcess:
    """Start a command that hears interrupts, even where this process was started in the background and ignores them.

    What it says on stderr goes into the file ``said``. It is forked, so that it need not load torch again.
    """
    process = multiprocessing.get_context("fork").Process(target=_heard, args=(arguments, said))
    process.start()
    return process


def _heard(arguments: Sequence[str], said: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with said.open("w") as sys.stderr:
        sys.exit(run(list(arguments)))
