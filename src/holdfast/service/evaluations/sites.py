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
from math import nan
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.noise import hashed, hashed_each
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Question
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.geometry.sphere import Tags, directions, groups_of
from holdfast.geometry.views import Lengths
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import population_warnings
from holdfast.measure.population import Population
from holdfast.service.site_map import KINDS, fit_site_map

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Cramér's V of class and site among the images that a probe is trained on."""
PENALTIES = tuple(10.0 ** np.linspace(-8, 4, 15))
"""Inverse penalties of the logistic regression, as in the authors' program."""
FEWEST = 8
"""Images of each class at each site; a quarter is tested on, an eighth chooses the penalty."""
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
            text="Does a probe learn the site instead of the class?",
            quantities=("performance_drop",),
            meaning="part of a probe's accuracy lost where class and site correlate in training",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "pairs", "repeats")
        if self.clusters < 2:
            raise OutOfRange("sites.clusters", self.clusters, "at least 2")
        if unknown := [repair for repair in self.repairs if repair not in KINDS]:
            raise UnknownName("sites.repairs", unknown[0], KINDS)

    def observation(self) -> Lengths:
        return Lengths(self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        if self.tags is None:
            raise HoldfastError("sites.tags is missing. Name a CSV file of sites: --set sites.tags=sites.csv")
        chosen, unit = directions(population, self.samples)
        ids = [population.images.ids[row] for row in chosen]
        codes, labels = unit.double().cpu().numpy(), population.labels.cpu().numpy()[chosen]
        sites, groups = self.tags.of(ids), groups_of(population, self.tags)
        units = np.array(ids if groups is None else [groups[row] for row in chosen])
        learning = halves(units, population.run.seed)
        names = [str(site) for site in sites]
        estimates = list[Estimate]()
        for repair in ("none", *self.repairs):
            mapped = codes[~learning]
            if repair != "none":
                fitted = fit_site_map(
                    codes[learning], [n for n, kept in zip(names, learning, strict=True) if kept], repair
                )
                mapped = fitted(mapped, [n for n, kept in zip(names, learning, strict=True) if not kept])
            part = (np.asarray(mapped, dtype=np.float64), labels[~learning], sites[~learning], units[~learning])
            estimates += self._measured(*part, population.run.seed, repair)
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            estimates=tuple(estimates),
            warnings=population_warnings(population),
        )

    def _measured(
        self, codes: Codes, labels: Labels, sites: Labels, units: np.ndarray, seed: int, repair: str
    ) -> Iterator[Estimate]:
        """Yield the numbers of embeddings after one repair."""
        order = np.argsort(hashed_each((seed, "sites"), [str(k) for k in range(len(codes))]), kind="stable")
        squares = list(cells_of(labels, sites, order))
        if not squares:
            raise HoldfastError(
                f"sites: no two classes have {FEWEST} held-out images each at the same two sites. Add images, or name "
                "sites that share classes"
            )
        drawn = [squares[k] for k in np.random.default_rng(seed).permutation(len(squares))[: self.pairs]]
        indices = np.array([rand_indices(codes, cells, self.clusters, self.repeats, seed) for cells in drawn]).mean(0)
        accuracies = np.array(
            [
                accuracies_of(codes, cells, units, hashed(seed, repeat))
                for cells in drawn
                for repeat in range(self.repeats)
            ]
        )
        accuracies = accuracies[np.isfinite(accuracies).all(1)]
        if not len(accuracies):
            raise HoldfastError("sites: the groups are too large to divide into training and test images. Add groups")
        n, about = sum(4 * cells.fewest for cells in drawn), {"repair": repair}
        yield _estimate(
            "class_rand_index", indices[0], about, n, "adjusted Rand index of clusters and classes", "higher"
        )
        yield _estimate("site_rand_index", indices[1], about, n, "adjusted Rand index of clusters and sites", "lower")
        yield _estimate(
            "clustering_score", indices[0] - indices[1], about, n, "difference of the two indices", "higher"
        )
        of = "part of a probe's accuracy lost where class and site correlate"
        yield _estimate("performance_drop", performance_drop(accuracies), about, n, of, "lower")
        for k, strength in enumerate(STRENGTHS):
            where = {**about, "cramers_v": f"{strength:g}"}
            of = "balanced accuracy of the probe on balanced images"
            yield _estimate("site_probe_accuracy", accuracies[:, k].mean(), where, n, of, "higher")


def _estimate(quantity: str, value: float, conditions: Conditions, n: int, of: str, better: str) -> Estimate:
    return Estimate.model_validate(
        {
            "quantity": quantity,
            "conditions": conditions,
            "value": float(value),
            "low": nan,
            "high": nan,
            "n": n,
            "method": "no interval: repeated draws from the same images",
            "unit": "index" if "drop" not in quantity and "accuracy" not in quantity else "fraction",
            "claim": Claim.ESTIMATE,
            "of": of,
            "better": better,
        }
    )


def halves(units: np.ndarray, seed: int) -> Bool[np.ndarray, "n"]:
    """Mask of the images that repairs are fitted to: every second group in random order.

    Args:
        units: Group of each image, shape (n,); its id where there are none.
        seed: Seed of the order.
    """
    names, member = np.unique(units.astype(str), return_inverse=True)
    order = np.argsort(hashed_each((seed, "repair"), names.tolist()), kind="stable")
    learning = np.zeros(len(names), dtype=bool)
    learning[order[::2]] = True
    return np.asarray(learning[member])


def cells_of(labels: Labels, sites: Labels, order: Labels) -> Iterator[Cells]:
    """Yield the images of two classes at two sites, for all pairs with enough of each, in random ``order``."""
    for classes, places in product(combinations(np.unique(labels), 2), combinations(np.unique(sites), 2)):
        a, b = ([order[(labels[order] == c) & (sites[order] == s)] for s in places] for c in classes)
        cells = Cells(((a[0], a[1]), (b[0], b[1])))
        if cells.fewest >= FEWEST:
            yield cells


def rand_indices(codes: Codes, cells: Cells, most: int, repeats: int, seed: int) -> tuple[float, float]:
    """Adjusted Rand index of clusters with classes and with sites, over equally many images of each of the four cells.

    The number of clusters maximises the silhouette.

    Args:
        codes: Embeddings, shape (n, d); their directions are clustered.
        cells: Images of two classes at two sites.
        most: Largest number of clusters, 2 or more.
        repeats: Runs of k-means to average over.
        seed: Seed of k-means.
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
    return float(1 - (accuracies[:, 1:] / accuracies[:, :1]).mean())


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

    Groups stay together. Which class is frequent at which site is drawn.

    Args:
        codes: Embeddings, shape (n, d).
        cells: Images of two classes at two sites.
        units: Group of each image, shape (n,).
        seed: Seed of the division.
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
        for low, high in ((0, 0.25), (0.25, 0.375), (0.375, 1))
    ]
    fewest = [min(len(cell) for pair in part for cell in pair) for part in parts]
    if not min(fewest) or fewest[2] < 2:
        return [nan] * len(STRENGTHS)
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
