"""What docs/scale.md says on paper follows from its formulas, and the formulas from the settings there are."""

from __future__ import annotations

import doctest

import pytest
from benchmarks.speed import plan

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.evaluations.breakaway import Breakaway
from tests.pages import DOCS

PAGE = (DOCS / "scale.md").read_text()


def test_the_formulas_give_what_their_examples_say() -> None:
    assert doctest.testmod(plan).failed == 0


@pytest.mark.parametrize("name", plan.tables())
def test_the_tables_are_those_of_the_formulas(name: str) -> None:
    assert plan.tables()[name] in PAGE, f"python -m benchmarks.speed.plan prints another table {name!r}"


def test_the_numbers_between_the_tables_follow_too() -> None:
    comparing = 1000 * plan.IMAGES * 2 * plan.FEATURES
    said = {
        f"or {comparing:.2g} operations": "1.5e+14",
        f"F = {plan.FORWARD / 1e9:.1f} x 10^9 operations": "35.1",
        f"take {plan.short(plan.IMAGES / plan.DECODED / 3600)} core-hours": "69",
        f"needs {plan.decoding_cores(plan.PEAK['H100, bfloat16']):.0f} cores": "28",
        f"arrays of 224 x 224 x 3 bytes are {plan.short(224 * 224 * 3 / 1e6)} TB per million": "0.15",
        f"{plan.ENCODERS * 4 * plan.FEATURES * plan.MILLION / 1e12:.1f} TB.": "0.3",
    }
    text = " ".join(PAGE.replace("1.5e14", "1.5e+14").split())
    for sentence, number in said.items():
        assert number in sentence, "a formula was changed; say so here"
        assert sentence in text


def test_gradient_steps_are_counted_as_breakaway_takes_them() -> None:
    asked = Breakaway()
    steps = {"pgd": 50, "adaptive": 100}
    adaptive = AdaptiveAttack()
    assert adaptive.restarts * adaptive.steps == steps["adaptive"]
    assert [str(attack).partition(":")[0] for attack in asked.attacks] == list(steps)
    assert "steps=50" in str(asked.attacks[0])
    conditions = len(asked.balls) * len(asked.divergences)
    assert conditions * (sum(steps.values()) + 2 * steps["adaptive"]) == plan.BREAKAWAY
