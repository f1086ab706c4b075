"""What is kept of the certificates of one image: every number that a search has chosen, and nothing that follows from them.

Intermediate bounds are claims: the program that checks them proves each again, in order of computation, by intervals or
by a linear bound with the slopes that stand here. Specifications are proved in leaves: subdomains in which some ReLUs have
a fixed sign, each sign an inequality with a multiplier.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.bounds.proofs.float64 import Array, Matrix
from holdfast.bounds.proofs.network import PARTS, Arrays, floats, integers, sparse
from holdfast.core.errors import HoldfastError


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
class Subject:
    """What a proof is about, by hashes (sha256, in hex)."""

    network: str
    """Of the file of the network."""
    pixels: str
    """Of the names and pixels of the image and its negatives, as ``Proof.hashed_pixels`` returns it."""
    run: Mapping[str, str]
    """What the run's record says of encoder, images and settings."""


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
    """Of each ReLU the lower slopes that are shared by all bounds without slopes of their own."""
    leaves: Leaves
    subject: Subject | None = None
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


def _subject(kept: Any) -> Subject | None:
    return None if kept is None else Subject(str(kept["network"]), str(kept["pixels"]), dict(kept["run"]))


def _claim(arrays: Arrays, node: int, sizes: Mapping[int, int]) -> Claim:
    low, high = (floats(arrays, f"claim.{node}.{name}") for name in ("low", "high"))
    entries, signs = (integers(arrays, f"claim.{node}.{name}") for name in ("entries", "signs"))
    slopes = {
        relu: sparse(arrays, f"claim.{node}.slopes.{relu}", (len(entries), size))
        for relu, size in sizes.items()
        if f"claim.{node}.slopes.{relu}.data" in arrays
    }
    return Claim(low, high, entries, signs, slopes)
