"""Proofs as data: networks as plain arrays, the numbers that a search chose, and arithmetic with counted errors.

It shares nothing with the methods that find bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError

# Float64 arithmetic whose errors are counted: every result comes with, or has lost, more than it can be wrong.
#
# A sum of n products, in any order, errs by at most ``gamma_n |a| . |b|`` with ``gamma_n = n u / (1 - n u)`` and u =
# 2^-53 (Higham 2002, *Accuracy and Stability of Numerical Algorithms*, section 3.1), and by ``n`` times the smallest
# number where products underflow. Errors themselves are computed with some units to spare.

Array = NDArray[np.float64]
Matrix = Any
"""An array, or a sparse matrix of scipy."""

UNIT = 2.0**-53
SMALLEST = 1e-300
"""Far more than what products lose that underflow."""
SPARE = 1 + 1e-9
"""Covers the rounding of errors, which are sums of at most a million positive terms."""


def gamma(terms: int) -> float:
    """Return the rounding error of a sum of this number of products, relative to the sum of their sizes; two more fit."""
    return (terms + 2) * UNIT / (1 - (terms + 2) * UNIT) * SPARE


def dot_below(left: Array, right: Array) -> Array:
    """Return numbers at or below ``left @ right`` for a matrix and a vector."""
    terms = left.shape[-1]
    return below(left @ right - (gamma(terms) * (np.abs(left) @ abs(right)) + terms * SMALLEST))


def below(values: Array) -> Array:
    """Return the next numbers below ``values``: what a single rounding to nearest has made of something is no less."""
    return np.nextafter(values, -np.inf)


def above(values: Array) -> Array:
    """Return the next numbers above ``values``."""
    return np.nextafter(values, np.inf)


def size(low: Array, high: Array) -> Array:
    """Return the largest absolute value in boxes."""
    return np.maximum(np.abs(low), np.abs(high))


Arrays = Mapping[str, NDArray[Any]]
PARTS = ("data", "indices", "indptr")
"""Stored fields of a sparse matrix."""


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
        """Return the network's embeddings of the rows of ``pixels`` (b, n), in float64."""
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


# What is kept of the certificates of one image: every number that a search has chosen, and nothing that follows from
# them.
#
# Intermediate bounds are claims: the program that checks them proves each again, in order of computation, by
# intervals or by a linear bound with the slopes that stand here. Specifications are proved in leaves: subdomains in
# which some ReLUs have a fixed sign, each sign an inequality with a multiplier.


@dataclass(frozen=True)
class Claim:
    """Bounds of a step; ``entries`` and ``signs`` say of which bounds ``slopes`` holds rows of lower slopes, by ReLU.

    A bound without a row is proved with the slopes that all share.
    """

    low: Array
    high: Array
    entries: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    signs: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    slopes: Mapping[int, Matrix] = field(default_factory=dict)


@dataclass(frozen=True)
class Leaves:
    """Subdomains: the negative each belongs to, and by ReLU the signs, lower slopes and multipliers, (leaves, size)."""

    negatives: NDArray[np.int64]
    signs: Mapping[int, NDArray[np.int8]]
    slopes: Mapping[int, Array]
    multipliers: Mapping[int, Array]


@dataclass(frozen=True)
class EncoderState:
    """Subject of a proof, as hashes (sha256, in hex)."""

    network: str
    """Hash of the network's file."""
    pixels: str
    """Hash of the names and pixels of the image and its negatives, from ``Proof.hashed_pixels``."""
    run: Mapping[str, str]
    """Encoder, images and settings in the run's record."""


@dataclass(frozen=True)
class Proof:
    """The certificates of one image in a linf ball: pixels as rows of numbers, claims by step, and leaves."""

    anchor_id: str
    negative_ids: tuple[str, ...]
    eps: float
    anchor: Array
    negatives: Array
    claims: Mapping[int, Claim]
    slopes: Mapping[int, Array]
    """Lower slopes per ReLU, shared by all bounds without their own slopes."""
    leaves: Leaves
    subject: EncoderState | None = None
    """None in proofs that were written before there were hashes."""

    def hashed_pixels(self) -> str:
        """Return the hash of the names and pixels of the image and its negatives."""
        digest = sha256(json.dumps([self.anchor_id, *self.negative_ids]).encode())
        for pixels in (self.anchor, self.negatives):
            digest.update(np.ascontiguousarray(pixels, "<f8").tobytes())
        return digest.hexdigest()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays by name, to be kept."""
        meta = {
            "anchor": self.anchor_id,
            "negatives": self.negative_ids,
            "claims": list(self.claims),
            "relus": list(self.slopes),
            "subject": self.subject and asdict(self.subject),
        }
        arrays: dict[str, NDArray[Any]] = {
            "meta": np.array(json.dumps(meta)),
            "eps": np.array(self.eps),
            "anchor": self.anchor,
            "negatives": self.negatives,
            "leaves.negatives": self.leaves.negatives,
        }
        for node, claim in self.claims.items():
            for name in ("low", "high", "entries", "signs"):
                arrays[f"claim.{node}.{name}"] = getattr(claim, name)
            for relu, matrix in claim.slopes.items():
                for part in PARTS:
                    arrays[f"claim.{node}.slopes.{relu}.{part}"] = getattr(matrix, part)
        for relu, slopes in self.slopes.items():
            arrays[f"slopes.{relu}"] = slopes
            for name in ("signs", "slopes", "multipliers"):
                arrays[f"leaves.{name}.{relu}"] = getattr(self.leaves, name)[relu]
        return arrays

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Proof:
        """Return the proof that ``arrays`` hold.

        Raises:
            HoldfastError: they hold none.
        """
        try:
            meta = json.loads(str(arrays["meta"]))
            relus = [int(relu) for relu in meta["relus"]]
            sizes = {relu: len(arrays[f"slopes.{relu}"]) for relu in relus}
            parts: dict[str, dict[int, NDArray[Any]]] = {
                name: {relu: read(arrays, f"leaves.{name}.{relu}") for relu in relus}
                for name, read in (("signs", integers), ("slopes", floats), ("multipliers", floats))
            }
            return cls(
                anchor_id=str(meta["anchor"]),
                negative_ids=tuple(map(str, meta["negatives"])),
                eps=float(floats(arrays, "eps")),
                anchor=floats(arrays, "anchor"),
                negatives=floats(arrays, "negatives"),
                claims={int(node): _claim(arrays, int(node), sizes) for node in meta["claims"]},
                slopes={relu: floats(arrays, f"slopes.{relu}") for relu in relus},
                leaves=Leaves(integers(arrays, "leaves.negatives"), **parts),
                subject=_subject(meta.get("subject")),
            )
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise HoldfastError(f"a proof is damaged ({error}); certify again with --proofs") from error


def _subject(kept: Any) -> EncoderState | None:
    return None if kept is None else EncoderState(str(kept["network"]), str(kept["pixels"]), dict(kept["run"]))


def _claim(arrays: Arrays, node: int, sizes: Mapping[int, int]) -> Claim:
    low, high = (floats(arrays, f"claim.{node}.{name}") for name in ("low", "high"))
    entries, signs = (integers(arrays, f"claim.{node}.{name}") for name in ("entries", "signs"))
    slopes = {
        relu: sparse(arrays, f"claim.{node}.slopes.{relu}", (len(entries), size))
        for relu, size in sizes.items()
        if f"claim.{node}.slopes.{relu}.data" in arrays
    }
    return Claim(low, high, entries, signs, slopes)
