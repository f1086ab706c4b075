"""Stability of spectral scores: random subsets, trivial maps, and scores as named tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from holdfast.core.noise import Noise
from holdfast.core.points.points import BLOCK, Points, points
from holdfast.core.run_settings import Observed
from holdfast.spectral.analysis import TOP, Cut, Spade, edge_scores, edge_scores_all, riemannian
from holdfast.spectral.eigen import DENSE, SCORES, Spectrum, all_values, spectrum
from holdfast.spectral.graph import Graph, neighbours
from holdfast.spectral.graph_pair import SAMPLES_PER_NEIGHBOUR, GraphConstruction, GraphPair, draw
from holdfast.spectral.resistance import edge_hops

# How much a spectral score means: the same numbers on random subsets, and for untrained maps.
#
# ``lambda_max`` varies by 11 to 51% between random subsets and drifts with n, and degenerate maps have small ones (a
# random projection 2 to 3), so the number alone says little. Subsets are drawn without replacement: a bootstrap's
# repeated samples are duplicates, which change the graph.

LARGEST = 5000
"""Largest subset: a few of them must not cost more than the whole."""
CHUNK = 4096
"""Features projected together."""
Numbers = dict[str, float]
LEAST = {"eigenvalue_gap": 1.0, "edge_hop_distortion": 1.0, "hop_distortion": 1.0}
"""Lower limit of a number, if above zero: eigenvalues descend, and no two samples share a node."""


def node_score(vectors: int | str) -> str:
    """Return the metric's name for the median node score from a number of eigenvectors."""
    return f"node_score {vectors}"


def numbers(graphs: GraphPair, seed: int = 0) -> Numbers:
    """Return the population's numbers that cost little: eigenvalues and what follows from them, and hops."""
    inputs, outputs = graphs.inputs, graphs.outputs
    if graphs.split is not None:
        values = dict.fromkeys(("spade_score", "riemannian_distance", "eigenvalue_gap", node_score(TOP)), np.inf)
    else:
        largest = spectrum(inputs, outputs, TOP, SCORES, seed)
        values = {
            "spade_score": float(largest.values[0]),
            "riemannian_distance": riemannian(largest.values),
            "eigenvalue_gap": float(largest.values[0] / largest.values[1]),
            node_score(TOP): float(np.nanmedian(inputs.node_means(edge_scores(inputs, largest, TOP)))),
        }
    if inputs.n <= DENSE // 2:  # half of what the whole may have: as large as its subsets
        whole = np.inf if graphs.split else riemannian(all_values(inputs, outputs))
        values["riemannian_distance_all"] = whole
    hops = edge_hops(inputs, outputs, seed)
    return {
        **values,
        "edge_hop_distortion": float(np.nanmean(hops)),
        "hop_distortion": float(np.nanmean(inputs.node_means(hops))),
    }


@dataclass(frozen=True)
class Subsets:
    """Numbers on ``size`` of ``n`` samples, subset by subset."""

    n: int
    size: int
    numbers: dict[str, Float[np.ndarray, "s"]]
    missing: str = "none was asked for"
    """Why there are no subsets, if there are none."""

    def interval(self, name: str, value: float, confidence: float = 0.95) -> tuple[float, float]:
        """Return the delete-d jackknife interval around the whole's ``value`` (Shao and Wu 1989).

        The variance of the logarithm over subsets times ``size / (n - size)``: numbers that grow or shrink with the number
        of samples, as node scores do, keep their relative spread. It is cut where the number cannot be (see ``LEAST``).
        There is none, nan, with fewer than two subsets or where a number is infinite or zero.
        """
        from scipy.special import stdtrit

        values = np.append(self.numbers.get(name, np.empty(0)), value)
        if len(values) < 3 or not (np.isfinite(values) & (values > 0)).all():
            return np.nan, np.nan
        error = np.log(values[:-1]).std(ddof=1) * sqrt(self.size / (self.n - self.size))
        half = float(stdtrit(len(values) - 2, (1 + confidence) / 2)) * float(error)
        return max(min(LEAST.get(name, 0.0), value), value * exp(-half)), value * exp(half)

    @property
    def method(self) -> str:
        """Return the method of the intervals."""
        count = len(next(iter(self.numbers.values()), ()))
        if not count:
            return f"no interval: it comes from random subsets, and {self.missing}"
        if count == 1:
            return "no interval: one random subset has no spread"
        split = int((~np.isfinite(self.numbers["spade_score"])).sum())
        if split:
            return f"no interval: the score of {split} of {count} random subsets of {self.size} samples is infinite"
        return f"delete-d jackknife over {count} random subsets of {self.size} samples"


def subsets(
    x: Points, y: Points, k: int, manifold: GraphConstruction, count: int, seed: int, repair: str = "none"
) -> Subsets:
    """Return the numbers of ``count`` random subsets of half the samples, at most ``LARGEST``; none if that is too few."""
    n = len(x)
    size = min(n // 2, LARGEST)
    least = int(SAMPLES_PER_NEIGHBOUR * k * 1.2) + 1  # with a margin for duplicates, which are removed from each subset
    if count and size < least:
        return Subsets(n, size, {}, f"halves of {n} samples are too small (k = {k} needs {2 * least} samples)")
    draws: dict[str, list[float]] = {}
    for rows in _choices(n, size, count, seed):
        graphs = draw(x.subset(rows), y.subset(rows), k, manifold, repair, seed)
        for name, value in {**numbers(graphs, seed), **_all_vectors(graphs, seed)}.items():
            draws.setdefault(name, []).append(value)
    return Subsets(n, size, {name: np.array(values) for name, values in draws.items()})


def _all_vectors(graphs: GraphPair, seed: int) -> Numbers:
    """Return the median node score from all eigenvectors, which costs as much as the other numbers together."""
    if graphs.split is not None:
        return {node_score("all"): np.inf}
    scores = edge_scores_all(graphs, seed)
    return {} if scores is None else {node_score("all"): float(np.nanmedian(graphs.inputs.node_means(scores)))}


def _choices(n: int, size: int, count: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield np.sort(rng.choice(n, size, replace=False))


def projection(x: Points, features: int, seed: int) -> Points:
    """Return a random projection of the inputs to ``features`` dimensions, an untrained map."""
    streams = Noise.of(seed, [f"feature {j}" for j in range(features)]).fork("projection")
    total = torch.zeros(len(x), features, dtype=torch.float64)
    for start in range(0, x.features, CHUNK):
        width = min(CHUNK, x.features - start)
        matrix = streams.fork(start).normal((width,)).T
        step = max(1, BLOCK // x.features)
        for top in range(0, len(x), step):
            rows = slice(top, top + step)
            total[rows] += x.tile(rows, columns=slice(start, start + width)).cpu() @ matrix
    return points(total, "random projection")


def coordinates(x: Points) -> Points:
    """Return points with the distances of ``x`` to each other, in as many dimensions as there are points.

    ``(H X X' H)^1/2`` with ``H`` the centring matrix. A random projection of them is distributed as one of ``x``: both are
    normal with covariance ``H X X' H`` up to a common shift. It needs n random numbers per feature instead of d.

    Example:
        >>> x = points(np.random.default_rng(0).normal(size=(5, 900)))
        >>> moved = coordinates(x)
        >>> moved.features, bool(torch.allclose(torch.pdist(moved.values), torch.pdist(x.values)))
        (5, True)
    """
    gram = torch.zeros(len(x), len(x), dtype=torch.float64)
    for start in range(0, x.features, CHUNK):
        part = x.tile(slice(None), torch.float64, slice(start, start + CHUNK)).cpu()
        gram += part @ part.T
    gram -= gram.mean(0)
    gram -= gram.mean(1, keepdim=True)
    sizes, turn = torch.linalg.eigh(gram)
    # The symmetric root, which unlike others hangs on no choice of eigenvectors.
    return points((turn * sizes.clamp_min(0).sqrt()) @ turn.T / x.scale, "coordinates")


def noise(x: Points, features: int, seed: int) -> Points:
    """Return ``features`` dimensions of noise per sample, a map that forgets its input."""
    streams = Noise.of(seed, [str(row) for row in range(len(x))]).fork("noise outputs")
    return points(streams.normal((features,)), "noise")


BASELINES: dict[str, Callable[[Points, int, int], Points]] = {"random projection": projection, "noise": noise}
DRAWS = 3
"""Draws of each baseline; the range of their numbers is printed."""


def baselines(
    x: Points, features: int, first: GraphPair, manifold: GraphConstruction, seed: int
) -> dict[str, list[Numbers]]:
    """Return the numbers of untrained maps, at the n, k and inputs of the graphs ``first``."""
    x = x.subset(first.rows)
    moved = coordinates(x) if len(x) < min(x.features, DRAWS * features) else x
    near = neighbours(manifold.view(x), first.k, seed)  # once for all draws: of images this takes seconds
    return {
        name: [
            numbers(draw(x, make(moved, features, seed + part), first.k, manifold, "none", seed, near), seed)
            for part in range(DRAWS)
        ]
        for name, make in BASELINES.items()
    }


SIDES = ("inputs", "outputs")
GRAPH_FACTS = ("k", "duplicates", "ties", "repaired", "remark")
SCORE_FACTS = ("score", "riemannian", "riemannian_all", "stretch")
FACTS = "facts"
"""The tensor that spells what is no array (JSON as bytes)."""


def tensors_of(scores: Spade) -> Observed:
    """Return everything that ``spade_of`` needs; a certificate, which is proved afterwards, is left out."""
    graphs, spectrum, cut = scores.graphs, scores.spectrum, scores.cut
    arrays: dict[str, np.ndarray | None] = {
        **{f"{side}.{part}": getattr(getattr(graphs, side), part) for side in SIDES for part in ("edges", "weights")},
        "rows": graphs.rows,
        "place": graphs.node_of,
        **{name: getattr(spectrum, name, None) for name in ("values", "vectors", "residuals")},
        "edge_scores": np.stack(list(scores.edge_scores.values())),
        "edge_scores_all": scores.edge_scores_all,
        "hops": scores.hops,
        "cut": cut.inside if cut else None,
    }
    facts = {
        "nodes": graphs.inputs.n,
        "recall": graphs.recall,
        "solver": spectrum.solver if spectrum else None,
        "ranks": list(scores.edge_scores),
        "distortion": cut.distortion if cut else None,
        **{name: getattr(graphs, name) for name in GRAPH_FACTS},
        **{name: getattr(scores, name) for name in SCORE_FACTS},
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in arrays.items() if each is not None}
    return {**tensors, FACTS: torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)}


def spade_of(tensors: Observed) -> Spade:
    """Return the scores that ``tensors_of`` made ``tensors`` of."""
    facts: dict[str, Any] = json.loads(tensors[FACTS].numpy().tobytes())
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    inputs, outputs = (Graph(facts["nodes"], arrays[f"{side}.edges"], arrays[f"{side}.weights"]) for side in SIDES)
    graphs = GraphPair(
        inputs=inputs,
        outputs=outputs,
        rows=arrays["rows"],
        node_of=arrays["place"],
        recall=tuple(facts["recall"]),
        **{name: facts[name] for name in GRAPH_FACTS},
    )
    spectrum = None
    if facts["solver"]:
        spectrum = Spectrum(arrays["values"], arrays["vectors"], arrays["residuals"], facts["solver"])
    return Spade(
        graphs=graphs,
        split=graphs.split,
        spectrum=spectrum,
        edge_scores=dict(zip(facts["ranks"], arrays["edge_scores"], strict=True)),
        edge_scores_all=arrays.get("edge_scores_all"),
        hops=arrays["hops"],
        cut=Cut(facts["distortion"], arrays["cut"]) if "cut" in arrays else None,
        **{name: facts[name] for name in SCORE_FACTS},
    )
