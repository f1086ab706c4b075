"""What the eigenvectors of ``L_X v = lambda L_Y v`` say of edges, samples and cuts (Cheng et al. 2021, sections 3.2, 3.3).

``edge_score(p, q) = sum over i <= r of lambda_i (v_i(p) - v_i(q))^2``; a sample's score is the mean over its input
neighbours (the authors' program sums, which ranks by degree as well); ``zeta(S) = cut_Y(S) / cut_X(S)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast.spectral.eigen import Spectrum
from holdfast.spectral.graph import Graph


def edge_scores(inputs: Graph, spectrum: Spectrum, r: int) -> Float[np.ndarray, "m"]:
    """Return the score of every input edge from the first ``r`` eigenvectors."""
    steps = inputs.differences(spectrum.vectors[:, :r])
    return np.square(steps) @ spectrum.values[:r]


def riemannian(values: Float[np.ndarray, "r"]) -> float:
    """Return ``sqrt(sum log^2 lambda)``: the distance of two forms, 0 if they are equal, inf if one is degenerate.

    Example:
        >>> riemannian(np.array([np.e, 1.0])), riemannian(np.array([1.0, 0.0]))
        (1.0, inf)
    """
    with np.errstate(divide="ignore"):
        # Zero eigenvalues come out of solvers as rounding, of either sign.
        logs = np.log(np.where(values > 1e-12 * max(values.max(), 1.0), values, 0.0))
    return float(np.sqrt(np.square(logs).sum()))


@dataclass(frozen=True, eq=False)
class Cut:
    """A set of samples that the outputs nearly separate while the inputs do not."""

    distortion: float
    """``zeta``: output edges over input edges across its border."""
    inside: Bool[np.ndarray, "n"]

    @property
    def size(self) -> int:
        """Return the number of samples on the smaller side."""
        return int(min(self.inside.sum(), (~self.inside).sum()))


def sweep(inputs: Graph, outputs: Graph, vector: Float[np.ndarray, "n"]) -> Cut:
    """Return the best cut between the samples below and above a threshold of ``vector``; ``zeta >= 1 / lambda_max``.

    Raises:
        ValueError: no threshold separates input neighbours.
    """
    order = np.argsort(vector, kind="stable")
    position = np.empty(inputs.n, dtype=np.int64)
    position[order] = np.arange(inputs.n)
    across_x, across_y = (_crossings(graph, position) for graph in (inputs, outputs))
    with np.errstate(divide="ignore", invalid="ignore"):
        distortion = np.where(across_x > 0, across_y / across_x, np.inf)
    best = int(distortion.argmin())
    if not np.isfinite(distortion[best]):
        raise ValueError("no threshold of the vector separates input neighbours")
    return Cut(float(distortion[best]), position <= best)


def _crossings(graph: Graph, position: Int[np.ndarray, "n"]) -> Float[np.ndarray, "c"]:
    """Return for each threshold after the t-th sample the weight of the edges across it."""
    ends = np.sort(position[graph.edges], axis=1)
    steps = np.bincount(ends[:, 0], graph.weights, graph.n) - np.bincount(ends[:, 1], graph.weights, graph.n)
    return np.cumsum(steps.astype(np.float64))[:-1]  # of no edges at all, bincount counts in whole numbers
