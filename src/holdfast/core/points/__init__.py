"""Feature arrays as points: checked once, centred and scaled tile by tile so that no second copy of them is held."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import frexp

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from holdfast.core.arguments import check_dense
from holdfast.core.errors import HoldfastError

BLOCK = 1 << 24
"""Values looked at together: 128 MB in float64."""
ROUNDING = 8
"""Roundings of the largest value, up to which a spread of the points is none: 1e-6 of it in float32."""


@dataclass(frozen=True, eq=False)
class Points:
    """``n`` points of ``d`` features; distances between them are those of ``(values - centre) * scale``, over ``scale``.

    Centring keeps float32 products from cancelling; ``scale``, a power of two, keeps squares from over- or underflowing.
    """

    values: Shaped[Tensor, "n d"]
    centre: Float[Tensor, "d"]
    scale: float
    constant: bool
    """Whether all points are one up to rounding."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def features(self) -> int:
        """Return the number of features ``d``."""
        return self.values.shape[1]

    def tile(
        self, rows: slice | Int[Tensor, "b"], dtype: torch.dtype = torch.float32, columns: slice = slice(None)
    ) -> Float[Tensor, "b e"]:
        """Return the centred, scaled points at ``rows``, of all features or of those at ``columns``."""
        # In float32 too: subtracting one constant vector rounds each result once, relative to its own size.
        wide = _wide(self.values.dtype)
        moved = self.values[rows, columns].to(wide) - self.centre[columns].to(wide)
        return moved.mul_(self.scale).to(dtype)

    def subset(self, rows: Int[np.ndarray, "m"]) -> Points:
        """Return the points at ``rows``; centre and scale stay."""
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        return Points(self.values[chosen.to(self.values.device)], self.centre, self.scale, self.constant)


def points(array: object, name: str = "points") -> Points:
    """Return ``array``, shape (n, ...) and of any number type, as points.

    Raises:
        HoldfastError: it is no array of numbers with a first axis of samples, or holds NaN or infinities.

    Example:
        >>> points(np.array([[1.0], [np.nan]]), "outputs")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: outputs must be finite, but row 1 (1 of 2 rows) holds NaN or infinity; ...
    """
    try:
        values = array if isinstance(array, Tensor) else torch.as_tensor(np.asarray(array))
    except (TypeError, ValueError, RuntimeError) as error:
        raise HoldfastError(f"{name} must be an array of numbers, one row per sample ({error})") from error
    check_dense(values, name)
    if values.ndim < 2 or values.dtype == torch.bool or 0 in values.shape:
        raise HoldfastError(
            f"{name} must be an array of real numbers, shape (samples, features), got {values.dtype} of shape "
            f"{tuple(values.shape)}; reshape a single feature to (n, 1)"
        )
    values = values.detach().flatten(1)
    if bad := _not_finite(values):
        raise HoldfastError(
            f"{name} must be finite, but row {bad[0]} ({len(bad)} of {len(values)} rows) holds NaN or infinity; "
            "remove those samples, or compute the features in a wider type (float16 ends at 65504)"
        )
    centre, spread, size = _extent(values)
    # Rounded to a power of two, so that scaling rounds nothing.
    scale = 2.0 ** -frexp(spread)[1] if spread > 0 else 1.0
    return Points(values, centre, scale, bool(spread <= ROUNDING * _rounding(values.dtype) * size))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to subtract: float32, or float64 for what float32 does not hold."""
    return torch.float32 if dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8) else torch.float64


def _rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _slices(count: int, width: int) -> list[slice]:
    step = max(1, BLOCK // width)
    return [slice(start, start + step) for start in range(0, count, step)]


def _not_finite(values: Shaped[Tensor, "n d"]) -> list[int]:
    bad_rows: list[int] = []
    for rows in _slices(*values.shape) if values.is_floating_point() else []:
        bad = ~torch.isfinite(values[rows]).all(1)
        bad_rows += [rows.start + row for row in bad.nonzero()[:, 0].tolist()]
    return bad_rows


def _extent(values: Shaped[Tensor, "n d"]) -> tuple[Float[Tensor, "d"], float, float]:
    """Return the mean, the largest distance from it along one feature, and the largest absolute value."""
    blocks = _slices(*values.shape)
    centre = torch.zeros(values.shape[1], dtype=torch.float64, device=values.device)
    for rows in blocks:
        # Divided first: the sum of values near the end of the range would be infinite.
        centre += (values[rows].double() / len(values)).sum(0)
    spread = max(float((values[rows].double() - centre).abs().max()) for rows in blocks)
    size = max(float(values[rows].double().abs().max()) for rows in blocks)
    return centre, spread, size


def distinct(points: Points) -> tuple[Int[np.ndarray, "m"], Int[np.ndarray, "n"]]:
    """Return the rows of the first of each set of equal points, and for each point the number of its own among them.

    Example:
        >>> kept, node = distinct(points(np.array([[1.0], [2.0], [1.0]])))
        >>> kept.tolist(), node.tolist()
        ([0, 1], [0, 1, 0])
    """
    first: dict[bytes, int] = {}
    kept: list[int] = []
    node = np.empty(len(points), dtype=np.int64)
    for rows in _slices(*points.values.shape):
        # Adding zero turns -0.0 into 0.0, which is the same point.
        block = (points.values[rows].cpu() + 0).contiguous().view(torch.uint8).numpy()
        for row, values in enumerate(block, start=rows.start):
            mark = blake2b(values.tobytes(), digest_size=16).digest()
            if mark not in first:
                first[mark] = len(kept)
                kept.append(row)
            node[row] = first[mark]
    return np.array(kept, dtype=np.int64), node
