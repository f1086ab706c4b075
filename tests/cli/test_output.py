"""Standard output that is closed, full, not read to its end or no UTF-8 is said as that, and changes nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "holdfast"]


def test_a_reader_that_leaves_early_is_no_mistake() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*COMMAND, "list", "attacks"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_full_standard_output_is_said_once() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*COMMAND, "list", "attacks"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert ended.stderr == (
        "holdfast: cannot write to standard output: No space left on device; send it elsewhere or free space\n"
    )


def test_a_closed_standard_output_is_said() -> None:
    ended = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, "list", "attacks"], stderr=subprocess.PIPE, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr == "holdfast: standard output is closed; send it to a file or to /dev/null\n"


@pytest.mark.parametrize(
    "variables", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_output_need_not_be_utf8(tmp_path: Path, variables: dict[str, str]) -> None:
    """A name with an umlaut is in the tables and in the path of the report."""
    folder = tmp_path / "größe"
    folder.mkdir()
    ended = subprocess.run([*COMMAND, "clean", str(folder)], capture_output=True, env={**os.environ, **variables})
    shown = (ended.stdout + ended.stderr).decode("ascii", "surrogateescape")
    assert ended.returncode in (0, 2)
    assert "gr" in shown and "Error" not in shown and "defect" not in shown
