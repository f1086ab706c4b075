"""Votes among noisy copies: stored counts and radii of randomized smoothing, and events whose chance is known."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, binomtest, norm

from holdfast.core.noise import Noise
from holdfast.smoothing.copies import farthest, least_share, needed_draws, radius
from tests.smoothing.test_center import ENCODERS


def test_shares_are_those_of_clopper_and_pearson():
    counts = torch.tensor([0, 1, 50, 99, 100])
    found = least_share(counts, 100, 0.001).tolist()
    assert found == pytest.approx([0.0, *(beta.ppf(0.001, k, 101 - k) for k in (1, 50, 99, 100))])
    two_sided = binomtest(50, 100).proportion_ci(0.998, "exact")
    assert found[2] == pytest.approx(two_sided.low)


@pytest.mark.parametrize("draws", ["1e4", "1e5"])
@pytest.mark.parametrize("name", ENCODERS)
def test_radii_of_stored_counts(reference: Path, name: str, draws: str):
    stored = np.load(reference / "unsupervised" / f"smoothing_{name}.npz")
    first, counts = (torch.from_numpy(stored[f"rs_N{draws}_{kind}"]) for kind in ("counts0", "counts"))
    chosen = first.argmax(1)
    seen = counts.gather(1, chosen[:, None])[:, 0]
    found = radius(least_share(seen, int(counts[0].sum()), 0.001), 0.25)
    abstained = stored[f"rs_N{draws}_pred"] < 0
    assert found.isnan().numpy().tolist() == abstained.tolist()
    assert chosen.numpy()[~abstained].tolist() == stored[f"rs_N{draws}_pred"][~abstained].tolist()
    assert found.numpy()[~abstained] == pytest.approx(stored[f"rs_N{draws}_radius"][~abstained], rel=1e-9)


@pytest.mark.parametrize(("eps", "sigma", "alpha"), [(0.25, 0.25, 0.001), (1.0, 0.5, 1e-6), (0.9, 0.25, 0.01)])
def test_so_many_draws_are_just_enough(eps: float, sigma: float, alpha: float):
    needed = needed_draws(eps, sigma, alpha)
    assert farthest(needed, sigma, alpha) >= eps > farthest(needed - 1, sigma, alpha)


@pytest.mark.slow
@pytest.mark.parametrize("margin", [0.05, 0.2, 0.5])
def test_the_certificate_fails_no_more_often_than_it_says(margin: float):
    """2,000 votes at alpha = .05 on the sign of a linear map, which keeps its majority within exactly ``margin``."""
    sigma, draws, alpha, trials = 0.25, 400, 0.05, 2000
    normal = torch.tensor([0.6, -0.8])
    counts = torch.tensor(
        [
            int((margin + sigma * Noise.of(1, [f"trial {trial}"]).gaussian((draws, 2))[0] @ normal > 0).sum())
            for trial in range(trials)
        ]
    )
    found = radius(least_share(counts, draws, alpha), sigma)
    assert float((found > margin).double().mean()) <= alpha + 3 * sqrt(alpha * (1 - alpha) / trials)
    assert counts.double().mean() / draws == pytest.approx(norm.cdf(margin / sigma), abs=0.003)
    assert float(found.nanmedian()) > 0.4 * margin, "vacuous"
