"""Labelled data sets with another balance of classes, for what learns from them: long-tailed, uniform, replaced.

The long tail is the Pareto-II profile of Zhong et al. 2022 (https://arxiv.org/abs/2206.05259): the class of rank
i = 0, 1, ... among C has

    n_i = round(least + (most - least) (q_i - q_{C-1}) / (q_0 - q_{C-1})),   q_i = ((i + 0.8) / C)^(-1/6) - 1

images. A seeded shuffle says which class has which rank.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np

from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.images import Images
from holdfast.core.noise import hashed

MANY, FEW = 100, 20
"""Images per class above which it has many shots, and below which few."""


@dataclass(frozen=True)
class LongTail:
    """Long-tailed subset of labelled images."""

    images: Images
    """The subset."""
    classes: tuple[int, ...]
    """Classes from the most frequent to the rarest."""
    counts: tuple[int, ...]
    """Images of each class, in the order of ``classes``."""

    def shots(self) -> dict[str, tuple[int, ...]]:
        """Return the classes with many, medium and few images."""
        groups: dict[str, list[int]] = {"many": [], "medium": [], "few": []}
        for label, count in zip(self.classes, self.counts, strict=True):
            groups["many" if count > MANY else "few" if count < FEW else "medium"].append(label)
        return {name: tuple(labels) for name, labels in groups.items()}


def long_tail_counts(classes: int, most: int, least: int) -> tuple[int, ...]:
    """Number of images of each rank of a long tail.

    Args:
        classes: Number of classes.
        most: Images of the most frequent class.
        least: Images of the rarest class, 1 or more.

    Example:
        >>> counts = long_tail_counts(1000, most=1280, least=5)
        >>> sum(counts), sum(n > 100 for n in counts), sum(n < 20 for n in counts)
        (116079, 388, 143)
    """
    if not 1 <= least <= most:
        raise OutOfRange("images per class of a long tail", (least, most), "1 <= least <= most")
    q = ((np.arange(classes) + 0.8) / classes) ** (-1 / 6) - 1
    share = (q - q[-1]) / (q[0] - q[-1]) if classes > 1 else np.ones(1)
    return tuple(int(count) for count in np.rint(least + (most - least) * share))


def long_tail(images: Images, most: int, least: int, seed: int = 0) -> LongTail:
    """Long-tailed subset of labelled images.

    Args:
        images: Labelled images.
        most: Images of the most frequent class.
        least: Images of the rarest class, 1 or more.
        seed: Seed of the ranks and of the choice.

    Raises:
        HoldfastError: There are no labels, or a class has too few images for its rank.
    """
    classes = sorted(set(labels_of(images)), key=lambda label: hashed(seed, "rank", label))
    counts = long_tail_counts(len(classes), most, least)
    return LongTail(chosen(images, dict(zip(classes, counts, strict=True)), seed), tuple(classes), counts)


def uniform_subset(images: Images, total: int, seed: int = 0) -> Images:
    """Subset with equally many images of each class.

    Args:
        images: Labelled images.
        total: Largest number of images, at least one per class.
        seed: Seed of the choice.

    Raises:
        HoldfastError: There are no labels, or a class has too few images.
    """
    classes = set(labels_of(images))
    if total < len(classes):
        raise HoldfastError(f"{total} images are not one for each of {len(classes)} classes; ask for more")
    return chosen(images, dict.fromkeys(classes, total // len(classes)), seed)


def substituted(images: Images, others: Images) -> Images:
    """Replace ``images`` by others, such as synthesised images, with the same class counts.

    Args:
        images: Labelled images.
        others: Labelled images to learn from instead.

    Raises:
        HoldfastError: The two do not hold equally many images of each class.
    """
    if images.classes and others.classes and images.classes != others.classes:
        raise HoldfastError(
            f"{others.name} cannot replace {images.name}: its classes are called otherwise "
            f"({', '.join(others.classes[:3])} ... instead of {', '.join(images.classes[:3])} ...); rename them"
        )
    target, counts = Counter(labels_of(images)), Counter(labels_of(others))
    if target != counts:
        label = min(label for label in target | counts if target[label] != counts[label])
        raise HoldfastError(
            f"{others.name} cannot replace {images.name}: class {label} has {counts[label]} images instead of "
            f"{target[label]}; both need equally many of each class"
        )
    return others


def labels_of(images: Images) -> list[int]:
    """Return the label of each image, or raise if there are none."""
    if images.labels is None:
        raise HoldfastError(
            f"{images.name} has no labels, which classes are counted by; add ?labels=folders to a folder"
        )
    return [int(label) for label in images.labels]


def chosen(images: Images, counts: dict[int, int], seed: int) -> Images:
    """Random images of each class, in their order.

    Args:
        images: Labelled images.
        counts: Number of images per label.
        seed: Seed of the choice.

    Raises:
        HoldfastError: A class has too few images.
    """
    of: dict[int, list[int]] = {}
    for row, label in enumerate(labels_of(images)):
        of.setdefault(label, []).append(row)
    rows: list[int] = []
    for label, count in counts.items():
        if len(of[label]) < count:
            raise HoldfastError(
                f"class {label} of {images.name} has {len(of[label])} images where {count} are wanted; ask for fewer"
            )
        rows += heapq.nsmallest(count, of[label], key=lambda row: hashed(seed, "subset", images.ids[row]))
    return images[sorted(rows)]
