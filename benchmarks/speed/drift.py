"""What drift costs once codes are known.

``python -m benchmarks.speed.drift --count 10000 --features 512 --permutations 1000``

Prints processor seconds of each part and the peak of memory.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from time import process_time
from typing import Any

from benchmarks.statistics.false_alarms import two_sets
from holdfast.core.noise import Noise
from holdfast.service.drift_findings import beyond_support, by_direction, compare, sequential


def main() -> None:
    """Print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--permutations", type=int, default=1000)
    asked = parser.parse_args()
    codes = Noise.of(0, list(map(str, range(2 * asked.count)))).normal((asked.features,))
    sets = two_sets(codes[: asked.count], codes[asked.count :], 0)
    began = process_time()
    comparison = timed("energy and classifier", lambda: compare(sets, asked.permutations, 0))
    timed("directions", lambda: by_direction(sets, comparison.weights, 8))
    timed("new images", lambda: beyond_support(sets, 0.05, 0.1))
    timed("sequential", lambda: sequential(sets, 0.05, 0))
    print(f"all {process_time() - began:.1f} s")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def timed(name: str, work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns, and print the processor seconds it took."""
    began = process_time()
    result = work()
    print(f"{name} {process_time() - began:.1f} s", flush=True)
    return result


if __name__ == "__main__":
    main()
