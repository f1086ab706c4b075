"""From what probes answer to series, and what must be known of a probe before its numbers mean something."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Estimate, Series
from holdfast.core.series import series_of
from holdfast.core.statistics import share_interval
from holdfast.probes.base import Probe, class_names
from holdfast.protocol.population import Population

CLEAN = "accuracy of the probe on clean images"
MARGIN = "log-odds of the label against the best other class"
ABSENT = "the bank shows no image of its class"
NEAR_CHANCE = 3.0
"""Standard errors above chance within which a probe may know nothing."""


def right_series(conditions: Conditions, right: Bool[Tensor, "n"], quantity: str = "classified_right") -> Series:
    """Return which clean images are classified right as a series."""
    return series_of(quantity, conditions, right, "yes or no", Claim.ESTIMATE, CLEAN, ABSENT)


def margin_series(conditions: Conditions, margin: Float[Tensor, "n"], quantity: str, claim: Claim) -> Series:
    """Return margins as a series; labels that the bank does not show have none."""
    return series_of(quantity, conditions, margin, "log-odds", claim, MARGIN, ABSENT)


def chance_estimate(population: Population, rows: Sequence[int]) -> Estimate:
    """Return the accuracy of answering the most common class of the images measured, without looking."""
    counts = population.labels[list(rows)].unique(return_counts=True)[1]
    most, n = int(counts.max()), len(rows)
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


def probe_warnings(
    population: Population, rows: Sequence[int], probes: Sequence[Probe], accuracies: Sequence[Estimate]
) -> tuple[str, ...]:
    """Return the sentences a reader must see beside the numbers of ``probes``, whose clean ``accuracies`` these are."""
    said = [fitted.caution for fitted in map(population.learned, probes) if fitted.caution]
    labels = population.labels[list(rows)]
    absent = population.learned(probes[0]).places(labels) < 0
    if bool(absent.any()):
        names = class_names(population, labels[absent].unique())
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        said.append(
            f"The bank shows no image of {len(names)} of the classes measured ({shown}): their {int(absent.sum())} images "
            "count as wrong; add images of them to the bank, or leave them out."
        )
    chance = chance_estimate(population, rows).value
    for probe, accuracy in zip(probes, accuracies, strict=True):
        if accuracy.value - chance <= NEAR_CHANCE * sqrt(chance * (1 - chance) / accuracy.n):
            said.append(
                f"AT CHANCE: {probe} is right on {accuracy.value:.1%} of {accuracy.n} images, within three standard errors "
                f"of the {chance:.1%} that the most common class alone gives; what it keeps under attack means nothing."
            )
    return tuple(said)
