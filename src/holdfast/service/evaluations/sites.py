"""Sites: whether embeddings group by class or by site, what a probe loses to sites, and what a repair restores.

PathoROB (Koemen et al. 2025, https://arxiv.org/abs/2507.17845), with labels for what should matter and tags for what
should not. For every pair of classes and pair of sites with images of all four kinds:

    clustering score   ARI(k-means clusters, class) - ARI(k-means clusters, site)
    performance drop   1 - accuracy of a probe trained where class and site correlate / accuracy where they do not

ARI is the adjusted Rand index. Both probes see equally many images and are tested on the same balanced, held-out ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import isnan, nan
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.files import hashed
from holdfast.core.noise import hashed_each
from holdfast.core.records import Conditions, Estimate, Findings, Question
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.core.statistics.summaries import Better, without_interval
from holdfast.geometry.sphere import Tags, directions, groups_of
from holdfast.geometry.views import Lengths
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import findings_of, population_warnings
from holdfast.measure.population import Population
from holdfast.service.site_map import KINDS, SiteMap, fit_site_map

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Cramér's V of class and site among the images that a probe is trained on."""
PENALTIES = tuple(10.0 ** np.linspace(-8, 4, 15))
"""Inverse penalties of the logistic regression, as in the authors' program."""
SPLIT = ((0, 0.25), (0.25, 0.375), (0.375, 1))
"""Parts of the groups that are tested on, that choose the penalty and that are trained on."""
FEW = "no two classes have enough held-out images at the same two sites"
UNDIVIDED = "too few groups to divide into training and test images"
STARTS = 5
"""Random starts of k-means; the best counts."""
Labels = Int[np.ndarray, "n"]
Rows = Int[np.ndarray, "_"]
Codes = Float[np.ndarray, "n d"]


class Cells(NamedTuple):
    """Rows of two classes at two sites, in random order: ``rows[class][site]``."""

    rows: tuple[tuple[Rows, Rows], tuple[Rows, Rows]]

    @property
    def fewest(self) -> int:
        """Images of the smallest of the four."""
        return min(len(cell) for pair in self.rows for cell in pair)


class Halved(NamedTuple):
    """Images in random order, and which of them repairs are fitted to."""

    rows: list[int]
    """Rows of the population."""
    codes: Codes
    """Unit embeddings."""
    sites: Labels
    """Number of the site of each image."""
    names: np.ndarray
    """Name of the site of each image."""
    units: np.ndarray
    """Group of each image; its id where there are none."""
    learning: Bool[np.ndarray, "n"]
    """Images that repairs are fitted to; the others are held out."""

    def part(self, mask: Bool[np.ndarray, "_"]) -> tuple[Codes, list[str]]:
        """Return embeddings and names of sites of some images."""
        return self.codes[mask], self.names[mask].tolist()


@final
@dataclass(frozen=True)
class Sites(Evaluation):
    """Clusters and probes where classes are seen at several sites, before and after repairs.

    Paper: PathoROB, Koemen et al. 2025, https://arxiv.org/abs/2507.17845. Departures: correlated sets of any data, and
    repairs of the embeddings.
    """

    tags: Tags | None = None
    """File of sites: `id,tag` on each line, with a third column for groups."""
    repairs: tuple[str, ...] = KINDS
    """Maps that take the site out of embeddings: `centre`, `whiten`, `combat`."""
    samples: int = 2000
    """Number of images."""
    pairs: int = 10
    """Pairs of classes at pairs of sites, at most; drawn at random."""
    repeats: int = 5
    """Random divisions into training and test images, and runs of k-means, for each pair."""
    clusters: int = 10
    """Largest number of clusters; the silhouette chooses between 2 and it."""
    least: int = 8
    """Held-out images of each class at each site, at least; other pairs are left out."""
    sizes = Sizes(quick={"samples": 500, "pairs": 3, "repeats": 2}, full={"pairs": 100, "repeats": 20, "clusters": 30})
    name = "sites"
    version = 1
    by_name = True
    uses_labels = True
    needs_labels = True
    robustness = False
    title = "Sites"
    meaning = (
        "The clustering score says whether embeddings group by class (1) or by site (-1). The performance drop is the "
        "part of a probe's accuracy that is lost where class and site correlate in training; repairs are measured alike."
    )
    headline = ("clustering_score", "performance_drop")
    questions = (
        Question(
            place=136,
            text="Do embeddings group by class or by site?",
            quantities=("clustering_score",),
            meaning="clustering score, from -1 by site to 1 by class",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "pairs", "repeats", "least")
        if self.clusters < 2:
            raise OutOfRange("sites.clusters", self.clusters, "at least 2")
        if unknown := [repair for repair in self.repairs if repair not in KINDS]:
            raise UnknownName("sites.repairs", unknown[0], KINDS)

    def observation(self) -> Lengths:
        return Lengths(self.samples)

    def map_of(self, population: Population, repair: str) -> SiteMap:
        """Return the map that ``conclude`` measures; it divides embeddings by their norm first.

        Args:
            population: Images of the run with their clean embeddings.
            repair: ``centre``, ``whiten`` or ``combat``.
        """
        halved = self._halved(population)
        return fit_site_map(*halved.part(halved.learning), repair, unit=True)

    def _halved(self, population: Population) -> Halved:
        if self.tags is None:
            raise HoldfastError("sites.tags is missing. Name a CSV file of sites: --set sites.tags=sites.csv")
        chosen, unit = directions(population, self.samples)
        ids = [population.images.ids[row] for row in chosen]
        # One order for all that is drawn below, whatever the order of the images.
        order = np.argsort(hashed_each((population.run.seed, "sites"), ids), kind="stable")
        chosen, ids = [chosen[k] for k in order], [ids[k] for k in order]
        sites, groups = self.tags.of(ids), groups_of(population, self.tags)
        units = np.array(ids if groups is None else [groups[row] for row in chosen])
        learning = halves(units, sites, population.run.seed)
        names = np.array(self.tags.names(ids), dtype=object)
        return Halved(chosen, unit.double().cpu().numpy()[order], sites, names, units, learning)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        halved, estimates = self._halved(population), list[Estimate]()
        held_out = ~halved.learning
        labels = population.labels.cpu().numpy()[halved.rows][held_out]
        for repair in ("none", *self.repairs):
            mapped, names = halved.part(held_out)
            if repair != "none":
                mapped = fit_site_map(*halved.part(halved.learning), repair)(mapped, names)
            part = (np.asarray(mapped, dtype=np.float64), labels, halved.sites[held_out], halved.units[held_out])
            estimates += self._measured(*part, population.run.seed, repair)
        return findings_of(population, rows, (), estimates, population_warnings(population))

    def _measured(
        self, codes: Codes, labels: Labels, sites: Labels, units: np.ndarray, seed: int, repair: str
    ) -> Iterator[Estimate]:
        """Yield the numbers of embeddings after one repair."""
        squares = [cells for cells in cells_of(labels, sites) if cells.fewest >= self.least]
        drawn = [squares[k] for k in np.random.default_rng(seed).permutation(len(squares))[: self.pairs]]
        n, about = sum(4 * cells.fewest for cells in drawn), {"repair": repair}
        found = [rand_indices(codes, cells, self.clusters, self.repeats, seed) for cells in drawn]
        by_class, by_site = np.array(found).mean(0) if found else (nan, nan)
        yield _estimate("class_rand_index", by_class, about, n, "adjusted Rand index of clusters and classes", FEW)
        yield _estimate("site_rand_index", by_site, about, n, "adjusted Rand index of clusters and sites", FEW)
        yield _estimate("clustering_score", by_class - by_site, about, n, "difference of the two indices", FEW)
        repeats = [hashed(seed, repeat) for repeat in range(self.repeats)]
        tried = [accuracies_of(codes, cells, units, repeat) for cells in drawn for repeat in repeats]
        accuracies = np.array([each for each in tried if each]).reshape(-1, len(STRENGTHS))
        why, means = UNDIVIDED if drawn else FEW, accuracies.mean(0) if len(accuracies) else [nan] * len(STRENGTHS)
        of = "part of a probe's accuracy lost where class and site correlate"
        yield _estimate("performance_drop", performance_drop(accuracies), about, n, of, why)
        for strength, mean in zip(STRENGTHS, means, strict=True):
            where, of = {**about, "cramers_v": f"{strength:g}"}, "balanced accuracy of the probe on balanced images"
            yield _estimate("site_probe_accuracy", mean, where, n, of, why)


LOWER = ("site_rand_index", "performance_drop")


def _estimate(quantity: str, value: float, conditions: Conditions, n: int, of: str, reason: str) -> Estimate:
    defined = not isnan(value)
    unit = "fraction" if quantity in ("performance_drop", "site_probe_accuracy") else "index"
    better: Better = "lower" if quantity in LOWER else "higher"
    if not defined:
        return without_interval(quantity, conditions, nan, 0, "undefined", unit, of, better, reason)
    method = "no interval: repeated draws from the same images"
    return without_interval(quantity, conditions, float(value), n, method, unit, of, better)


def halves(units: np.ndarray, sites: Labels, seed: int) -> Bool[np.ndarray, "n"]:
    """Mask of the images that repairs are fitted to: every second group of each site in random order.

    Args:
        units: Group of each image, shape (n,); its id where there are none.
        sites: Site of each image, shape (n,); that of its first image counts for a group.
        seed: Seed of the order.
    """
    names, first, member = np.unique(units.astype(str), return_index=True, return_inverse=True)
    order = np.argsort(hashed_each((seed, "repair"), names.tolist()), kind="stable")
    learning = np.zeros(len(names), dtype=bool)
    for site in np.unique(sites):
        learning[order[sites[first[order]] == site][::2]] = True
    return np.asarray(learning[member])


def cells_of(labels: Labels, sites: Labels) -> Iterator[Cells]:
    """Yield the images of two classes at two sites, in their order, for all pairs of both."""
    for classes, places in product(combinations(np.unique(labels), 2), combinations(np.unique(sites), 2)):
        a, b = ([np.flatnonzero((labels == c) & (sites == s)) for s in places] for c in classes)
        yield Cells(((a[0], a[1]), (b[0], b[1])))


def rand_indices(codes: Codes, cells: Cells, most: int, repeats: int, seed: int) -> tuple[float, float]:
    """Adjusted Rand index of clusters with classes and with sites, over equally many images of each of the four cells.

    The number of clusters maximises the silhouette.

    Args:
        codes: Embeddings, shape (n, d); their directions are clustered.
        most: Largest number of clusters, 2 or more.
        repeats: Runs of k-means to average over.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score, silhouette_score

    count = cells.fewest
    rows = np.concatenate([cell[:count] for pair in cells.rows for cell in pair])
    classes, sites = np.repeat([0, 0, 1, 1], count), np.repeat([0, 1, 0, 1], count)
    points = codes[rows] / np.maximum(np.linalg.norm(codes[rows], axis=1, keepdims=True), np.finfo(float).tiny)

    def clusters(k: int, repeat: int) -> Labels:
        fitted = KMeans(k, n_init=STARTS, init="random", random_state=hashed(seed, repeat) % 2**32).fit(points)
        return np.asarray(fitted.labels_)

    def silhouette(k: int) -> float:
        found = clusters(k, 0)
        return float(silhouette_score(points, found, metric="cosine")) if len(np.unique(found)) > 1 else -1.0

    best = max(range(2, min(most, len(points) - 1) + 1), key=silhouette)
    found = [clusters(best, repeat) for repeat in range(repeats)]
    return (
        float(np.mean([adjusted_rand_score(classes, each) for each in found])),
        float(np.mean([adjusted_rand_score(sites, each) for each in found])),
    )


def performance_drop(accuracies: Float[np.ndarray, "r s"]) -> float:
    """Mean part of the accuracy without correlation that is lost with it.

    Args:
        accuracies: Accuracy of each repetition by strength of correlation, the first without any.

    Example:
        >>> round(performance_drop(np.array([[1.0, 0.8, 0.6], [0.5, 0.5, 0.4]])), 6)
        0.2
    """
    return float(1 - (accuracies[:, 1:] / accuracies[:, :1]).mean()) if len(accuracies) else nan


def counts_of(total: int, strength: float) -> tuple[int, int]:
    """Images of the frequent and of the rare cells that give class and site Cramér's V ``strength``.

    Args:
        total: Images of one class, twice those of a cell without correlation.
        strength: Cramér's V in [0, 1].

    Example:
        >>> counts_of(8, 0.5)
        (6, 2)
    """
    frequent = round(total * (1 + strength) / 2)
    return frequent, total - frequent


def accuracies_of(codes: Codes, cells: Cells, units: np.ndarray, seed: int) -> list[float]:
    """Balanced accuracy of probes on balanced held-out images, by the strength of correlation in training.

    Empty if a part would lack one of the four kinds. Groups stay together. Which class is frequent at which site is drawn.
    """
    rows = np.concatenate([cell for pair in cells.rows for cell in pair])
    names = np.unique(units[rows].astype(str))
    keys = np.argsort(np.argsort(hashed_each((seed, "test"), names.tolist()), kind="stable"))
    place = dict(zip(names.tolist(), keys.tolist(), strict=True))
    share = {name: rank / len(names) for name, rank in place.items()}
    parts = [
        [
            [np.array([r for r in cell if low <= share[str(units[r])] < high], dtype=np.int64) for cell in pair]
            for pair in cells.rows
        ]
        for low, high in SPLIT
    ]
    fewest = [min(len(cell) for pair in part for cell in pair) for part in parts]
    if not min(fewest) or fewest[2] < 2:
        return []
    test, chosen = (
        [[cell[:few] for cell in pair] for pair in part] for part, few in zip(parts[:2], fewest[:2], strict=True)
    )
    turn, result = hashed(seed, "turn") % 2, []
    for strength in STRENGTHS:
        often, rarely = counts_of(fewest[2] // 2 * 2, strength)
        train = [
            [cell[: often if (c + s) % 2 == turn else rarely] for s, cell in enumerate(pair)]
            for c, pair in enumerate(parts[2])
        ]
        result.append(_accuracy(codes, *(_flat(part) for part in (train, chosen, test))))
    return result


Part = tuple[Rows, Rows]


def _flat(part: list[list[Rows]]) -> Part:
    """Return the rows of all cells, and their classes."""
    rows = [np.concatenate(pair) for pair in part]
    return np.concatenate(rows), np.repeat([0, 1], [len(each) for each in rows])


def _accuracy(codes: Codes, train: Part, chosen: Part, test: Part) -> float:
    """Return the accuracy on ``test`` of the logistic regression whose penalty is best on ``chosen``."""
    from sklearn.linear_model import LogisticRegression

    def fitted(penalty: float) -> LogisticRegression:
        return LogisticRegression(C=penalty, max_iter=1000).fit(codes[train[0]], train[1])

    def correct(probe: LogisticRegression, part: Part) -> float:
        return float((probe.predict(codes[part[0]]) == part[1]).mean())  # all classes are equally frequent

    return correct(max(map(fitted, PENALTIES), key=lambda probe: correct(probe, chosen)), test)
