"""Commands that are really killed: they leave no process behind, and what a signal stops is said and goes on later."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.facts import says

pytestmark = pytest.mark.slow  # each loads torch in a process of its own
SLOW = [
    *("evaluate", "builtin:digits-random", "--only", "overlap", "--limit", "40", "--batch-size", "1"),
    *("--set", "overlap.attacks=adaptive:steps=100,restarts=10", "--out", "run"),
]
LINUX = pytest.mark.skipif(not Path("/proc").is_dir(), reason="descendants are read from /proc")
KEPT = "holdfast: stopped; everything finished is kept, and the same command continues from there"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def heard() -> None:
    """Stop ignoring signals, as background shells and nohup make everything that they start ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    with Path("said").open("w") as said:
        return subprocess.Popen([sys.executable, "-m", "holdfast", *arguments], stderr=said, preexec_fn=heard)


def stopped(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float) -> int:
    """Send a signal and return the status; a process that does not end by it is killed."""
    process.send_signal(number)
    try:
        return process.wait(seconds)
    finally:
        process.kill()  # nothing happens to one that has ended


def until(condition: Callable[[], bool], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < limit:
        time.sleep(0.05)
    return met


def shards() -> bool:
    return bool(list(Path("run").glob("shards/targeted-*/[!.]*")))


def parents() -> dict[int, int]:
    """Return the parent of each process that lives, zombies left out."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(path.parent.name)] = int(parent)
    return found


def descendants(process: int) -> set[int]:
    known, family = parents(), {process}
    while more := {child for child, parent in known.items() if parent in family} - family:
        family |= more
    return family - {process}


@LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_command(number: signal.Signals) -> None:
    process = started([*SLOW, "--workers", "2"])
    try:
        assert until(shards, 90), Path("said").read_text()
        family = descendants(process.pid)
        assert len(family) >= 2, "vacuous: there are no workers"
    finally:
        status = stopped(process, number, 30)
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    assert until(lambda: not family & set(parents()), 20), family & set(parents())


def test_a_signal_stops_a_command_as_an_interrupt_does() -> None:
    process = started(SLOW)
    try:
        assert until(shards, 90), Path("said").read_text()
    finally:
        status = stopped(process, signal.SIGHUP, 30)
    assert status == 128 + signal.SIGHUP
    check_what_is_kept()


def check_what_is_kept() -> None:
    said = Path("said").read_text()
    assert said.splitlines()[-1] == KEPT
    assert "Traceback" not in said
    assert shards()


@pytest.mark.slow
def test_what_was_stopped_leaves_a_report_of_what_was_seen() -> None:
    # Minutes on any machine: a run that ends sooner has its page only at its end.
    longer = [{"40": "400"}.get(word, word.replace("steps=100", "steps=1000")) for word in SLOW]
    process = started([*longer, "--eps", "0.1", "--set", "overlap.divergences=cosine"])
    try:
        assert until(lambda: Path("run", "report.html").exists(), 240), Path("said").read_text()
        assert 'http-equiv="refresh"' in Path("run", "report.html").read_text()
    finally:
        status = stopped(process, signal.SIGINT, 60)
    said = Path("said").read_text().splitlines()
    assert status == 130
    assert said[-1] == KEPT
    assert said[-2] == "run holds 1 results, 1 of them partial"
    page = Path("run", "report.html").read_text()
    assert says(page, "PARTIAL", "ended")
    assert "refresh" not in page


def test_what_nohup_ignores_stays_ignored_and_another_signal_stops_it() -> None:
    with Path("said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *SLOW],
            stderr=said,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
    try:
        assert until(shards, 90), Path("said").read_text()
        process.send_signal(signal.SIGHUP)
        assert not until(lambda: process.poll() is not None, 1)
    finally:
        status = stopped(process, signal.SIGTERM, 30)
    assert status == 128 + signal.SIGTERM
    check_what_is_kept()
