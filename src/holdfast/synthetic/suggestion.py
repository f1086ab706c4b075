"""The budget for robust linear probing that SynBench suggests: the one at which the encoder scores best.

    eps* = argmax over eps of  score(eps, a_t),  averaged over the thresholds a_t

Ko et al. 2022, https://arxiv.org/abs/2210.02989, section 4.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from holdfast.core.run_settings import Observed
from holdfast.protocol.population import Population
from holdfast.synthetic.accuracies import RuleAccuracies
from holdfast.synthetic.reference import SCALES
from holdfast.synthetic.score import score

THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9)
BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8)
SAMPLES = 2048
ENCODINGS = 2_000_000
"""The most that are encoded for all scales together."""


def expected_bounds(observed: Observed) -> Float[Tensor, "n p e"]:
    """Return the expected bounds; 0 where nothing was classified rightly, which is above no threshold anyway."""
    return observed["bound"] / observed["right"].clamp_min(1e-9)


def suggested_budget(population: Population, samples: int = SAMPLES) -> float:
    """Return the budget with the highest mean score; 0 also where every score is 0, which suggests none.

    The mixture lies along the published direction, all input values alike.
    """
    accuracies = RuleAccuracies(SCALES, BUDGETS, samples, ENCODINGS, "ones")
    observed = {
        name: values.double().cpu() for name, values in accuracies.observe(population, range(len(SCALES))).items()
    }
    right, bound = (values[:, -1] for values in (observed["right"], expected_bounds(observed)))  # the whole train set's
    return BUDGETS[int(score(right, bound, SCALES, THRESHOLDS).mean(0).argmax())]
