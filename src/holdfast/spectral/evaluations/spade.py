"""The SPADE evaluation of an encoder: spectral scores of samples and their embedding in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan, prod
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName, check_whole
from holdfast.core.pictures import ends, row
from holdfast.core.points.points import Points, points
from holdfast.core.records import Curve, Findings, Picture, Question, Warned
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_not_negative
from holdfast.core.statistics.summaries import without_interval
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Observation
from holdfast.measure.population import LooksAt, Population
from holdfast.spectral.analysis import TOP, Spade, proved, scored
from holdfast.spectral.fits import SpectralFit, SpectralScores
from holdfast.spectral.graph_pair import KNN, GraphConstruction, checked, draw
from holdfast.spectral.spade_findings import (
    assembled,
    compared_edges,
    conditions,
    of_normalised,
    of_one_graph,
    over_k,
    reversed_map,
)
from holdfast.spectral.stability import DRAWS, baselines, projection, subsets

DIGITS = 6
"""Significant ones, of what is only drawn."""


def embedding(scores: Spade) -> Float[np.ndarray, "m 2"] | None:
    """Return ``[v_1 sqrt(lambda_1), v_2 sqrt(lambda_2)]``, one row per node; None for an infinite score."""
    if scores.spectrum is None or len(scores.spectrum.values) < 2:
        return None
    return scores.spectrum.vectors[:, :2] * np.sqrt(np.maximum(scores.spectrum.values[:2], 0))


def embedding_curves(
    spade: Spade, labels: Int[np.ndarray, "n"] | None, planes: bool = False, seed: int = 0
) -> tuple[Curve, ...]:
    """Return the embedding coloured by node score and, if ``labels`` (one per sample) are given, by label.

    With ``planes`` also those by the eigenvectors of each graph alone (figures 5 a and b of the paper).
    """
    planar = {"spectral_embedding": embedding(spade)}
    if planes:
        planar["input_embedding"] = of_one_graph(spade.inputs, seed)
        planar["output_embedding"] = of_one_graph(spade.graphs.outputs, seed)
    order = spade.graphs.rows.argsort()  # as the samples are
    rows = spade.graphs.rows[order]
    colours = {} if labels is None else {"label": tuple(labels[rows].astype(float).tolist())}
    if spade.spectrum is not None:
        scores = spade.node_scores(TOP)[rows]
        floor = max(float(np.nanmax(scores)), 1e-12) * 1e-6
        colours = {"node score (log10)": _rounded(np.log10(np.maximum(np.nan_to_num(scores), floor))), **colours}
    return tuple(
        Curve(
            quantity=name,
            x_label="first eigenvector",
            y_label="second eigenvector",
            x=_rounded(coordinates[order, 0]),
            y=_rounded(coordinates[order, 1]),
            colours=colours or {"sample": tuple(range(len(order)))},
        )
        for name, coordinates in planar.items()
        if coordinates is not None
    )


def _rounded(values: Float[np.ndarray, "m"]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


OUTPUT = "output"


@final
@dataclass(frozen=True)
class Layers(Observation):
    """The embedding of up to ``samples`` randomly chosen images and the flattened outputs of the named ``layers``."""

    samples: int = 10_000
    layers: tuple[str, ...] = ()
    name = "layers"
    version = 1

    def looks_at(self) -> LooksAt:
        return "encoder" if self.layers else "codes"

    def rows(self, population: Population) -> list[int]:
        for layer in self.layers:
            find(population.encoder, layer)  # a wrong name costs no computing
        return population.choose(self.samples)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        if not self.layers:
            return {OUTPUT: population.codes[list(rows)]}
        return represented(population.encoder, population.pixels(rows), self.layers)


def represented(encoder: Encoder, pixels: Tensor, layers: Sequence[str]) -> Observed:
    """Return the embeddings of ``pixels`` under ``output`` and what each layer returned on the way, shape (b, features)."""
    outputs: Observed = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, taken: Any, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) else output
            if not isinstance(first, Tensor) or len(first) != len(pixels):
                raise HoldfastError(f"layer {name!r} does not return one tensor row per image; choose another layer")
            outputs[name] = first.flatten(1).detach()

        return hook

    hooks = [find(encoder, name).register_forward_hook(keep(name)) for name in layers]
    try:
        with torch.no_grad():
            outputs[OUTPUT] = encoder.forward(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def find(encoder: Encoder, name: str) -> nn.Module:
    """Return the part of ``encoder`` that is called ``name`` or, if only one is, whose name ends in it."""
    parts = dict(encoder.module.named_modules())
    ending = [part for part in parts if part == name or part.endswith(f".{name}")]
    if name in parts or len(ending) == 1:
        return parts[name if name in parts else ending[0]]
    known = [part for part in parts if part]
    raise UnknownName(f"layer of {encoder.name}", name, known)


# The SPADE evaluation: spectral scores of an encoder on unlabelled images (see ``analysis`` for the mathematics).
#
# Defaults are those of Cheng et al. 2021: union kNN graphs, k = 10, unit weights, up to the 10,000 images of a test
# set. Departures: node scores are means over neighbours as the paper defines them (the authors' program sums), graphs
# that fall apart give an infinite score with its witness (their program's depends on a hidden regularisation), and
# beside the score stand the numbers that are steadier than it.

CLUSTERS = 10
SECONDS_DRAWN, SECONDS_MULTIPLIED = 5e-8, 2e-10
"""About how long one core takes to draw a normal number, and to multiply and add two."""
SKETCH = 32
"""Dimensions of the random projection in which inputs are clustered."""
PAIRS = 3
SHOWN = 4


@final
@dataclass(frozen=True)
class Spectral(Evaluation):
    """How strongly an encoder stretches neighbourhoods of its inputs, and where (SPADE)."""

    k: int = 10
    """Neighbours of each image in both graphs; 10 and 20 in the paper."""
    graph: GraphConstruction = KNN()
    """`knn`; `pca:components=50` (neighbours among principal components); `cknn:delta=1.0` (Berry and Sauer 2019);
    `sparsified:density=6.0` (Spielman and Srivastava 2011)."""
    samples: int = 10_000
    """Number of images, chosen by their ids."""
    repair: str = "none"
    """Treatment of an infinite score: `none`, `increase_k`, `largest` or `mst`."""
    subsets: int = 8
    """Number of random subsets, half as large and at most 5,000 images; 0: no intervals."""
    layers: tuple[str, ...] = ()
    """Inner modules to score as well, by name, as in `layer3`."""
    certify: bool = True
    """Whether an upper bound of the score is proved, up to 20,000 images."""
    sweep: tuple[int, ...] = ()
    """Other `k` at which the score is computed (figure 3 of the paper)."""
    normalised: bool = False
    """Whether scores of normalised Laplacians are added."""
    planes: bool = False
    """Whether embeddings by the eigenvectors of each graph alone are added (figures 5 a and b)."""
    sizes = Sizes(
        quick={"samples": 2000},
        full={"samples": 50_000, "subsets": 16},
        large={"samples": 2000},  # each is encoded once only
    )
    name = "spade"
    version = 4
    pictured = 0
    uses_labels = True
    title = "Spectral stretch (SPADE)"
    meaning = (
        "The SPADE score says how much farther apart an encoder can put images that are neighbours in pixels, as seen by "
        "graphs of nearest neighbours; it needs no gradient and no label. It compares encoders on the same images alone, "
        "varies by tens of percent between random subsets, and is small for encoders that are trivial, so read it "
        "beside the Riemannian distance, the hop distortion and the baselines."
    )
    headline = ("spade_score", "riemannian_distance", "hop_distortion")
    words = (("spade", "SPADE"), ("riemannian", "Riemannian"))
    questions = (
        Question(
            place=110,
            text="How badly does it stretch neighbourhoods?",
            quantities=("spade_score",),
            meaning="largest stretch between neighbours in pixels",
            select="first",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "subsets")
        for k in self.sweep:
            check_whole(k, "spade.sweep")
            if k < 1:
                raise OutOfRange("spade.sweep", k, "at least 1")

    def fits(self) -> tuple[SpectralFit]:
        return (SpectralFit(self.k, self.graph, self.repair, self.samples),)

    def observation(self) -> Layers:
        return Layers(self.samples, self.layers)

    def concluding(self, population: Population) -> float:
        # Nearly all of it is the random projection of the baselines, whose every entry is drawn and then multiplied.
        count, width = min(self.samples, len(population.images)), prod(population.encoder.domain.shape)
        entries = DRAWS * min(width, count) * population.codes.shape[1]
        return entries * (SECONDS_DRAWN + SECONDS_MULTIPLIED * count)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        ids = [population.images.ids[row] for row in rows]
        if points(population.codes[list(rows)].cpu(), "codes").constant:
            return _collapsed(ids)
        scores, seed = self.proved(population.learned(*self.fits())), population.run.seed
        labels = population.images.labels
        labels_of_rows = None if labels is None else torch.as_tensor(labels).cpu()[list(scores.rows)].numpy()
        return self.described(ids, scores, labels_of_rows, self._layers(scores, observed, seed), seed)

    def proved(self, scores: SpectralScores) -> SpectralScores:
        """Return the scores with the proof that the settings ask for."""
        return replace(scores, spade=proved(scores.spade)) if self.certify else scores

    def described(
        self,
        ids: Sequence[str],
        scores: SpectralScores,
        labels: Int[np.ndarray, "n"] | None,
        layers: Mapping[str, Spade],
        seed: int,
    ) -> Findings:
        """Findings about one map, from the scores of its outputs and of inner layers.

        Args:
            ids: Ids of the images.
            scores: Scores of the outputs.
            labels: Label of each image, shape (n,); None without.
            layers: Scores of inner layers, by name.
            seed: Seed of random subsets.
        """
        kind, groups = _groups(scores, ids, labels, seed)
        findings = assembled(
            ids,
            scores.spade,
            subsets(scores.x, scores.y, self.k, self.graph, self.subsets, seed, self.repair),
            baselines(scores.x, scores.y.features, scores.ordered, self.graph, seed),
            groups,
            layers,
            kind,
        )
        spade, case = scores.spade, conditions(scores.spade)
        swept, by_k = over_k(scores.x, scores.y, self.sweep, self.graph, self.repair, seed) if self.sweep else ([], [])
        more = [*compared_edges(spade, case, seed), *reversed_map(spade, case, seed), *swept]
        if self.normalised:
            more += of_normalised(spade, case, seed)
        curves = (*findings.curves, *by_k, *embedding_curves(spade, labels, self.planes, seed))
        return findings.model_copy(update={"estimates": (*findings.estimates, *more), "curves": curves})

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        if findings.collapsed:
            return ()
        scores = population.learned(*self.fits()).spade
        return (*_images(population, rows, scores), *_pairs(population, rows, scores))

    def _layers(self, scores: SpectralScores, observed: Observed, seed: int) -> dict[str, Spade]:
        """Return the scores of inner layers, on the same samples."""
        by_layer = {}
        for layer in self.layers:
            y = checked(scores.x.values, observed[layer][torch.from_numpy(scores.order)])[1]
            by_layer[layer] = scored(draw(scores.x, y, self.k, self.graph, self.repair, seed), seed)
        return by_layer


def _groups(
    scores: SpectralScores, ids: Sequence[str], labels: Int[np.ndarray, "n"] | None, seed: int
) -> tuple[str, dict[str, list[int]]]:
    """Return the samples by label or, without labels, by cluster of the inputs, called after its most central image."""
    if labels is not None:
        return "label", {str(value): np.flatnonzero(labels == value).tolist() for value in np.unique(labels)}
    return "cluster", {
        f"around {ids[int(scores.order[centre])]}": scores.order[members].tolist()
        for centre, members in clusters(scores.x, seed)
    }


def clusters(x: Points, seed: int) -> list[tuple[int, np.ndarray]]:
    """Return the clusters of the inputs by k-means on a random projection: most central sample, members."""
    from sklearn.cluster import KMeans

    positions = projection(x, min(SKETCH, x.features), seed).values.numpy()
    model = KMeans(min(CLUSTERS, len(positions)), n_init=3, random_state=seed % 2**32).fit(positions)
    distance = np.linalg.norm(positions - model.cluster_centers_[model.labels_], axis=1)
    centres = []
    for label in np.unique(model.labels_):
        members = np.flatnonzero(model.labels_ == label)
        centres.append((int(members[distance[members].argmin()]), members))
    return centres


def _images(population: Population, rows: Sequence[int], spade: Spade) -> tuple[Picture, ...]:
    """Return the images around which the encoder stretches most, and least."""
    scores = spade.node_scores(TOP)
    positions = ends(scores.tolist(), SHOWN)
    records = []
    for what, shown in (("Least robust", positions[:SHOWN]), ("Most robust", positions[SHOWN:][::-1])):
        images = {
            f"{population.images.ids[rows[position]]}: {scores[position]:.3g}": population.pixels([rows[position]])[0]
            for position in shown
        }
        records.append(row(f"{what}, by node score.", images, population.encoder.domain))
    return tuple(picture for picture in records if picture is not None)


def _pairs(population: Population, rows: Sequence[int], spade: Spade) -> tuple[Picture, ...]:
    """Return the worst pairs: input neighbours that the representation puts farthest apart."""
    scores = np.nan_to_num(spade.edge_scores[TOP], nan=-np.inf)
    records = []
    for edge in np.argsort(-scores, kind="stable")[:PAIRS].tolist():
        p, q = (rows[position] for position in spade.pairs()[edge].tolist())
        images = population.pixels([p, q])
        names = population.images.ids[p], population.images.ids[q]
        caption = (
            f"Neighbours in pixels, {spade.hops[edge]:g} steps apart in representation: edge score {scores[edge]:.3g}"
        )
        records.append(row(caption, dict(zip(names, images, strict=True)), population.encoder.domain))
    return tuple(picture for picture in records if picture is not None)


def _collapsed(ids: Sequence[str]) -> Findings:
    """Return the findings of a collapsed encoder: nothing is defined."""
    reason = "all images have the same embedding, so none has nearest neighbours"
    of = "stretch of neighbourhoods"
    estimates = [
        without_interval(name, {}, nan, len(ids), "undefined", "stretch", of, "lower", reason)
        for name in Spectral.headline
    ]
    return Findings(
        ids=tuple(ids),
        estimates=tuple(estimates),
        warnings=(Warned(f"Collapsed: {reason}. The encoder is useless, not robust.", "collapsed"),),
    )
