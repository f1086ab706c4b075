"""The probe whose radius SynBench suggests: it is the evaluation's suggestion, and learns as the robust probe does there."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.balls import L2
from holdfast.core.errors import HoldfastError
from holdfast.probes import linear
from holdfast.probes.linear import Linear, RobustProbe, SynBenchRobustProbe
from holdfast.synthetic.evaluations.synbench import SynBench
from holdfast.synthetic.score import BUDGETS, suggested_budget
from tests.probes.known import population


def test_the_radius_is_the_budget_with_the_best_score_of_the_evaluation() -> None:
    asked = population()
    result = SynBench(samples=64)(asked.encoder, asked.images, asked.run)
    scores = [result.estimate("mean_synbench_score", budget=f"{budget:g}").value for budget in BUDGETS]
    assert len({*scores}) > 1, "vacuous fixture"
    assert suggested_budget(asked, samples=64) == BUDGETS[scores.index(max(scores))]


@pytest.mark.parametrize(("budget", "alike"), [(0.4, RobustProbe(L2(0.4), epochs=1, steps=2)), (0.0, Linear())])
def test_it_learns_as_the_robust_probe_does_at_that_radius(budget: float, alike, monkeypatch) -> None:
    monkeypatch.setattr(linear, "suggested_budget", lambda population, samples: budget)
    asked, probe = population(), SynBenchRobustProbe(epochs=1, steps=2)
    learned, expected = probe.learn(asked), alike.learn(asked)
    assert all(torch.equal(learned[name], expected[name]) for name in ("weight", "bias", "classes"))
    said = probe.restore(asked, learned).caution
    assert (f"l2:{budget:g}" if budget else "the head is the linear probe") in said


@pytest.mark.parametrize("settings", [{"samples": 63}, {"epochs": 0}, {"steps": 0}, {"batch": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(HoldfastError, match=r"positive|64 samples or more"):
        SynBenchRobustProbe(**settings)
