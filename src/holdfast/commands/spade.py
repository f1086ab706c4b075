"""Score how a map stretches neighbourhoods, from arrays of its inputs and outputs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from holdfast.core.options import Seeding, takes
from holdfast.core.records import Result
from holdfast.measure.evaluation import settings
from holdfast.measure.store import Key, Store
from holdfast.report import write
from holdfast.run.request import build
from holdfast.run.run import check_free, claim
from holdfast.spectral import analysis
from holdfast.spectral import arrays as features
from holdfast.spectral.analysis import Spade
from holdfast.spectral.arrays import mark, packed, read
from holdfast.spectral.evaluations.spade import Spectral
from holdfast.spectral.graph_pair import GraphConstruction


@dataclass(frozen=True, eq=False)
class Stretch:
    """What ``spade`` returns: the result with its intervals, and the scores behind it."""

    result: Result
    report: Path | None
    """The page, where a folder was named for it."""
    _scores: Callable[[], Spade]

    @cached_property
    def scores(self) -> Spade:
        """Graphs, eigenvalues and vectors, and the scores of edges and samples; a result that was kept has them computed."""
        return self._scores()


@takes(Seeding)
def spade(
    inputs: object,
    outputs: object,
    k: int = 10,
    *,
    labels: object = None,
    graph: GraphConstruction | str = "knn",
    repair: str = "none",
    subsets: int = 8,
    certify: bool = True,
    out: str | Path | None = None,
    **options: Unpack[Seeding],
) -> Stretch:
    """Return how the map from ``inputs`` to ``outputs`` stretches neighbourhoods, as ``holdfast spade`` does.

    Args:
        inputs: an array or a tensor with one row per sample, or the ``.npy`` or ``.npz`` file of one.
        outputs: the representations of the same samples, in the same order.
        k: neighbours of each sample in both graphs.
        labels: one integer per sample, for scores by label; without it inputs are clustered.
        graph: which is drawn, ``knn`` as published, ``pca:components=50``, ``cknn`` or ``sparsified``.
        repair: what to do about an infinite score: ``none``, ``increase_k``, ``largest`` or ``mst``.
        subsets: random subsets that the intervals come from; 0: no intervals.
        certify: prove an upper bound of the score, by a factorisation that may cost more than the score itself.
        out: folder for the report and ``scores.npz``; what is there already is read. By default nothing is kept.
        seed: of start vectors, sketches and samples; it changes nothing but what those approximate.

    Raises:
        HoldfastError: the arrays cannot be measured, there is no such graph or repair, or the folder is in use.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 3))
        >>> stretch = spade(x, x @ np.diag([1.0, 1.0, 20.0]), subsets=0)
        >>> 1 < stretch.scores.stretch < stretch.scores.score
        True
    """
    seed = options["seed"]
    evaluation = build(Spectral, {"k": k, "graph": graph, "repair": repair, "subsets": subsets, "certify": certify})
    assert isinstance(evaluation, Spectral)
    if out is not None:
        check_free(Path(out))
    x, y, known = _array(inputs), _array(outputs), _array(labels)
    names = _name(inputs, "inputs"), _name(outputs, "outputs")
    if out is None:
        result, scores = features.measure(x, y, evaluation, seed, names, known)
        return Stretch(result, None, lambda: scores)
    store = Store(Path(out))
    claim(store, "spade", key := _key(evaluation, seed, (x, y, known), names[1]))
    kept = store.result(key)
    if kept is None:
        kept, scores = features.measure(x, y, evaluation, seed, names, known)
        store.write_file("scores.npz", packed(scores))
        store.finish(key, kept)  # last, because it says that the scores are there
    page = write([kept], [], store.folder)["report.html"]
    return Stretch(kept, page, partial(analysis.spade, x, y, k, graph=graph, repair=repair, certify=certify, seed=seed))


def _array(values: object) -> Any:
    return read(Path(values)) if isinstance(values, str | Path) else values


def _name(values: object, what: str) -> str:
    return Path(values).name if isinstance(values, str | Path) else what


def _key(evaluation: Spectral, seed: int, arrays: tuple[Any, Any, Any], name: str) -> Key:
    """Return what identifies the scores of ``arrays``: inputs, outputs, and labels or None."""
    inputs, outputs, labels = (
        values.detach().cpu().numpy() if isinstance(values, Tensor) else None if values is None else np.asarray(values)
        for values in arrays
    )
    assert inputs is not None
    assert outputs is not None
    chosen = {**settings(evaluation), "labels": None if labels is None else mark(labels)}
    marks = {"encoder": mark(outputs), "images": mark(inputs), "precision": str(outputs.dtype), "name": name}
    return Key(kind=evaluation.name, version=evaluation.version, settings=chosen, seed=seed, **marks)
