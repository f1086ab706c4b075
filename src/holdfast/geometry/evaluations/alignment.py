"""Whether views of one image have similar embeddings while different images stay apart: alignment and LiDAR.

``alignment = mean ||f(x) - f(t(x))||^2`` with unit embeddings, over images and their views ``t(x)`` (Wang and Isola 2020,
https://arxiv.org/abs/2005.10242); also relative to the mean squared distance between different images. LiDAR is the rank
of the linear discriminant analysis in which each image with its views is a class (``geometry/spectrum.py``). Departure:
the views are fixed edits on a list; both papers draw the augmentations of pre-training, which many encoders do not
publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.points.counting import Groups
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.geometry.spectrum import lidar, rank_estimate
from holdfast.geometry.sphere import ZERO
from holdfast.geometry.views import Views
from holdfast.measure.evaluation import Evaluation, Sizes, without
from holdfast.measure.observation import findings_of
from holdfast.measure.population import Population
from holdfast.transforms.base import Transform

EDITS = "crop:0.2 rotation:10 brightness:0.2 contrast:0.6 hue-saturation:0.2 gamma:0.6 blur:0.02 noise:0.1"
VIEWS = tuple(map(Transform.read, EDITS.split()))
OF = "of the embeddings of images and their views"
ONE = "all images have one embedding, so there is no distance to compare with"


ROUNDED = 1e-12
"""Squared distance of unit codes that single precision may make of one code, computed in two batches."""


@final
@dataclass(frozen=True)
class Alignment(Evaluation):
    """How close edited views of an image stay, and how many dimensions tell images apart.

    Papers: alignment (Wang and Isola 2020, https://arxiv.org/abs/2005.10242) and LiDAR. Departure: the views are a
    fixed list of edits, not the augmentations of pre-training.
    """

    views: tuple[Transform, ...] = VIEWS
    """Edits of each image, one view each; ` + ` applies several in a row."""
    samples: int = 1000
    """Number of images; also LiDAR's sample."""
    sizes = Sizes(quick={"samples": 200}, full={"samples": 10_000}, large={"samples": 60}, heavy={"samples": 30})
    name = "alignment"
    version = 1
    changes = "views"
    partial = True
    robustness = False
    title = "Alignment of views"
    meaning = (
        "Alignment is the squared distance between the unit embeddings of an image and of its edited views, relative "
        "alignment the same as a fraction of that between different images: 0 is perfect, 1 no better than chance. "
        "LiDAR says in how many dimensions images differ by more than their views do."
    )
    headline = ("relative_alignment", "lidar")
    words = (("lidar", "LiDAR"),)

    def observation(self) -> Views:
        return Views(self.views, self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        clean, views = population.codes[list(rows)], observed["codes"].to(population.codes.device)
        unit = on_sphere(clean)
        squares = torch.stack([(on_sphere(view) - unit).square().sum(1) for view in views.unbind(1)], 1).cpu().numpy()
        of, over = "squared distance of an image and its view", without(self, population.encoder)
        parts = [
            _series("alignment_by_view", {"view": str(view)}, squares[:, k], of, (0.0, 4.0))
            for k, view in enumerate(self.views)
        ]
        whole = _series("alignment", over, squares.mean(1), of, (0.0, 4.0))
        shares = relative_to_others(squares.mean(1), unit, population.groups_of(rows))
        relative = _series("relative_alignment_influence", over, shares, f"{of}, over that of different images")
        complete = len(rows) == len(self.observation().rows(population))
        estimates = (
            summarise(relative, "mean", "lower", "relative_alignment"),
            summarise(whole, "mean", "lower"),
            _lidar(population, rows, clean, views, complete).model_copy(update={"conditions": over}),
            *(summarise(part, "mean", "lower") for part in parts),
        )
        warnings = [
            f"The view {part.conditions['view']} changes no embedding at all, which may say more about these images than "
            "about the encoder: leave it out of alignment.views if it does not apply to them."
            for part in parts
            if all(abs(value) <= ROUNDED for value in part.values)
        ]
        return findings_of(population, rows, (relative, whole, *parts), estimates, warnings)


def on_sphere(codes: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return codes of length one in float64, nan for those that are zero."""
    unit = Cosine().embed(codes.double())
    assert unit is not None
    return unit


def relative_to_others(
    squares: Float[np.ndarray, "n"], unit: Float[Tensor, "n d"], groups: Groups | None = None
) -> Float[np.ndarray, "n"]:
    """Return the mean of ``squares`` over the mean squared distance between different images, with each one's influence.

    Images of one ``groups`` entry are not different ones. All nan where that distance is zero; images that are undefined
    stay so.
    """
    result = np.full(len(squares), np.nan)
    kept = np.isfinite(squares)
    codes = unit[torch.from_numpy(kept).to(unit.device)]
    n = len(codes)
    if n < 2:
        return result
    apart = (2 - 2 * (codes @ codes.sum(0) - 1) / (n - 1)).cpu().numpy()
    if groups is not None:
        groups = groups[torch.from_numpy(kept).to(groups.device)]
        sums = codes.new_zeros(int(groups.max()) + 1, codes.shape[1]).index_add(0, groups, codes)
        others = n - groups.bincount()[groups]  # none where all that are kept are of one group: nan
        apart = (2 - 2 * (codes * (codes.sum(0) - sums[groups])).sum(1) / others).cpu().numpy()
    mean = apart.mean()
    if mean > np.finfo(np.float32).eps:
        share = squares[kept].mean() / mean
        # A mean over pairs, in which an image not drawn takes part twice (Hoeffding 1948).
        result[kept] = squares[kept] / mean - share * 2 * (apart - mean) / mean
    return result


def _series(
    name: str, case: Conditions, values: Float[np.ndarray, "n"], of: str, limits: tuple[float, float] | None = None
) -> Series:
    why = ONE if limits is None and np.isnan(values).all() else ZERO
    unit = "squared distance" if limits else "of the squared distance between images"
    series = series_of(name, case, torch.from_numpy(values), unit, Claim.ESTIMATE, of, why)
    return series.model_copy(update={"limits": limits})


def _lidar(
    population: Population, rows: Sequence[int], clean: Float[Tensor, "n d"], views: Float[Tensor, "n v d"], whole: bool
) -> Estimate:
    """Return LiDAR; undefined of some of the images, because it grows with their number."""
    # In an order that ids alone decide, so that no group of the jackknife depends on the order of the images.
    place = population.order_of.tolist()
    order = sorted(range(len(rows)), key=lambda k: place[rows[k]])
    rank = lidar(torch.cat([clean[:, None], views.to(clean.dtype)], 1)[order]) if whole else (nan, nan, nan)
    why = "no view changes any embedding" if whole else "it grows with the number of images, and not all were looked at"
    return rank_estimate("lidar", rank, len(rows), f"LiDAR {OF}", reason=why if isnan(rank[0]) else None)
