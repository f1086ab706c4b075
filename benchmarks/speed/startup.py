"""What it costs to begin: importing holdfast beside importing torch, and the command line's help."""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from time import perf_counter


def timed(*command: str, repeats: int = 5) -> float:
    """Return the median seconds of ``command`` after one run to warm the disk."""
    times = []
    for _ in range(repeats + 1):
        start = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(perf_counter() - start)
    return median(times[1:])


def main() -> None:
    """Print both against their floors."""
    python = sys.executable
    everything = "import torch, holdfast; [getattr(holdfast, name) for name in holdfast.__all__]"
    torch_alone, with_us = timed(python, "-c", "import torch"), timed(python, "-c", everything)
    print(
        f"import torch {torch_alone:.2f} s; with holdfast's public names {with_us:.2f} s: {with_us - torch_alone:+.2f} s"
    )
    for command in ("--help", "evaluate --help"):
        print(f"holdfast {command}: {timed(python, '-m', 'holdfast', *command.split()):.2f} s")


if __name__ == "__main__":
    main()
