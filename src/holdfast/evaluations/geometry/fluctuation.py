"""Semantic fluctuation: how much what is known of a class comes and goes during training.

``TV_c = mean_t |Acc_{t+1}^c - Acc_t^c|`` over checkpoints at equal steps, with the accuracy of one probe on each class
(Zhong et al. 2022). Chance in the images makes accuracies differ even where nothing changes, which the value does not allow
for; the interval does: it adds up intervals of all differences that hold together.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Estimate
from holdfast.core.statistics.intervals import bounded_interval

CONFIDENCE = 0.95


def semantic_fluctuation(
    predictions: Int[np.ndarray, "checkpoints n"], labels: Int[np.ndarray, "n"]
) -> tuple[Estimate, ...]:
    """Return the semantic fluctuation of each class from the ``predictions`` of a probe on each of several checkpoints.

    Raises:
        HoldfastError: there is only one checkpoint.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> found = semantic_fluctuation(np.array([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]), labels)
        >>> [estimate.value for estimate in found]
        [0.5, 0.0]
    """
    if len(predictions) < 2:
        raise HoldfastError(f"fluctuation needs the predictions of two checkpoints at least, got {len(predictions)}")
    right = (predictions == labels).astype(float)
    return tuple(_fluctuation(name, np.diff(right[:, labels == name], axis=0)) for name in np.unique(labels).tolist())


def _fluctuation(name: int, differences: Float[np.ndarray, "steps m"]) -> Estimate:
    confidence = 1 - (1 - CONFIDENCE) / len(differences)  # so that all hold together (Bonferroni)
    ends = np.array([bounded_interval(step, (-1.0, 1.0), confidence) for step in differences])
    least = np.where((ends[:, 0] <= 0) & (ends[:, 1] >= 0), 0.0, np.abs(ends).min(1))
    return Estimate(
        quantity="semantic_fluctuation",
        conditions={"class": str(name)},
        value=float(np.abs(differences.mean(1)).mean()),
        low=float(least.mean()),
        high=float(np.abs(ends).max(1).mean()),
        n=differences.shape[1],
        method=f"Gaffke's bounds of {len(differences)} differences together (Bonferroni)",
        confidence=CONFIDENCE,
        unit="accuracy",
        claim=Claim.ESTIMATE,
        of="mean change of the class's accuracy from checkpoint to checkpoint",
        better="lower",
        statistic="whole",
    )
