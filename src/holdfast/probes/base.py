"""What all probes are: settings, fitted to a labelled reference set, and one score per class.

Also here: warnings about probes that are no better than chance or never saw a class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.discovery import named_classes
from holdfast.core.encoder import Codes, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Estimate
from holdfast.core.settings import TextSettings, read
from holdfast.core.statistics.intervals import share_interval
from holdfast.measure.observation import estimate_of
from holdfast.measure.population import Fit, Population, represent

# What every probe is: settings that learn from a labelled bank, and what they learn: a score of each class.
#
# A probe is a ``Fit``: ``population.learned(probe)`` learns it once, keeps it under a key and gives a ``FittedProbe``.


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedProbe:
    """Fitted classifier of embeddings, with one column of scores per class."""

    encoder: Encoder
    """Encoder whose embeddings are scored: the measured one, or one made from it (fine-tuned, behind a filter)."""
    classes: Int[Tensor, "c"]
    """Label of each column, ascending, shape (c,)."""
    caution: str = ""
    """One sentence that a reader must know about the probe; empty if none."""

    @abstractmethod
    def scores(self, codes: Codes) -> Float[Tensor, "b c"]:
        """Return the score of each class; the highest is the answer."""

    def logits(self, codes: Codes) -> Float[Tensor, "b c"]:
        """Smooth scores for attacks, shape (b, c); by default ``scores`` itself, whose gradients are then useful."""
        return self.scores(codes)

    def places(self, labels: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return the column that means each label; -1 for labels that the bank does not show."""
        same = labels[:, None] == self.classes
        return torch.where(same.any(1), same.to(torch.int8).argmax(1), -1)

    def ranks(self, codes: Codes, labels: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
        """Number of other classes that score at least as high as the correct class.

        0 is right; a tie counts against the probe. Labels that the reference set lacks have rank infinity: no answer is
        right.

        Args:
            codes: Embeddings, shape (b, d).
            labels: Correct label of each image, shape (b,).
        """
        places, scores = self.places(labels), self.scores(codes)
        of_class = scores.gather(1, places.clamp_min(0)[:, None])
        # Not "below", so that codes that are not finite are right about nothing.
        ranks = (~(scores < of_class)).sum(1) - 1
        return ranks.double().masked_fill(places < 0, torch.inf)

    def codes(self, population: Population, rows: Sequence[int]) -> Codes:
        """Clean embeddings that the probe scores, of the images at ``rows``.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.

        Returns:
            Embeddings, shape (b, d).
        """
        if self.encoder is population.encoder:
            return population.codes[list(rows)]
        return represent(self.encoder, population.images, rows, population.run)


@dataclass(frozen=True)
class Probe(Fit[FittedProbe], TextSettings):
    """Method to learn classes from the embeddings of a labelled reference set.

    The fields are the settings.
    """

    uses_labels: ClassVar[bool] = True
    uses_bank: ClassVar[bool] = True

    @classmethod
    def read(cls, text: str) -> Probe:
        """Return the probe that ``text`` spells.

        Example:
            >>> str(Probe.read("knn:k=20"))
            'knn:k=20'
        """
        return read(text, probes(), "probe")


def taught(bank: Population) -> Int[Tensor, "n"]:
    """Return the labels of ``bank``.

    Raises:
        HoldfastError: it has none, or all of them are the same.
    """
    labels = bank.labels
    if bool((labels == labels[0]).all()):
        (name,) = class_names(bank, labels[:1])
        raise HoldfastError(
            f"all {len(labels)} images of the bank {bank.images.name} show one class ({name}), and a probe learns to tell "
            "classes apart; add images of others"
        )
    return labels


def class_names(population: Population, labels: Int[Tensor, "c"]) -> list[str]:
    """Names of classes, or their numbers as text if the images name none."""
    names = population.images.classes
    return [names[label] if 0 <= label < len(names) else str(label) for label in labels.tolist()]


def probes() -> dict[str, type[Probe]]:
    """Return every probe by name."""
    import holdfast.probes as home

    return named_classes(home, Probe)


NEAR_CHANCE = 3.0
"""Standard errors above chance within which a probe may know nothing."""
NAMED = 5


def chance_estimate(population: Population, rows: Sequence[int]) -> Estimate:
    """Accuracy of always answering the most common class of the measured images."""
    most, n = int(population.labels[list(rows)].unique(return_counts=True)[1].max()), len(rows)
    number, of = (most / n, *share_interval(most, n)), "accuracy of the most common class as the only answer"
    return estimate_of("chance_accuracy", number, n, "mid-P", "fraction of samples", of, "neither")


def accuracy_warnings(
    population: Population, rows: Sequence[int], learned: Sequence[FittedProbe], clean: Sequence[Estimate], vain: str
) -> tuple[str, ...]:
    """Warnings to read beside the numbers of probes.

    Args:
        vain: Which numbers mean nothing where a probe is no better than random choice.
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
