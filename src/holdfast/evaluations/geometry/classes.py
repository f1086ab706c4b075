"""How classes lie on the unit sphere: their uniformity, their distances, and the images' influence on each.

``distance(c, c') = mean ||f_a - f_b||^2 = 2 - 2 mu_c . mu_c'`` over images ``a`` of one class and ``b`` of the other, with
``mu`` the mean of a class's unit codes: O(n). Its diagonal counts images with themselves: twice the variance of the class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.points import points
from holdfast.evaluations.geometry.pairs import potentials

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
    """Return the mean of the distances within classes, with each image's influence on it."""
    means, member = _means(codes, labels)
    return _moved(codes, member, means, means / len(means), float((2 - 2 * (means**2).sum(1)).mean()))


def between(codes: Unit, labels: Labels) -> Float[np.ndarray, "n"]:
    """Return the mean of the distances between classes, with each image's influence on it; two classes at least."""
    means, member = _means(codes, labels)
    count, others = len(means), means.sum(0) - means
    value = float(2 - 2 * (means * others).sum() / (count * (count - 1)))
    return _moved(codes, member, means, others / (count * (count - 1)), value)


def _moved(
    codes: Unit,
    member: Labels,
    means: Float[np.ndarray, "c d"],
    slopes: Float[np.ndarray, "c d"],
    value: float,
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
    """Return the k-means cluster of each code; the codes must come in an order that the images' order does not change."""
    from sklearn.cluster import KMeans

    fitted = KMeans(min(count, len(codes)), n_init=4, random_state=seed % 2**32).fit(codes.cpu().numpy())
    return fitted.labels_.astype(np.int64)
