"""What must be known of a probe before its numbers mean something: classes it never saw, and whether it beats chance."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from holdfast.core.records import Claim, Estimate
from holdfast.core.statistics.intervals import share_interval
from holdfast.probes.base import FittedProbe, class_names
from holdfast.protocol.population import Population

NEAR_CHANCE = 3.0
"""Standard errors above chance within which a probe may know nothing."""
NAMED = 5


def chance_estimate(population: Population, rows: Sequence[int]) -> Estimate:
    """Return the accuracy of answering the most common class of the images measured, without looking."""
    most, n = int(population.labels[list(rows)].unique(return_counts=True)[1].max()), len(rows)
    low, high = share_interval(most, n)
    return Estimate(
        quantity="chance_accuracy",
        value=most / n,
        low=low,
        high=high,
        n=n,
        method="mid-P",
        unit="share of samples",
        claim=Claim.ESTIMATE,
        of="accuracy of the most common class as the only answer",
        better="neither",
    )


def accuracy_warnings(
    population: Population, rows: Sequence[int], learned: Sequence[FittedProbe], clean: Sequence[Estimate], vain: str
) -> tuple[str, ...]:
    """Return the sentences that a reader must see beside the numbers of probes whose ``clean`` accuracies these are.

    ``vain`` says which of them mean nothing where a probe is at chance.
    """
    warnings = [probe.caution for probe in learned if probe.caution]
    labels = population.labels[list(rows)]
    absent = learned[0].places(labels) < 0
    if bool(absent.any()):
        names = class_names(population, labels[absent].unique())
        shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        warnings.append(
            f"The bank shows no image of {len(names)} of the classes measured ({shown}): their {int(absent.sum())} images "
            "count as wrong; add images of them to the bank, or leave them out."
        )
    chance = chance_estimate(population, rows).value
    for estimate in clean:
        if estimate.value - chance <= NEAR_CHANCE * sqrt(chance * (1 - chance) / estimate.n):
            warnings.append(
                f"AT CHANCE: {estimate.conditions['probe']} is right on {estimate.value:.1%} of {estimate.n} clean images, "
                f"within three standard errors of the {chance:.1%} that the most common class alone "
                f"gives; {vain} mean nothing."
            )
    return tuple(warnings)
