"""Numbers that must not change unnoticed: every evaluation of this file, made small, on built-in encoders and digits.

``python -m tests.test_stored_numbers`` writes the file again, which is right only where a version was raised.
"""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import pytest

from holdfast.measure.evaluation import Evaluation, with_bank
from tests.test_laws import COUNT, DOUBLE, EVALUATIONS, builtin, digits, usual

FILE = Path(__file__).parent / "stored_numbers.json"
STORED = json.loads(FILE.read_text()) if FILE.exists() else {}
MADE = {evaluation.name: evaluation for evaluation in EVALUATIONS}


def headline(evaluation: Evaluation) -> dict[str, float | None]:
    """What stands for the evaluation in a summary, under all conditions; None where it is undefined."""
    if evaluation.needs_bank == with_bank(evaluation):
        result = usual(evaluation)
    else:  # what may do without a bank is stored without
        result = evaluation(builtin(), digits(COUNT), DOUBLE)
    chosen = [estimate for estimate in result.estimates if estimate.quantity in evaluation.headline]
    named = {" ".join([e.quantity, *(f"{k}={v}" for k, v in sorted(e.conditions.items()))]): e.value for e in chosen}
    return {name: None if isnan(value) else float(f"{value:.8g}") for name, value in named.items()}


@pytest.mark.parametrize("name", STORED)
def test_numbers_are_those_stored(name: str) -> None:
    evaluation, stored = MADE[name], STORED[name]
    assert evaluation.version == stored["version"], "raised on purpose? then write the file again"
    found = headline(evaluation)
    assert found.keys() == stored["numbers"].keys()
    for which, value in stored["numbers"].items():
        # Loose enough for the rounding of another processor, which attacks by signs of gradients enlarge.
        assert found[which] == (None if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)), which


def test_something_is_stored() -> None:
    assert len(STORED) >= 10
    assert sum(len(stored["numbers"]) for stored in STORED.values()) > 50


if __name__ == "__main__":
    made = {name: {"version": kind.version, "numbers": headline(kind)} for name, kind in MADE.items()}
    FILE.write_text(json.dumps(made, indent=1) + "\n")
