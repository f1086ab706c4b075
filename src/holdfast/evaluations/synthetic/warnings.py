"""What a reader must see beside SynBench scores."""

from __future__ import annotations

from holdfast.evaluations.synthetic.findings import ScoringInputs
from holdfast.evaluations.synthetic.uncertainty import WHOLE

CROWDED = 0.1
"""Features per train sample from which the bias of finite samples deserves a warning."""


def synbench_warnings(inputs: ScoringInputs, limit: int | None) -> tuple[str, ...]:
    """Return the sentences a reader must see beside the scores; ``limit`` is the one on encodings, where it cut them."""
    warnings = []
    n, d, rank = inputs.n, inputs.features, int(inputs.observed["rank"].max())
    if rank == 0:
        warnings.append(
            "COLLAPSED: all inputs of one class have the same code up to rounding, at every scale; no rule can be fitted, "
            "and the scores are 0 by definition."
        )
    elif rank == 1:
        warnings.append("The codes vary along one direction only, so all budgets share one rule and one score.")
    elif rank < min(d, n - 2):
        warnings.append(
            f"The codes vary in {rank} of {d} directions; class differences along the others, which have no variance to "
            "compare them with, are left out."
        )
    if d > n - 2:
        warnings.append(
            f"{d} features for {n} train samples per scale: the covariance is singular and the rules cannot be trusted; "
            "raise synbench.samples, or set it to auto."
        )
    elif inputs.crowding > CROWDED:
        warnings.append(
            f"{d} features for {n} train samples per scale ({inputs.crowding:.2g} per sample): the scores are too low, the "
            "extrapolated ones nearer but outside their intervals, and the suggested budgets unreliable; raise "
            "synbench.samples, or set it to auto."
        )
    if limit is not None:
        error = float(inputs.scores(WHOLE).error.max())
        warnings.append(
            f"The limit of {limit:,} encodings bought {n:,} samples per set: standard errors up to {error:.2g}, "
            f"{inputs.crowding:.2g} features per sample."
        )
    return tuple(warnings)
