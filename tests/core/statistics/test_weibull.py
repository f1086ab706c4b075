"""The two-parameter law: found again from its own values, and never far away."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest, weibull_min

from holdfast.core.statistics.intervals import fit, log_likelihood, misfit


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.0, 20.0])
def test_a_law_is_found_again(shape):
    values = weibull_min.rvs(shape, scale=0.2, size=4000, random_state=np.random.default_rng(0))
    shapes, scales = fit(values[None])
    found, scale = float(shapes[0]), float(scales[0])
    assert found == pytest.approx(shape, rel=0.05)
    assert scale == pytest.approx(0.2, rel=0.1)
    assert log_likelihood(values[None], shapes, scales) == pytest.approx(
        weibull_min.logpdf(values, found, scale=scale).sum()
    )
    expected = kstest(values, weibull_min(found, scale=scale).cdf)
    assert misfit(values, found, scale) == pytest.approx((expected.statistic, expected.pvalue))


def test_no_other_law_is_likelier():
    values = np.random.default_rng(1).gamma(2.0, size=30)
    best = float(log_likelihood(values[None], *fit(values[None]))[0])
    shapes, scales = np.meshgrid(np.linspace(0.2, 8, 60), np.linspace(0.2, 8, 60))
    others = np.asarray(weibull_min.logpdf(values[:, None, None], shapes, scale=scales)).sum(0)
    assert others.max() <= best + 1e-9


def test_rows_are_fitted_each_by_itself():
    rows = np.random.default_rng(0).gamma(2.0, size=(4, 15))
    shapes, scales = fit(rows)
    assert shapes.shape == (4,)
    assert [float(part[0]) for part in fit(rows[2:3])] == pytest.approx([shapes[2], scales[2]])


def test_a_law_keeps_its_least_shape():
    values = weibull_min.rvs(0.5, size=200, random_state=np.random.default_rng(0))
    shapes, scales = fit(values[None], flattest=1.0)
    assert shapes.tolist() == pytest.approx([1.0])
    assert scales.tolist() == pytest.approx([values.mean()])


@pytest.mark.parametrize("count", [20, 100])
def test_laws_of_few_values_do_not_run_away(count):
    """Its likelihood has one maximum: of 400 samples of every shape none is fitted by a wildly different law."""
    for shape in (0.7, 2.0, 8.0, 40.0):
        rng = np.random.default_rng(0)
        ratios = fit(weibull_min.rvs(shape, scale=0.2, size=(400, count), random_state=rng))[0] / shape
        assert 0.4 < ratios.min() < ratios.max() < 2.5


def test_equal_values_have_no_shape():
    assert np.isinf(fit(np.full((1, 10), 0.3))[0])
    assert np.isinf(fit(np.array([[0.3]]))[0])
