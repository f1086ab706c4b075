"""Measure two encoders in two runs, as two people might, and compare them image by image from the stored results."""

from __future__ import annotations

from pathlib import Path

from holdfast.execution.request import request
from holdfast.execution.session import run_request
from holdfast.execution.store import load
from holdfast.report.compare import compare


def measured(encoder: str, out: str) -> Path:
    """Return the folder of a small run; running it again computes nothing."""
    flags = {
        "encoders": [encoder],
        "only": ["overlap"],
        "eps": ["0.1"],
        "limit": 60,
        "settings": {"overlap": {"attacks": ["adaptive:restarts=1,steps=10"]}},
        "out": out,
    }
    return run_request(request(flags)).report.parent


def main() -> None:
    """Print who is better at what, and where the two cannot be told apart."""
    runs = [measured("builtin:digits-robust", "runs/robust"), measured("builtin:digits-random", "runs/random")]
    results = [result for run in runs for result in load(run)[0]]
    for contest in compare(results).contests:
        (pair,) = contest.pairs
        apart = pair.difference
        said = apart.outcome.replace("a is", f"{pair.a} is").replace("b is", f"{pair.b} is")
        where = ", ".join(contest.conditions.values())
        print(f"{contest.quantity} ({where}): {apart.value:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}], {said}")


if __name__ == "__main__":
    main()
