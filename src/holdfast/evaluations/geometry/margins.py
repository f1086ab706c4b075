"""How much nearer images alike in the label but not in the tag are than images alike in the tag but not in the label.

With ``d_SO`` the mean cosine distance of an image to its ``NEAREST`` nearest of the same label and other tags, and ``d_OS``
that to its nearest of other labels and the same tag, all of other groups than its own:

``margin = (d_OS - d_SO) / (d_OS + d_SO)``, in [-1, 1]

is the cross-confounder robustness margin (CRoMa: Grisi, van der Laak and Litjens 2026, https://arxiv.org/abs/2607.25497):
negative where what should not matter decides which images are near.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.clusters import numbered
from holdfast.evaluations.geometry.sphere import directions, groups_of
from holdfast.evaluations.geometry.tags import Tags
from holdfast.protocol.fits import Fit, LooksAt
from holdfast.protocol.population import Population

NEAREST = 5
"""The paper's number of neighbours of each kind."""
BLOCK = 1 << 22
"""Distances held at a time."""
FEWER = (
    f"fewer than {NEAREST} images of other groups share its label alone or its tag alone, or all of these have its code"
)


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
    units: Float[Tensor, "n d"],
    rows: Int[np.ndarray, "m"],
    others: Int[np.ndarray, "o"],
    groups: Int[np.ndarray, "n"],
) -> Float[np.ndarray, "m"]:
    """Return the mean distance of ``rows`` to the ``NEAREST`` nearest of ``others`` in other groups; infinite of fewer."""
    if len(others) < NEAREST:
        return np.full(len(rows), np.inf)
    means = []
    for part in np.array_split(rows, -(-len(rows) * len(others) // BLOCK)):
        distance = (1 - units[part] @ units[others].T).clamp_min(0)
        distance[torch.from_numpy(groups[part][:, None] == groups[others][None])] = torch.inf
        means.append(distance.topk(NEAREST, largest=False).values.mean(1).cpu().numpy())
    return np.concatenate(means)
