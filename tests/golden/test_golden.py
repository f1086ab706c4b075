"""Every number of a matrix of evaluations and settings, as it was before the code was rearranged.

Set ``HOLDFAST_GOLDEN=1`` to compare, on the machine that wrote them. ``python -m tests.golden.test_golden`` writes
``numbers.json`` anew: only after a change that is meant to change numbers.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import run

HERE = Path(__file__).parent / "numbers.json"
BUILTIN = ["evaluate", "builtin:digits-contrastive", "builtin:digits-random", "--images", "builtin:digits"]
RUNS = {
    "quick": [*BUILTIN, "--limit", "40", "--baselines", "pixels", "--set", "clever.samples=40"],
    "settings": [
        *BUILTIN,
        *("--limit", "24", "--seed", "3", "--precision", "float64"),
        *("--only", "displacement,breakaway,impersonation,overlap,certified-radius,certified-breakaway,spade,clever"),
        *("--ball", "l2:0.5", "--ball", "linf:8/255"),
        *(f"--set=displacement.divergences={name}" for name in ("cosine", "whitened", "rank", "l1")),
        *(f"--set=breakaway.divergences={name}" for name in ("cosine", "whitened")),
        *(f"--set=breakaway.attacks={name}" for name in ("u-fgsm", "u-pgd", "square")),
        *("--set=certified-radius.method=alpha:steps=5", "--set=certified-radius.norm=l2"),
        *("--set=certified-breakaway.method=interval", "--set=spade.k=5", "--set=clever.samples=24"),
    ],
}
TOLERANCE = 1e-6
"""Relative: the order of a sum may change, nothing else."""


def measured(name: str, folder: Path) -> dict[str, list[float | None]]:
    """Return the numbers of a run: each estimate with its interval, each series by its moments."""
    assert run([*RUNS[name], "--out", str(folder)]) == 0
    numbers: dict[str, list[float | None]] = {}
    for file in sorted((folder / "results").glob("*.json")):
        result: dict[str, Any] = json.loads(file.read_text())
        cell = f"{result['evaluation']} | {result['encoder']['name']}"
        for estimate in result["findings"]["estimates"]:
            values = [estimate["value"], estimate["low"], estimate["high"], float(estimate["n"])]
            numbers[f"{cell} | {label(estimate)}"] = [plain(value) for value in values]
        for series in result["findings"]["series"]:
            values = [value for value in series["values"] if isinstance(value, (int, float))]
            moments = [math.fsum(values), math.fsum(v * v for v in values), float(len(values))]
            weighted = math.fsum(v * (k + 1) for k, v in enumerate(values))
            numbers[f"{cell} | series {label(series)}"] = [*moments, weighted]
    return numbers


def label(number: dict[str, Any]) -> str:
    """Return what tells a number apart from the others of its cell."""
    conditions = ", ".join(f"{key}={value}" for key, value in sorted(number["conditions"].items()))
    return f"{number['quantity']} ({conditions})"


def plain(value: Any) -> float | None:
    """Return a number; none for what JSON spells as a word or as null."""
    return float(f"{value:.10g}") if isinstance(value, (int, float)) else None


def differs(one: list[float | None], other: list[float | None]) -> bool:
    """Tell whether two lists of numbers differ by more than the order of a sum."""
    return len(one) != len(other) or any(
        (a is None) != (b is None)
        or (a is not None and b is not None and not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-9))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.slow
@pytest.mark.skipif(
    "HOLDFAST_GOLDEN" not in os.environ, reason="rounding differs between machines: HOLDFAST_GOLDEN=1 asks"
)
@pytest.mark.parametrize("name", list(RUNS))
def test_no_number_changed(name: str, tmp_path: Path) -> None:
    before, now = json.loads(HERE.read_text())[name], measured(name, tmp_path)
    assert before.keys() == now.keys()
    changed = {key: (before[key], now[key]) for key in before if differs(before[key], now[key])}
    assert not changed, f"{len(changed)} of {len(before)}: {dict(list(changed.items())[:5])}"


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as scratch:
        found = {name: measured(name, Path(scratch) / name) for name in RUNS}
    HERE.write_text(json.dumps(found).replace("], ", "],\n") + "\n")
