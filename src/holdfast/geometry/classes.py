"""Classes on the unit sphere: hubs, neighbours, distances and margins between classes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.points.points import points
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.groups import numbered
from holdfast.geometry.sphere import Tags, directions, groups_of, potentials
from holdfast.measure.population import Fit, LooksAt, Population

# What the lists of nearest neighbours say: hubs, and whether neighbours agree in what should not matter.
#
# ``N_k(x)`` counts the images that have ``x`` among their ``k`` nearest neighbours; its mean is ``k``. Its skewness
# measures hubness (Radovanovic, Nanopoulos and Ivanovic 2010, https://jmlr.org/papers/v11/radovanovic10a.html), as
# does the share of all places in such lists that the 1% of images with the most of them take. The robustness index
# compares neighbours that agree in the label alone with those that agree in a nuisance alone (de Jong, Marcus and
# Teuwen 2025, https://arxiv.org/abs/2501.18055; as a share, and among images of other slides alone, Koemen et al.
# 2025, https://arxiv.org/abs/2507.17845).
#
# Each comes as one value per image whose mean is the statistic: itself plus the image's influence on it (Hampel
# 1974), by its own count and by those of its neighbours, which its list raises. So intervals and paired comparisons
# are those of means.

TOP = 0.01
Values = Float[np.ndarray, "n"]
Near = Int[np.ndarray, "n k"]
"""For each image its nearest others."""


def occurrences(near: Near) -> Int[np.ndarray, "n"]:
    """Return in how many lists of neighbours each image is.

    Example:
        >>> occurrences(np.array([[1], [0], [1]])).tolist()
        [1, 2, 0]
    """
    return np.bincount(near.ravel(), minlength=len(near))


def skewness(near: Near) -> Values:
    """Return the third standardised moment of the occurrences, with each image's influence on it; 0 where all are equal."""
    counts = occurrences(near)
    centred = counts - counts.mean()
    spread = float(np.sqrt((centred**2).mean()))
    if not spread:
        return np.zeros(len(counts))
    z = centred / spread
    third = float((z**3).mean())
    influence = z**3 - 3 * z - 1.5 * third * (z**2 - 1)
    return influence + _by_voting(near, (3 * z**2 - 3 - 3 * third * z) / spread)


def top_share(near: Near) -> Values:
    """Return the share of all places that the 1% of images with the most have, with each image's influence on it."""
    counts = occurrences(near)
    top = ceil(TOP * len(counts))
    ordered = np.sort(counts)[::-1]
    least = ordered[top - 1]
    above = np.maximum(counts - least, 0) / counts.mean()
    influence = float(ordered[:top].sum() / counts.sum()) + above - above.mean()
    return influence + _by_voting(near, (counts > least) / counts.mean())


def _by_voting(near: Near, slope: Values) -> Values:
    """Return each image's influence by the counts it raises; ``slope`` is what one more count of an image changes."""
    votes = slope[near].sum(1)
    return votes - votes.mean()


def robustness_index(near: Near, labels: Int[np.ndarray, "n"], tags: Int[np.ndarray, "n"]) -> Values:
    """Return, of the neighbours that agree in either label or tag alone, the share that agree in the label.

    With each image's influence on it, by its neighbours and as one of others'; all nan where there are none such.

    Example:
        >>> near = np.array([[1, 2], [0, 3], [0, 3], [2, 1]])
        >>> float(robustness_index(near, np.array([0, 0, 1, 1]), np.array([5, 6, 5, 6])).mean())
        0.5
    """
    label, tag = labels[near] == labels[:, None], tags[near] == tags[:, None]
    right, either = (label & ~tag).astype(float), (label ^ tag).astype(float)
    if not either.any():
        return np.full(len(near), np.nan)
    index = right.sum() / either.sum()
    excess = right - index * either
    incoming = np.bincount(near.ravel(), weights=excess.ravel(), minlength=len(near))
    return index + (excess.sum(1) + incoming) * len(near) / either.sum()


# How classes lie on the unit sphere: their uniformity, their distances, and the images' influence on each.
#
# ``distance(c, c') = mean ||f_a - f_b||^2 = 2 - 2 mu_c . mu_c'`` over images ``a`` of one class and ``b`` of the
# other, with ``mu`` the mean of a class's unit codes: O(n). Its diagonal counts images with themselves: twice the
# variance of the class.

Unit = Float[Tensor, "n d"]
"""Codes of length one."""
Labels = Int[np.ndarray, "n"]
BLOCK = 4096


def _means(codes: Unit, labels: Labels) -> tuple[Float[np.ndarray, "c d"], Int[np.ndarray, "n"]]:
    names, member = np.unique(labels, return_inverse=True)
    members = torch.from_numpy(member).to(codes.device)
    sums = torch.zeros(len(names), codes.shape[1], dtype=torch.float64, device=codes.device)
    for part, there in zip(codes.split(BLOCK), members.split(BLOCK), strict=True):
        sums.index_add_(0, there, part.double())
    return (sums / members.bincount()[:, None]).cpu().numpy(), member


def within(codes: Unit, labels: Labels) -> Float[np.ndarray, "n"]:
    """Mean distance within classes, with the influence of each image."""
    means, member = _means(codes, labels)
    return _moved(codes, member, means, means / len(means), float((2 - 2 * (means**2).sum(1)).mean()))


def between(codes: Unit, labels: Labels) -> Float[np.ndarray, "n"]:
    """Mean distance between classes, with the influence of each image; two classes at least."""
    means, member = _means(codes, labels)
    count, others = len(means), means.sum(0) - means
    value = float(2 - 2 * (means * others).sum() / (count * (count - 1)))
    return _moved(codes, member, means, others / (count * (count - 1)), value)


def _moved(
    codes: Unit, member: Labels, means: Float[np.ndarray, "c d"], slopes: Float[np.ndarray, "c d"], value: float
) -> Float[np.ndarray, "n"]:
    """Return ``value`` as each image moves it, whose class's mean moves it by ``-4 slope``."""
    there = torch.from_numpy(slopes).to(codes)[torch.from_numpy(member).to(codes.device)]
    along = torch.linalg.vecdot(codes, there).double().cpu().numpy()
    share = np.bincount(member) / len(member)
    return value - 4 * (along - (means * slopes).sum(1)[member]) / share[member]


@dataclass(frozen=True)
class GroupUniformity:
    """Uniformity within groups of images, as each image moves it; nan for images alone in their group."""

    values: Float[np.ndarray, "n"]
    """The uniformity of the image's group, with its influence on it."""
    groups: dict[int, Int[np.ndarray, "m"]]
    """The images of each group of two or more."""

    @property
    def mean(self) -> Float[np.ndarray, "n"]:
        """Return the mean over groups, each counted once, with each image's influence on it."""
        result = np.full(len(self.values), np.nan)
        levels = [float(self.values[rows].mean()) for rows in self.groups.values()]
        total = sum(map(len, self.groups.values()))
        for level, rows in zip(levels, self.groups.values(), strict=True):
            result[rows] = np.mean(levels) + (self.values[rows] - level) * total / (len(rows) * len(levels))
        return result


def uniformity(potential: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Return ``-log`` of the mean potential, with each image's influence on it.

    The mean is one over pairs, in which an image not drawn takes part twice (Hoeffding 1948).
    """
    mean = potential.mean()
    return -np.log(mean) - 2 * (potential - mean) / mean


def group_uniformity(codes: Unit, labels: Labels) -> GroupUniformity:
    """Return the uniformity within each group of equal ``labels``."""
    values, groups = np.full(len(labels), np.nan), {}
    for name in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == name)
        if len(rows) > 1:
            groups[name] = rows
            values[rows] = uniformity(potentials(points(codes[torch.from_numpy(rows).to(codes.device)])).cpu().numpy())
    return GroupUniformity(values, groups)


def clusters(codes: Unit, count: int, seed: int) -> Labels:
    """k-means cluster of each embedding; their order must not depend on that of the images."""
    from sklearn.cluster import KMeans

    fitted = KMeans(min(count, len(codes)), n_init=4, random_state=seed % 2**32).fit(codes.cpu().numpy())
    return fitted.labels_.astype(np.int64)


# How much nearer images alike in the label but not in the tag are than images alike in the tag but not in the label.
#
# With ``d_SO`` the mean cosine distance of an image to its ``NEAREST`` nearest of the same label and other tags, and
# ``d_OS`` that to its nearest of other labels and the same tag, all of other groups than its own:
#
# ``margin = (d_OS - d_SO) / (d_OS + d_SO)``, in [-1, 1]
#
# is the cross-confounder robustness margin (CRoMa: Grisi, van der Laak and Litjens 2026,
# https://arxiv.org/abs/2607.25497): negative where what should not matter decides which images are near.

NEAREST = 5
"""The paper's number of neighbours of each kind."""
MARGIN_BLOCK = 1 << 22
"""Distances held at a time."""
FEWER = f"fewer than {NEAREST} images of other groups share its label or its tag alone, or all these have its embedding"


@final
@dataclass(frozen=True)
class Margins(Fit[Float[np.ndarray, "n"]]):
    """The margin of each image, in the order of ``Neighbourhoods`` of as many ``samples``; nan where it has none."""

    samples: int
    tags: Tags
    name = "margins"
    version = 1
    uses_labels = True
    uses_groups = True

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        if population.images.labels is None:
            raise HoldfastError("geometry.tags is compared with labels, and these images have none; leave tags out")
        rows, codes = directions(population, self.samples)
        labels = population.labels.cpu().numpy()[rows]
        if len(np.unique(labels)) < 2:
            raise HoldfastError(
                "geometry.tags is compared with labels, and all images have one; give two classes, or leave tags out"
            )
        tags, names = self.tags.of([population.images.ids[row] for row in rows]), groups_of(population, self.tags)
        groups = np.arange(len(rows)) if names is None else numbered(np.array(names)[rows])
        return {"margin": torch.from_numpy(margins(codes, labels, tags, groups))}

    def restore(self, population: Population, learned: Observed) -> Float[np.ndarray, "n"]:
        return learned["margin"].cpu().numpy()


def margins(
    codes: Float[Tensor, "n d"], labels: Int[np.ndarray, "n"], tags: Int[np.ndarray, "n"], groups: Int[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """Return the margin of each unit code; nan where fewer than ``NEAREST`` of either kind are of other groups.

    Example:
        >>> codes = torch.tensor([[1.0, 0.0]] * 6 + [[0.0, 1.0]] * 6)
        >>> labels, tags = np.repeat([0, 1], 6), np.tile([0, 1], 6)
        >>> float(margins(codes, labels, tags, np.arange(12))[0])  # three of each kind are too few
        nan
    """
    result = np.full(len(labels), np.nan)
    units = codes.double()
    for label, tag in np.unique(np.stack([labels, tags], 1), axis=0):
        rows = np.flatnonzero((labels == label) & (tags == tag))
        alike = np.flatnonzero((labels == label) & (tags != tag))
        tagged = np.flatnonzero((labels != label) & (tags == tag))
        right, wrong = _nearest(units, rows, alike, groups), _nearest(units, rows, tagged, groups)
        total = right + wrong
        defined = np.isfinite(total) & (total > 0)
        result[rows[defined]] = (wrong - right)[defined] / total[defined]
    return result


def _nearest(
    units: Float[Tensor, "n d"], rows: Int[np.ndarray, "m"], others: Int[np.ndarray, "o"], groups: Int[np.ndarray, "n"]
) -> Float[np.ndarray, "m"]:
    """Return the mean distance of ``rows`` to the ``NEAREST`` nearest of ``others`` in other groups; infinite of fewer."""
    if len(others) < NEAREST:
        return np.full(len(rows), np.inf)
    means = []
    for part in np.array_split(rows, -(-len(rows) * len(others) // MARGIN_BLOCK)):
        distance = (1 - units[part] @ units[others].T).clamp_min(0)
        distance[torch.from_numpy(groups[part][:, None] == groups[others][None])] = torch.inf
        means.append(distance.topk(NEAREST, largest=False).values.mean(1).cpu().numpy())
    return np.concatenate(means)
