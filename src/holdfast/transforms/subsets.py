"""Labelled data sets with another balance of classes, for training and probes: long-tailed, uniform, substituted.

The long tail is the Pareto-II profile of Zhong et al. 2022 (https://arxiv.org/abs/2206.05259): the class of rank
i = 0, 1, ... among C has

    n_i = round(least + (most - least) (q_i - q_{C-1}) / (q_0 - q_{C-1})),   q_i = ((i + 0.8) / C)^(-1/6) - 1

images. CIFAR-10-LT has another profile (Cui et al. 2019, https://arxiv.org/abs/1901.05555), ``profile=exponential``:

    n_i = floor(most (least / most)^(i / (C-1)))

A seeded shuffle assigns ranks to classes; a class with too few images for its rank gets a later one.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from holdfast.core.errors import HoldfastError, OutOfRange, check_known
from holdfast.core.files import hashed
from holdfast.core.images import Images
from holdfast.core.records import grouped
from holdfast.core.settings import TextSettings, read

PROFILES = ("pareto", "exponential")
MANY, FEW = 100, 20
"""Images per class above which it has many shots, and below which few."""


@dataclass(frozen=True)
class LongTail:
    """Long-tailed subset of labelled images."""

    images: Images
    classes: tuple[int, ...]
    """Classes from the most frequent to the rarest."""
    counts: tuple[int, ...]
    """Images of each class, in the order of ``classes``."""

    def shots(self) -> dict[str, tuple[int, ...]]:
        """Return the classes with many, medium and few images."""
        return shot_groups(dict(zip(self.classes, self.counts, strict=True)))


def shot_groups(counts: Mapping[int, int]) -> dict[str, tuple[int, ...]]:
    """Classes with many, medium and few images.

    Example:
        >>> shot_groups({0: 500, 1: 100, 2: 19})
        {'many': (0,), 'medium': (1,), 'few': (2,)}
    """
    groups: dict[str, list[int]] = {"many": [], "medium": [], "few": []}
    for label, count in counts.items():
        groups["many" if count > MANY else "few" if count < FEW else "medium"].append(label)
    return {name: tuple(labels) for name, labels in groups.items()}


def long_tail_counts(classes: int, most: int, least: int, profile: str = "pareto") -> tuple[int, ...]:
    """Number of images of each rank of a long tail.

    Args:
        profile: `pareto` or `exponential`.

    Example:
        >>> counts = long_tail_counts(1000, most=1280, least=5)
        >>> sum(counts), sum(n > 100 for n in counts), sum(n < 20 for n in counts)
        (116079, 388, 143)
        >>> sum(long_tail_counts(10, most=5000, least=50, profile="exponential"))  # CIFAR-10-LT
        12406
    """
    if not 1 <= least <= most:
        raise OutOfRange("images per class of a long tail", (least, most), "1 <= least <= most")
    check_known("profile of a long tail", profile, PROFILES)
    if profile == "exponential":
        powers = (least / most) ** (np.arange(classes) / max(1, classes - 1))
        return tuple(int(most * power + 1e-9) for power in powers)  # which may miss a whole number by rounding
    q = ((np.arange(classes) + 0.8) / classes) ** (-1 / 6) - 1
    share = (q - q[-1]) / (q[0] - q[-1]) if classes > 1 else np.ones(1)
    return tuple(int(count) for count in np.rint(least + (most - least) * share))


def long_tail(images: Images, most: int, least: int, seed: int = 0, profile: str = "pareto") -> LongTail:
    """Long-tailed subset of labelled images.

    Raises:
        HoldfastError: There are no labels, or the classes have too few images.
    """
    sizes = Counter(labels_of(images))
    waiting, classes = sorted(sizes, key=lambda label: hashed(seed, "rank", label)), list[int]()
    counts = long_tail_counts(len(sizes), most, least, profile)
    for count in counts:
        classes.append(next((label for label in waiting if sizes[label] >= count), waiting[0]))
        waiting.remove(classes[-1])
    return LongTail(chosen(images, dict(zip(classes, counts, strict=True)), seed), tuple(classes), counts)


def uniform_subset(images: Images, total: int, seed: int = 0) -> Images:
    """Subset with equally many images of each class.

    Args:
        total: Largest number of images, at least one per class.

    Raises:
        HoldfastError: There are no labels, or a class has too few images.
    """
    classes = set(labels_of(images))
    if total < len(classes):
        raise HoldfastError(f"{total} images are not one for each of {len(classes)} classes; ask for more")
    return chosen(images, dict.fromkeys(classes, total // len(classes)), seed)


def substituted(images: Images, others: Images) -> Images:
    """Replace ``images`` by others, such as synthesised images, with the same class counts.

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
        raise HoldfastError(f"{images.name} has no labels to count classes by; add ?labels=folders to a folder")
    return [int(label) for label in images.labels]


def chosen(images: Images, counts: dict[int, int], seed: int) -> Images:
    """Random images of each class, in their order.

    Raises:
        HoldfastError: A class has too few images.
    """
    of = grouped((label, row) for row, label in enumerate(labels_of(images)))
    rows: list[int] = []
    for label, count in counts.items():
        if len(of[label]) < count:
            raise HoldfastError(
                f"class {label} of {images.name} has {len(of[label])} images where {count} are wanted; ask for fewer"
            )
        rows += heapq.nsmallest(count, of[label], key=lambda row: hashed(seed, "subset", images.ids[row]))
    return images[sorted(rows)]


@dataclass(frozen=True)
class Subset(TextSettings):
    """Choice among labelled images, as in ``long-tail:most=5000,least=50``."""

    name: ClassVar[str]

    @classmethod
    def read(cls, text: str) -> Subset:
        """Parse a subset; everything behind ``like:`` is a reference."""
        if text.startswith(f"{Like.name}:"):
            return Like(text.partition(":")[2])
        return read(text, SUBSETS, "subset")

    @abstractmethod
    def of(self, images: Images, seed: int, load: Callable[[str], Images]) -> Images:
        """Return the images of the subset, in their order.

        Raises:
            HoldfastError: There are no labels, or a class has too few images.
        """


@final
@dataclass(frozen=True)
class LongTailed(Subset):
    """A few classes with many images, and many with few."""

    most: int
    """Images of the most frequent class."""
    least: int
    """Images of the rarest class."""
    profile: str = PROFILES[0]
    """`pareto`, as in Zhong et al., or `exponential`, as in CIFAR-10-LT."""
    name = "long-tail"
    allowed = ("most in (0, inf)", "least in (0, inf)")
    example = "most=5000,least=50"

    def of(self, images: Images, seed: int, load: Callable[[str], Images]) -> Images:
        return self.tail(images, seed).images

    def tail(self, images: Images, seed: int) -> LongTail:
        """Return the subset with its classes and counts."""
        return long_tail(images, self.most, self.least, seed, self.profile)


@final
@dataclass(frozen=True)
class Uniform(Subset):
    """Equally many images of each class."""

    total: int
    """Largest number of images."""
    name = "uniform"
    allowed = ("total in (0, inf)",)
    example = "total=12400"

    def of(self, images: Images, seed: int, load: Callable[[str], Images]) -> Images:
        return uniform_subset(images, self.total, seed)


@final
@dataclass(frozen=True)
class SomeClasses(Subset):
    """All images of some classes, chosen at random."""

    count: int
    """Number of classes."""
    name = "classes"
    allowed = ("count in (0, inf)",)
    example = "count=100"

    def of(self, images: Images, seed: int, load: Callable[[str], Images]) -> Images:
        sizes = Counter(labels_of(images))
        if not 1 <= self.count <= len(sizes):
            raise OutOfRange("subset classes: count", self.count, f"1 to {len(sizes)}, the classes of {images.name}")
        kept = sorted(sizes, key=lambda label: hashed(seed, "class", label))[: self.count]
        return chosen(images, {label: sizes[label] for label in kept}, seed)


@final
@dataclass(frozen=True)
class Like(Subset):
    """As many images of each class as other images have: generated images in the place of those they imitate."""

    reference: str
    """The images that are replaced, as `source:name`."""
    name = "like"

    def of(self, images: Images, seed: int, load: Callable[[str], Images]) -> Images:
        replaced = load(self.reference)
        counts = Counter(labels_of(replaced))
        have = Counter(labels_of(images))
        return substituted(replaced, chosen(images, {k: n for k, n in counts.items() if have[k]}, seed))


SUBSETS: dict[str, type[Subset]] = {kind.name: kind for kind in (LongTailed, Uniform, SomeClasses)}


def subset_of(images: Images, text: str | None, seed: int, load: Callable[[str], Images]) -> Images:
    """Return the subset that ``text`` spells, called after both; all images without one.

    Raises:
        HoldfastError: There is no such subset of these images.
    """
    if text is None:
        return images
    subset = Subset.read(text)
    found = subset.of(images, seed, load)
    found.name = f"{images.name} ({subset})"
    return found
