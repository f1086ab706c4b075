"""Spectral scores as named tensors and back, every number bit for bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from holdfast.core.run_settings import Observed
from holdfast.spectral.analysis import Spade
from holdfast.spectral.eigen import Spectrum
from holdfast.spectral.graph import Graph
from holdfast.spectral.graph_pair import GraphPair
from holdfast.spectral.scores import Cut

FACTS = "facts"
"""The tensor that spells what is no array (JSON as bytes)."""


def tensors_of(scores: Spade) -> Observed:
    """Return everything that ``spade_of`` needs; a certificate, which is proved afterwards, is left out."""
    graphs, spectrum, cut = scores.graphs, scores.spectrum, scores.cut
    arrays: dict[str, np.ndarray | None] = {
        "inputs.edges": graphs.inputs.edges,
        "inputs.weights": graphs.inputs.weights,
        "outputs.edges": graphs.outputs.edges,
        "outputs.weights": graphs.outputs.weights,
        "rows": graphs.rows,
        "place": graphs.node_of,
        "values": spectrum.values if spectrum else None,
        "vectors": spectrum.vectors if spectrum else None,
        "residuals": spectrum.residuals if spectrum else None,
        "edge_scores": np.stack(list(scores.edge_scores.values())),
        "edge_scores_all": scores.edge_scores_all,
        "hops": scores.hops,
        "cut": cut.inside if cut else None,
    }
    facts = {
        "nodes": graphs.inputs.n,
        "k": graphs.k,
        "duplicates": graphs.duplicates,
        "ties": graphs.ties,
        "recall": graphs.recall,
        "repaired": graphs.repaired,
        "remark": graphs.remark,
        "score": scores.score,
        "solver": spectrum.solver if spectrum else None,
        "riemannian": scores.riemannian,
        "riemannian_all": scores.riemannian_all,
        "ranks": list(scores.edge_scores),
        "stretch": scores.stretch,
        "distortion": cut.distortion if cut else None,
    }
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items() if array is not None
    }
    return {**tensors, FACTS: torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)}


def spade_of(tensors: Observed) -> Spade:
    """Return the scores that ``tensors_of`` made ``tensors`` of."""
    facts: dict[str, Any] = json.loads(tensors[FACTS].numpy().tobytes())
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    graphs = GraphPair(
        inputs=Graph(facts["nodes"], arrays["inputs.edges"], arrays["inputs.weights"]),
        outputs=Graph(facts["nodes"], arrays["outputs.edges"], arrays["outputs.weights"]),
        rows=arrays["rows"],
        node_of=arrays["place"],
        recall=tuple(facts["recall"]),
        **{name: facts[name] for name in ("k", "duplicates", "ties", "repaired", "remark")},
    )
    spectrum = None
    if facts["solver"]:
        spectrum = Spectrum(arrays["values"], arrays["vectors"], arrays["residuals"], facts["solver"])
    return Spade(
        graphs=graphs,
        split=graphs.split,
        spectrum=spectrum,
        certificate=None,
        edge_scores=dict(zip(facts["ranks"], arrays["edge_scores"], strict=True)),
        edge_scores_all=arrays.get("edge_scores_all"),
        hops=arrays["hops"],
        cut=Cut(facts["distortion"], arrays["cut"]) if "cut" in arrays else None,
        **{name: facts[name] for name in ("score", "riemannian", "riemannian_all", "stretch")},
    )
