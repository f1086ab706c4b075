"""SynBench's intervals cover what they should, and only what they should; ties are named."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
import torch

from holdfast.core.run_settings import RunSettings
from holdfast.synthetic.evaluations.synbench import SynBench
from holdfast.synthetic.score import SCALES, area, reference
from holdfast.synthetic.synbench_findings import WHOLE, score_covariance, tied
from tests.synthetic.evaluations.test_synbench import SMALL, encoder, measured, scores
from tests.synthetic.test_score import BUDGETS, THRESHOLDS, kept, population_score


@pytest.mark.slow
def test_numbers_cover_the_population_of_a_linear_map() -> None:
    weight = torch.randn(6, 16, dtype=torch.float64)
    truth = population_score(kept(weight, torch.full((16,), 0.25, dtype=torch.float64)))
    result = measured(SynBench(), encoder(lambda x: x @ weight.T.to(x)))
    inside = [
        estimate.low <= truth[THRESHOLDS.index(float(estimate.conditions["threshold"]))][k // 5] <= estimate.high
        for k, estimate in enumerate(scores(result, "synbench_score_extrapolated"))
    ]
    assert len(inside) == len(BUDGETS) * len(THRESHOLDS)
    assert sum(inside) >= 22


@pytest.mark.slow
@pytest.mark.parametrize(("size", "features"), [(8, 64), (8, 16)])
def test_intervals_cover(size: int, features: int) -> None:
    """95% intervals hold the expectation of the score, and extrapolated ones the population's, in about 95% of runs."""
    weight = torch.eye(size**2).double() if features == size**2 else torch.randn(features, size**2).double()
    share = kept(weight, torch.full((size**2,), 1 / size, dtype=torch.float64))
    truth = population_score(share, scales=SCALES[1::2]).T.flatten()
    made = encoder(lambda x: x @ weight.T.to(x), (1, size, size))
    evaluation = SynBench(samples=512, scales=SCALES[1::2])
    runs = [measured(evaluation, made, RunSettings(seed=seed)) for seed in range(40)]
    for quantity, of in (("synbench_score", None), ("synbench_score_extrapolated", truth)):
        found = torch.tensor([[(e.low, e.value, e.high) for e in scores(run, quantity)] for run in runs])
        aim = found[:, :, 1].mean(0) if of is None else of
        covered = ((found[:, :, 0] <= aim) & (aim <= found[:, :, 2])).double().mean()
        assert 0.9 <= covered <= 0.99, quantity
        errors = (found[:, :, 2] - found[:, :, 0]).mean(0) / (2 * 1.96)
        assert (found[:, :, 1].std(0) / errors).mean().item() == pytest.approx(1, abs=0.15)


def test_finite_samples_bias_the_score_and_the_extrapolation_removes_it() -> None:
    result = measured(replace(SMALL, samples=256), encoder(shape=(1, 8, 8)))
    low = result.estimate("synbench_score", budget="0", threshold="0.7")
    corrected = result.estimate("synbench_score_extrapolated", budget="0", threshold="0.7")
    assert low.high < 0.97
    assert corrected.value == pytest.approx(1, abs=0.05)
    assert result.estimate("features_per_sample").value == 0.25
    assert any("64 features for 256 train samples" in warning for warning in result.findings.warnings)


def test_budgets_that_tie_are_named() -> None:
    suggested = measured(SMALL, encoder(lambda x: x.mean(1, keepdim=True))).estimate(
        "suggested_budget", threshold="0.7"
    )
    assert (suggested.low, suggested.value, suggested.high) == (0, 0, 0.8)
    assert "budgets 0, 0.2, 0.4, 0.6, 0.8 are tied" in (suggested.reason or "")
    steep = torch.arange(1, 17) ** -2.0
    alone = measured(SMALL, encoder(lambda x: x * steep.to(x))).estimate("suggested_budget", threshold="0.7")
    assert (alone.low, alone.value, alone.high, alone.reason) == (0, 0, 0, None)


def test_ties_respect_how_scores_move_together() -> None:
    values, apart = torch.tensor([0.50, 0.52]), torch.eye(2) * 1e-4
    assert tied(values, apart, 1.96) == [1, 0]
    assert tied(values, apart + 0.99e-4 * (1 - torch.eye(2)), 1.96) == [1]


def test_train_sets_that_disagree_widen_the_interval() -> None:
    """Half the difference of the halves' areas is one standard error, beside that of the test samples."""
    scales, n = (1.0, 2.0), 10**12  # so many test samples that they are certain
    right = torch.full((2, 3, 1), 0.9, dtype=torch.float64)
    bound = right * torch.tensor([1.1, 1.3, 1.2], dtype=torch.float64)[:, None]
    means = torch.cat([right, bound], 2).flatten(1)
    seen = {"right": right, "bound": bound, "products": means[:, :, None] * means[:, None, :] + torch.eye(6).double()}
    (((error,),),) = score_covariance(seen, reference(scales), (0.7,), n, WHOLE).sqrt().tolist()
    gap = (1.3 - 1.1) / 2 * (0.9 - 0.7) * sqrt(2) / 2  # two independent scales, averaged
    assert error == pytest.approx(gap / area(*reference(scales), (0.7,)).item(), rel=1e-6)


def test_a_score_of_zero_is_not_certain() -> None:
    few = replace(SMALL, samples=64, thresholds=(0.66,))
    (score, *_) = scores(measured(few, encoder(lambda x: x - x.mean(1, keepdim=True))))
    assert (score.low, score.value) == (0, 0)
    assert score.high > 0
