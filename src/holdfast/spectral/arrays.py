"""SPADE result of two arrays of features, without an encoder."""

from __future__ import annotations

from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import Described, HoldfastError, OutOfRange, Unreadable
from holdfast.core.records import EncoderInfo, ImagesInfo, Result
from holdfast.data.arrays import member
from holdfast.measure.evaluation import settings
from holdfast.measure.observation import named
from holdfast.spectral.analysis import RANKS, Spade, scored
from holdfast.spectral.evaluations.spade import Spectral
from holdfast.spectral.fits import SpectralScores
from holdfast.spectral.graph_pair import checked, draw


def read(path: Path) -> Any:
    """Return the one array in a ``.npy`` or ``.npz`` file, without running anything that it may hold.

    Raises:
        HoldfastError: the file cannot be read, is no array, or holds several.
    """
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                return loaded
            names = loaded.files
            if len(names) == 1:
                return member(path, loaded, names[0])
    except HoldfastError:
        raise
    except Exception as error:  # numpy raises anything at all on damaged bytes
        raise Unreadable(f"an array from {path}", error, fix="save one with numpy.save") from error
    raise HoldfastError(f"{path} holds {len(names)} arrays ({', '.join(names[:5])}); save one with numpy.save")


def measure(
    inputs: object,
    outputs: object,
    evaluation: Spectral,
    seed: int = 0,
    names: tuple[str, str] = ("inputs", "outputs"),
    labels: object = None,
) -> tuple[Result, Spade]:
    """Return the result record of a map given by its ``inputs`` and ``outputs``, and the scores behind it.

    Args:
        inputs, outputs: one row per sample; of more than ``evaluation.samples``, all are used.
        evaluation: the settings; layers are of no use here.
    """
    x, y = checked(inputs, outputs)
    ids = [str(row) for row in range(len(x))]
    graphs = draw(x, y, evaluation.k, evaluation.graph, evaluation.repair, seed)
    rows, order = range(len(x)), np.arange(len(x))
    scores = evaluation.proved(SpectralScores(lambda: (x, y), graphs, scored(graphs, seed), rows, order))
    known = None if labels is None else np.asarray(labels)
    if known is not None and (known.shape != (len(x),) or known.dtype.kind not in "iu"):
        raise OutOfRange(
            "labels",
            Described(f"{known.dtype} of shape {known.shape}"),
            f"one integer per sample, shape ({len(x)},)",
            fix="number the classes",
        )
    findings = evaluation.described(ids, scores, known, {}, seed)
    result = Result(
        evaluation=evaluation.name,
        version=evaluation.version,
        title=evaluation.title,
        meaning=evaluation.meaning,
        headline=evaluation.headline,
        questions=evaluation.questions,
        encoder=EncoderInfo(
            name=names[1], source="features", fingerprint=mark(y.values.numpy()), parameters=0, features=y.features
        ),
        images=ImagesInfo(name=names[0], fingerprint=mark(x.values.numpy()), count=len(x)),
        settings={**settings(evaluation), "seed": seed, "precision": str(y.values.dtype).removeprefix("torch.")},
        findings=named(findings, evaluation.words, evaluation.aims),
    )
    return result, scores.spade


def mark(array: np.ndarray) -> str:
    """Return the hash that tells an array from others."""
    content = np.ascontiguousarray(array)
    return blake2b(f"{content.dtype}{content.shape}".encode() + content.tobytes(), digest_size=8).hexdigest()


def packed(scores: Spade) -> bytes:
    """Return eigenvalues, pairs of input neighbours and every score as a ``.npz`` file."""
    arrays: dict[str, np.ndarray] = {
        "eigenvalues": scores.eigenvalues,
        "pairs": scores.pairs(),
        "hops": scores.hops,
        **{f"edge_score_{r}": scores.edge_scores[r] for r in RANKS},
        **{f"node_score_{r}": scores.node_scores(r) for r in RANKS},
    }
    if scores.edge_scores_all is not None:
        arrays["edge_score_all"] = scores.edge_scores_all
        arrays["node_score_all"] = scores.per_sample(scores.edge_scores_all)
    if scores.spectrum:
        arrays["eigenvectors"], arrays["rows"] = scores.spectrum.vectors, scores.graphs.rows
    file = BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()
