"""Measure two encoders in two runs, as two people might, and compare them image by image from the stored results."""

from __future__ import annotations

import holdfast as hf


def measured(encoder: str, out: str) -> hf.EvaluatedRun:
    """Return a small run; running it again computes nothing."""
    attacks = {"overlap": {"attacks": ["adaptive:restarts=1,steps=10"]}}
    return hf.evaluate(encoder, "builtin:digits", only="overlap", eps=0.1, limit=60, settings=attacks, out=out)


def main() -> None:
    """Print who is better at what, and where the two cannot be told apart."""
    runs = [measured("builtin:digits-robust", "runs/robust"), measured("builtin:digits-random", "runs/random")]
    for contest in hf.compare(runs).contests:
        (pair,) = contest.pairs
        apart = pair.difference
        said = apart.outcome.replace("a is", f"{pair.a} is").replace("b is", f"{pair.b} is")
        where = ", ".join(contest.conditions.values())
        print(f"{contest.quantity} ({where}): {apart.value:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}], {said}")


if __name__ == "__main__":
    main()
