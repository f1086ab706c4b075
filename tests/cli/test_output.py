"""Standard output that is closed, full, not read to its end or no UTF-8 is said as that, and changes nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from holdfast.cli.terminal import prepare
from tests.facts import says

COMMAND = [sys.executable, "-m", "holdfast"]


def test_a_reader_that_leaves_early_is_no_mistake() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*COMMAND, "--version"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_full_standard_output_is_said_once() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert says(ended.stderr, "standard output", "No space left")


def test_a_closed_standard_output_is_said() -> None:
    ended = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, "list", "attacks"], stderr=subprocess.PIPE, text=True
    )
    assert ended.returncode == 2
    assert says(ended.stderr, "standard output", "/dev/null")


def test_output_need_not_be_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ASCII lacks is written by its number; bytes of paths that are no text stay as they are."""
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, "ascii"))
    prepare()
    print("größe \udce9")
    sys.stdout.flush()
    assert written.getvalue() == b"gr\\xf6\\xdfe \xe9\n"
