"""What the lists of nearest neighbours say: hubs, and whether neighbours agree in what should not matter.

``N_k(x)`` counts the images that have ``x`` among their ``k`` nearest neighbours; its mean is ``k``. Its skewness measures
hubness (Radovanovic, Nanopoulos and Ivanovic 2010, https://jmlr.org/papers/v11/radovanovic10a.html), as does the share of
all places in such lists that the 1% of images with the most of them take. The robustness index compares neighbours that
agree in the label alone with those that agree in a nuisance alone (de Jong, Marcus and Teuwen 2025,
https://arxiv.org/abs/2501.18055; as a share, and among images of other slides alone, Koemen et al. 2025,
https://arxiv.org/abs/2507.17845).

Each comes as one value per image whose mean is the statistic: itself plus the image's influence on it (Hampel 1974), by its
own count and by those of its neighbours, which its list raises. So intervals and paired comparisons are those of means.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from jaxtyping import Float, Int

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
