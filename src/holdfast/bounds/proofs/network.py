"""A network as plain arrays: sparse matrices, vectors and ReLUs, which whoever checks a proof reads without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.bounds.proofs.float64 import Array, Matrix
from holdfast.core.errors import HoldfastError

Arrays = Mapping[str, NDArray[Any]]
PARTS = ("data", "indices", "indptr")
"""Of a sparse matrix, as it is kept."""


def floats(arrays: Arrays, name: str) -> Array:
    """Return an array in float64, the one type whose rounding is counted; some are kept in float32, which it holds exactly.

    Raises:
        ValueError: it is of another type.
    """
    if arrays[name].dtype not in (np.float64, np.float32):
        raise ValueError(f"{name} is of {arrays[name].dtype}, not of float64")
    return arrays[name].astype(np.float64, copy=False)


def integers(arrays: Arrays, name: str) -> NDArray[Any]:
    """Return an array of integers with a sign.

    Raises:
        ValueError: it holds something else.
    """
    if arrays[name].dtype.kind != "i":
        raise ValueError(f"{name} is of {arrays[name].dtype}, not of integers")
    return arrays[name]


def sparse(arrays: Arrays, name: str, shape: tuple[int, int]) -> Matrix:
    """Return the sparse matrix whose parts are kept under ``name``; no entry of it is a sum of several.

    Raises:
        ValueError: they are no such matrix.
    """
    from scipy.sparse import csr_array

    data, indices, indptr = (f"{name}.{part}" for part in PARTS)
    matrix = csr_array((floats(arrays, data), integers(arrays, indices), integers(arrays, indptr)), shape=shape)
    matrix.check_format(full_check=True)
    summed = matrix.copy()
    summed.has_canonical_format = False
    summed.sum_duplicates()
    if summed.nnz != matrix.nnz:
        raise ValueError(f"{name} has two entries in one place")
    return matrix


@dataclass(frozen=True)
class Step:
    """One operation: ``sum_i matrices_i @ x_i + offset`` of earlier values, or their ReLU if there are no matrices."""

    inputs: tuple[int, ...]
    size: int
    matrices: tuple[Matrix, ...] = ()
    offset: Array | None = None

    @cached_property
    def sizes(self) -> tuple[Matrix, ...]:
        """The matrices with absolute entries."""
        return tuple(abs(matrix) for matrix in self.matrices)


@dataclass(frozen=True)
class PlainNetwork:
    """Steps in order of computation, the input first; inputs lie from ``low`` to ``high``."""

    steps: tuple[Step, ...]
    low: float
    high: float
    relus: tuple[int, ...] = field(init=False)
    """The steps that are ReLUs."""

    def __post_init__(self) -> None:
        relus = (k for k, step in enumerate(self.steps) if step.inputs and not step.matrices)
        object.__setattr__(self, "relus", tuple(relus))

    def codes(self, pixels: Array) -> Array:
        """Return what the network computes of the rows of ``pixels`` (b, n), in float64."""
        values: list[Array] = []
        for step in self.steps:
            inputs = [values[i] for i in step.inputs]
            if not step.inputs:
                values.append(pixels)
            elif not step.matrices:
                values.append(np.maximum(inputs[0], 0))
            else:
                total = sum((matrix @ x.T).T for matrix, x in zip(step.matrices, inputs, strict=True))
                values.append(np.asarray(total if step.offset is None else total + step.offset))
        return values[-1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays by name, to be kept."""
        steps = [{"inputs": step.inputs, "size": step.size, "affine": bool(step.matrices)} for step in self.steps]
        arrays: dict[str, NDArray[Any]] = {
            "steps": np.array(json.dumps(steps)),
            "range": np.array([self.low, self.high]),
        }
        for k, step in enumerate(self.steps):
            for i, matrix in enumerate(step.matrices):
                for part in PARTS:
                    arrays[f"{k}.{i}.{part}"] = getattr(matrix, part)
            if step.offset is not None:
                arrays[f"{k}.offset"] = step.offset
        return arrays

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> PlainNetwork:
        """Return the network that ``arrays`` hold.

        Raises:
            HoldfastError: they hold none.
        """
        try:
            described = json.loads(str(arrays["steps"]))
            steps = list[Step]()
            for k, step in enumerate(described):
                inputs, size = tuple(map(int, step["inputs"])), int(step["size"])
                if any(not 0 <= i < k for i in inputs) or bool(inputs) == (k == 0):
                    raise ValueError(f"step {k} reads what is not there")
                matrices = tuple(
                    sparse(arrays, f"{k}.{i}", (size, steps[source].size))
                    for i, source in enumerate(inputs if step["affine"] else ())
                )
                if inputs and not matrices and (len(inputs) != 1 or steps[inputs[0]].size != size):
                    raise ValueError(f"step {k} is no ReLU")
                offset = floats(arrays, f"{k}.offset") if f"{k}.offset" in arrays else None
                if offset is not None and (offset.shape != (size,) or not np.isfinite(offset).all()):
                    raise ValueError(f"step {k} has another offset")
                steps.append(Step(inputs, size, matrices, offset))
            low, high = floats(arrays, "range").tolist()
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise HoldfastError(
                f"the network of the proofs is damaged ({error}); certify again with --proofs"
            ) from error
        if not all(np.isfinite(matrix.data).all() for step in steps for matrix in step.matrices):
            raise HoldfastError(
                "the network of the proofs has weights that are not finite; certify again with --proofs"
            )
        return cls(tuple(steps), low, high)
