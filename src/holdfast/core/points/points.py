"""Arrays of embeddings as points: checked once and scaled in tiles.

Also here: the smallest balls that enclose given points, for many sets at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import frexp

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from holdfast.core.checks import as_tensor
from holdfast.core.errors import Described, HoldfastError, OutOfRange

BLOCK = 1 << 24
"""Values looked at together: 128 MB in float64."""
ROUNDING = 8
"""Roundings of the largest value, up to which a spread of the points is none: 1e-6 of it in float32."""


@dataclass(frozen=True, eq=False)
class Points:
    """``n`` points of ``d`` features, centred and scaled so that float32 products stay exact.

    Centring keeps float32 products from cancelling; ``scale``, a power of two, keeps squares from over- or underflowing.
    """

    values: Shaped[Tensor, "n d"]
    centre: Float[Tensor, "d"]
    scale: float
    """Power of two that keeps squares from over- and underflow."""
    constant: bool
    """True if all points are one up to rounding."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def features(self) -> int:
        """Return the number of features ``d``."""
        return self.values.shape[1]

    def tile(
        self, rows: slice | Int[Tensor, "b"], dtype: torch.dtype = torch.float32, columns: slice = slice(None)
    ) -> Float[Tensor, "b e"]:
        """Centred and scaled points of some rows and columns."""
        # In float32 too: subtracting one constant vector rounds each result once, relative to its own size.
        narrow = self.values.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
        wide = torch.float32 if narrow else torch.float64  # which holds what float32 does not
        moved = self.values[rows, columns].to(wide) - self.centre[columns].to(wide)
        return moved.mul_(self.scale).to(dtype)

    def subset(self, rows: Int[np.ndarray, "m"]) -> Points:
        """Return the points at ``rows``; centre and scale stay."""
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        return Points(self.values[chosen.to(self.values.device)], self.centre, self.scale, self.constant)


def points(array: object, name: str = "points") -> Points:
    """Check an array and turn it into points.

    Raises:
        HoldfastError: It is no array of numbers with a first axis of samples, or holds NaN or infinity.

    Example:
        >>> points(np.array([[1.0], [np.nan]]), "outputs")
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: outputs must be finite, got NaN or infinity in row 1 (1 of 2 rows). ...
    """
    values = as_tensor(array, name, "sample")
    if values.ndim < 2 or values.dtype == torch.bool or 0 in values.shape:
        got, expected = f"{values.dtype} of shape {tuple(values.shape)}", "real numbers, shape (samples, features)"
        raise OutOfRange(name, Described(got), f"an array of {expected}", fix="reshape a single feature to (n, 1)")
    values = values.detach().flatten(1)
    if bad := _not_finite(values):
        got = Described(f"NaN or infinity in row {bad[0]} ({len(bad)} of {len(values)} rows)")
        fix = "remove those samples, or compute the features in a wider type (float16 ends at 65504)"
        raise OutOfRange(name, got, "finite", fix)
    centre, spread, size = _extent(values)
    # Rounded to a power of two, so that scaling rounds nothing.
    scale = 2.0 ** -frexp(spread)[1] if spread > 0 else 1.0
    rounding = torch.finfo(values.dtype).eps if values.dtype.is_floating_point else 0.0
    return Points(values, centre, scale, bool(spread <= ROUNDING * rounding * size))


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
    """First row of each set of equal points, and the position of each point's set.

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


# The smallest ball that encloses given points, for many sets of points at once.
#
# Its centre is a mean of the points under weights ``w`` that maximise ``sum_i w_i |p_i|^2 - |sum_i w_i p_i|^2``,
# whose root is a lower bound of the radius whatever the weights are (Badoiu and Clarkson 2003,
# https://dl.acm.org/doi/10.5555/644108.644240). Steps go towards the farthest point or away from the nearest one that
# has weight, which converges linearly (Yildirim 2008, https://doi.org/10.1137/070690419, algorithm 4.1). So every
# answer is a ball that does enclose its points, together with a radius below which no ball does.

MOST_STEPS = 100_000


@dataclass(frozen=True)
class EnclosingBalls:
    """A ball around each set of points."""

    centres: Float[Tensor, "b d"]
    radii: Float[Tensor, "b"]
    """Radius of a ball that holds every point of its set, shape (b,)."""
    least: Float[Tensor, "b"]
    """Lower bound of the radius of the smallest enclosing ball, shape (b,)."""


def enclosing_balls(
    points: Float[Tensor, "b n d"], tolerance: float = 1e-3, most_steps: int = MOST_STEPS
) -> EnclosingBalls:
    """Ball around each set of points, at most ``1 + tolerance`` times as wide as the smallest.

    In float64. If ``most_steps`` do not suffice, the balls still enclose, and ``least`` bounds the smallest radius.

    Args:
        tolerance: Excess over the smallest radius, as a fraction; above 0.

    Raises:
        HoldfastError: There are no points, or some are not finite.

    Example:
        >>> found = enclosing_balls(torch.tensor([[[0.0, 0.0], [2.0, 0.0], [1.0, 0.5]]]))
        >>> found.centres, found.radii
        (tensor([[1., 0.]], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    if not points.shape[1] or not bool(points.isfinite().all()):
        raise HoldfastError("an enclosing ball needs at least one point, and finite ones only; leave the others out")
    origin = points[:, :1].double()
    points = points.double() - origin  # so that squares do not cancel where codes have an offset
    squares, each = points.square().sum(2), torch.arange(len(points), device=points.device)
    weights = _opposite(points)
    centres = (weights[:, None] @ points)[:, 0]
    for _ in range(most_steps):
        distances = (points - centres[:, None]).square().sum(2)
        most, farthest = distances.max(1)
        fewest, nearest = distances.masked_fill(weights <= 0, torch.inf).min(1)
        level = (weights * squares).sum(1) - centres.square().sum(1)
        close = most <= level * (1 + tolerance) ** 2
        if bool(close.all()):
            break
        gain, loss = most - level, level - fewest
        away = loss > gain
        chosen = torch.where(away, nearest, farthest)
        share = weights[each, chosen]
        # Exact line search along the line through the point; away from it, until its weight is spent.
        step = torch.where(away, -(loss / (2 * fewest)).minimum(share / (1 - share)), gain / (2 * most))
        # Those that are close enough stay where they are, so that no set depends on which others share its batch.
        step = torch.where((level < most) & ~close, step.nan_to_num(), 0.0)
        weights = weights * (1 - step)[:, None]
        weights[each, chosen] = (weights[each, chosen] + step).clamp_min(0)
        centres = centres + step[:, None] * (points[each, chosen] - centres)
    radii = (points - centres[:, None]).square().sum(2).amax(1).sqrt()
    level = (weights * squares).sum(1) - centres.square().sum(1)
    return EnclosingBalls(centres + origin[:, 0], radii, level.clamp_min(0).sqrt().minimum(radii))


def _opposite(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """Return weights of a half for two points of each set that lie far apart: the farthest from the first, and from that."""
    each = torch.arange(len(points), device=points.device)
    first = points.square().sum(2).argmax(1)
    other = (points - points[each, first][:, None]).square().sum(2).argmax(1)
    weights = torch.zeros_like(points[..., 0])
    weights[each, first] += 0.5
    weights[each, other] += 0.5
    return weights
