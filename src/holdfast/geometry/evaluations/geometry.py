"""Whether the space of clean embeddings is healthy or degenerate, from these embeddings alone.

With unit embeddings ``f``: ``uniformity = -log mean_{i != j} exp(-2 ||f_i - f_j||^2)`` (Wang and Isola 2020,
https://arxiv.org/abs/2005.10242), ``anisotropy`` = mean cosine of two different images (Ethayarajh 2019,
https://arxiv.org/abs/1909.00512), RankMe (``geometry/spectrum.py``), hubness (``geometry/classes.py``), and the
coefficient of variation of the norms. Uniformity is also computed within classes, or within k-means clusters if there are
no labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.points.moments import far_out
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.core.statistics.intervals import skewed_interval
from holdfast.core.statistics.summaries import Better, series_of, summarise
from holdfast.geometry.classes import (
    FEWER,
    NEAREST,
    GroupUniformity,
    Labels,
    Margins,
    between,
    clusters,
    group_uniformity,
    occurrences,
    robustness_index,
    skewness,
    top_share,
    uniformity,
    within,
)
from holdfast.geometry.spectrum import GROUPS, rank_estimate, rankme, rankme_influence
from holdfast.geometry.sphere import ZERO, Neighbourhoods, Sphere, Strangers, Tags, groups_of, sphere_warnings
from holdfast.geometry.views import Lengths
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import findings_of, line_of
from holdfast.measure.population import Fit, Population

FEW = {"hub_skewness": 300, "hub_share": 1000}
"""Of fewer images there is no interval: it would hold the truth too rarely. Others need as many as a jackknife groups."""
PER_FEATURE = 5
"""Images for each feature from which on RankMe is compared image by image."""
CLUSTERS = "clusters"
TAG_MARGIN, TAG_LED = "tag_margin", "tag_led_share"
DRAWN = 200
"""Singular values in the curve, at most."""
Values = Float[np.ndarray, "n"]

Kind = Literal["class", "cluster"]


@final
@dataclass(frozen=True)
class SpaceGeometry(Evaluation):
    """Health of the space of clean embeddings: spread, rank and hubs.

    Papers: uniformity (Wang and Isola 2020, https://arxiv.org/abs/2005.10242), anisotropy (Ethayarajh 2019,
    https://arxiv.org/abs/1909.00512), RankMe.
    """

    k: int = 10
    """Neighbours of each image."""
    clusters: int = 10
    """Clusters of k-means, used without labels."""
    tags: Tags | None = None
    """File of nuisance tags: what should not matter about each image."""
    samples: int = 25_600
    """Number of images, all pairs of them; also RankMe's sample."""
    sizes = Sizes(
        quick={"samples": 2000},
        full={"samples": 100_000},
        large={"samples": 2000},  # each is encoded once only
    )
    name = "geometry"
    version = 3
    uses_labels = True
    robustness = False
    title = "Geometry of the space"
    meaning = (
        "RankMe says how many dimensions the embeddings fill, uniformity how evenly they are spread on the sphere; both are "
        "low where an encoder gives different images nearly the same embedding. Hubs are images that are neighbours of far "
        "more others than their share; anisotropy is the cosine of two random images."
    )
    headline = ("rankme", "uniformity", "hub_skewness")
    words = (("rankme", "RankMe"),)
    questions = (
        Question(
            place=90,
            text="Is its space healthy?",
            quantities=("rankme",),
            meaning="dimensions that its embeddings fill",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "clusters")

    def fits(self) -> tuple[Fit[Any], ...]:
        if self.tags is None:
            return (self._neighbourhoods(),)
        return (self._neighbourhoods(), Strangers(self.k, self.samples, self.tags), Margins(self.samples, self.tags))

    def observation(self) -> Lengths:
        return Lengths(self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        sphere = population.learned(self._neighbourhoods())
        position_of = {row: k for k, row in enumerate(rows)}
        where = [position_of[row] for row in sphere.rows]
        labels, kind = self._labelled(population, sphere)
        grouped = group_uniformity(sphere.codes, labels)
        quantity = f"uniformity_within_{CLUSTERS if kind == 'cluster' else 'classes'}"
        of, alone = f"mean uniformity within a {kind}", f"alone in its {kind}"
        measured = [
            *_spread(sphere, observed["length"].cpu().numpy()[where]),
            *_hubs(sphere, self.k),
            Measured(quantity, grouped.mean, "nats", of, "neither", {}, alone),
            *(_between_classes(sphere, labels) if kind == "class" else ()),
            *self._nuisance(population, sphere, labels, kind),
        ]
        groups = None if self.tags is None else groups_of(population, self.tags)
        series = [each.series(where, len(rows)) for each in measured]
        codes = population.codes[sphere.rows]
        rank, spectrum = rank_and_spectrum(codes)
        moves = [each.series(where, len(rows)) for each in moves_of_rank(codes, rank)]
        if moves:
            rank = rank.model_copy(update={"series": moves[0].quantity, "statistic": "mean"})
        estimates = (
            rank,
            *(each.estimate(part) for each, part in zip(measured, series, strict=True) if each.better),
            *(summarise(part, "median", "higher") for part in series if part.quantity == TAG_MARGIN),
            *(summarise(part, "share", "lower") for part in series if part.quantity == TAG_LED),
        )
        curves = (spectrum, *(_class_curve(grouped) if kind == "class" else ()))
        warnings = sphere_warnings(population, sphere, len(rows))
        findings = findings_of(population, rows, (*series, *moves), estimates, warnings, curves)
        named = () if groups is None else tuple(groups[row] for row in rows)
        return findings.model_copy(update={"groups": named})

    def _neighbourhoods(self) -> Neighbourhoods:
        return Neighbourhoods(self.k, self.samples)

    def _labelled(self, population: Population, sphere: Sphere) -> tuple[Labels, Kind]:
        """Return the class of each code, or its cluster where there are no labels."""
        labels = population.images.labels
        if labels is not None:
            return np.asarray(torch.as_tensor(labels).cpu()[sphere.rows]), "class"
        return clusters(sphere.codes, 1 if sphere.constant else self.clusters, population.run.seed), "cluster"

    def _nuisance(self, population: Population, sphere: Sphere, labels: Labels, kind: Kind) -> Iterator[Measured]:
        if self.tags is None:
            return
        if kind == "cluster":
            raise HoldfastError("geometry.tags is compared with labels, and these images have none; leave tags out")
        tags = self.tags.of([population.images.ids[row] for row in sphere.rows])
        near = population.learned(Strangers(self.k, self.samples, self.tags))
        values = robustness_index(near, labels, tags) if near.size else np.full(len(tags), np.nan)
        of = "neighbours alike in the label, among those alike in label or tag alone"
        why = "no neighbours are alike in the label or the tag alone"
        yield Measured("robustness_index", values, "index in [0, 1]", of, "higher", {"k": str(self.k)}, why)
        margin = population.learned(Margins(self.samples, self.tags))
        of = "how much nearer images alike in the label alone are than those alike in the tag alone"
        yield Measured(TAG_MARGIN, margin, "margin in [-1, 1]", of, None, {"k": str(NEAREST)}, FEWER)
        led = np.where(np.isnan(margin), np.nan, margin <= 0)
        of = "images to which those alike in the tag alone are as near as those alike in the label alone, or nearer"
        yield Measured(TAG_LED, led, "", of, None, {"k": str(NEAREST)}, FEWER)


def _spread(sphere: Sphere, lengths: Values) -> Iterator[Measured]:
    codes, n = sphere.codes, len(sphere.rows)
    cosine = ((codes @ codes.sum(0) - codes.square().sum(1)).double() / (n - 1)).cpu().numpy()
    mean, deviation = lengths.mean(), lengths.std()
    z = (lengths - mean) / deviation if deviation else np.zeros(n)
    spread = deviation / mean * (1 + (z**2 - 1) / 2 - (lengths - mean) / mean)
    yield Measured("uniformity", uniformity(sphere.potential), "nats", "uniformity of the clean embeddings", "higher")
    yield Measured("anisotropy", 2 * cosine - cosine.mean(), "cosine", "mean cosine of two images", "lower")
    yield Measured("norm_spread", spread, "of the mean length", "spread of the embeddings' lengths", "neither")
    yield Measured("code_length", lengths, "length", "length of the clean embedding")


def _hubs(sphere: Sphere, k: int) -> Iterator[Measured]:
    conditions, n = {"k": str(k)}, len(sphere.rows)
    skew = share = count = np.full(n, np.nan)
    if sphere.near.size:
        skew, share = skewness(sphere.near), top_share(sphere.near)
        count = occurrences(sphere.near).astype(float)
    why = "all embeddings are one" if sphere.constant else f"{n} images are too few for {k} neighbours"
    of = "fraction of neighbours' places that the top 1% of images take"
    skewed = "skewness of occurrences as a neighbour"
    yield Measured("hub_skewness", skew, "third moment", skewed, "lower", conditions, why)
    yield Measured("hub_share", share, "fraction of places", of, "lower", conditions, why)
    yield Measured("occurrences", count, "lists", "lists of nearest neighbours an image is in", None, conditions, why)


def _between_classes(sphere: Sphere, labels: Labels) -> Iterator[Measured]:
    unit = "squared distance"
    yield Measured("distance_within_classes", within(sphere.codes, labels), unit, "mean within a class", "neither")
    if len(np.unique(labels)) > 1:
        far = between(sphere.codes, labels)
        yield Measured("distance_between_classes", far, unit, "mean between two classes", "neither")


def _class_curve(grouped: GroupUniformity) -> Iterator[Curve]:
    parts = [np.sort(grouped.values[rows]) for rows in grouped.groups.values()]
    ends = [skewed_interval(part) for part in parts]
    if parts:
        name, label, means = "uniformity_within_classes", "uniformity within the class", [part.mean() for part in parts]
        low, high = zip(*ends, strict=True)
        yield line_of(name, {}, "class", label, map(float, grouped.groups), means, low=low, high=high)


@dataclass(frozen=True)
class Measured:
    """A number for each image, in the order of the codes, whose mean is wanted where one direction is said to be better."""

    quantity: str
    values: Values
    unit: str
    of: str
    better: Better | None = None
    conditions: Conditions | None = None
    reason: str = ""

    def series(self, where: Sequence[int], count: int) -> Series:
        """Return the values of ``count`` images; those not at ``where`` have a zero code."""
        values = np.full(count, np.nan)
        values[list(where)] = self.values
        kept = set(where)

        def why(position: int) -> str:
            return self.reason if position in kept else ZERO

        name, case = f"{self.quantity}_influence" if self.better else self.quantity, self.conditions or {}
        return series_of(name, case, torch.from_numpy(values), self.unit, Claim.ESTIMATE, self.of, why)

    def estimate(self, series: Series) -> Estimate:
        """Return the mean of ``series`` with its interval, if it has an honest one."""
        assert self.better is not None
        estimate = summarise(series, "mean", self.better, self.quantity)
        if self.quantity.endswith(CLUSTERS):
            why = "no interval: the clusters were found in these very embeddings"
        elif estimate.n < (fewest := FEW.get(self.quantity, GROUPS)):
            why = f"no interval: fewer than {fewest} images"
        elif self.quantity == "robustness_index":
            return estimate.model_copy(update={"low": max(0.0, estimate.low), "high": min(1.0, estimate.high)})
        else:
            return estimate
        update = {"low": nan, "high": nan, "method": why, "series": None, "statistic": "other"}
        return estimate.model_copy(update=update)


def rank_and_spectrum(codes: Float[Tensor, "n d"]) -> tuple[Estimate, Curve]:
    """Return RankMe of the codes with their lengths, and their singular values."""
    rank, spectrum = rankme(codes)
    estimate = rank_estimate("rankme", rank, len(codes), "RankMe of the clean embeddings", far_out(codes))
    ranks = np.unique(np.geomspace(1, len(spectrum), min(DRAWN, len(spectrum))).round().astype(int))
    shares = (spectrum / spectrum.sum().clamp(min=torch.finfo(spectrum.dtype).tiny)).cpu().numpy()
    label, values = "fraction of the sum of singular values", shares[ranks - 1]
    return estimate, line_of("singular_values", {}, "place", label, ranks.astype(float), values)


def moves_of_rank(codes: Float[Tensor, "n d"], rank: Estimate) -> Iterator[Measured]:
    """Yield RankMe as each image moves it, unless that says too little of other images.

    Of few images per feature RankMe is too small, by amounts that differ from encoder to encoder, and codes that lie far out
    move it by more than any that were drawn may tell: there the intervals of both numbers are compared.
    """
    if isnan(rank.low) or len(codes) < PER_FEATURE * codes.shape[1] or far_out(codes):
        return
    moves = rank.value + rankme_influence(codes).cpu().numpy()
    yield Measured("rankme", moves, "dimensions", "RankMe of the clean embeddings", "higher")
