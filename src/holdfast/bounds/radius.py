"""The largest radius at which a bound is found positive, for all rows of an image at once.

Each evaluation bounds every open row at one radius, so it moves many brackets. The next radius is where most rows are
expected to gain: just beside the places where parabolas through what was seen cross zero. The bound need not fall
monotonically with the radius, so what is returned is a radius that was itself certified, never one inferred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Bound = Callable[[Int[Tensor, "a"], Float[Tensor, "a"], Int[Tensor, "a k"]], Float[Tensor, "a k"]]
"""Lower bounds of the named rows of the named images, each image at its own radius."""
GROWTH = 4.0
FIRST = 2.0**-6  # share of the largest radius that is tried first
ASIDE = 0.3  # how far beside an expected root to look, in tolerances: once on either side closes a bracket
PATIENCE = 8  # evaluations inside a bracket that may leave more than half of it, before it is halved


@dataclass
class Search:
    """What was seen so far: radii ``eps`` of each image, bounds ``values`` there (NaN: not asked), newest last."""

    eps: Float[Tensor, "b r"]
    values: Float[Tensor, "b s r"]
    most: float
    tolerance: float
    stale: Int[Tensor, "b s"]
    """How often in a row an evaluation left more than half of the bracket."""

    def bracket(self) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"]]:
        """Return the largest radius with a positive bound, and the least beyond it without (infinite if none)."""
        eps = self.eps[:, None].expand_as(self.values)
        low = torch.where(self.values > 0, eps, -torch.inf).amax(2)
        high = torch.where((self.values <= 0) & (eps > low[..., None]), eps, torch.inf).amin(2)
        return low, high

    def open(self) -> Bool[Tensor, "b s"]:
        """Return which rows are still to be settled."""
        low, high = self.bracket()
        return (self.values[..., 0] > 0) & (low < self.most) & (high - low > self.tolerance)

    def add(self, eps: Float[Tensor, "b"], values: Float[Tensor, "b s"]) -> None:
        """Add the bounds at one more radius of each image."""
        width = torch.sub(*reversed(self.bracket()))
        self.eps = torch.cat([self.eps, eps[:, None]], 1)
        self.values = torch.cat([self.values, values[..., None]], 2)
        left = torch.sub(*reversed(self.bracket()))
        self.stale = torch.where(left <= width / 2, 0, self.stale + (left < width))

    def next(self) -> Float[Tensor, "b"]:
        """Return for each image the radius at which most open rows gain; the middle one of equals."""
        todo, (low, high) = self.open(), self.bracket()
        root, half = self.root(low, high), self.tolerance / 2
        places = torch.cat([self._beside(root, low, high, side) for side in (-1, 1)], 1)
        gap = places[:, :, None] - root[:, None]
        # A place helps a row that has nothing as near on that side of its root.
        below = (gap < 0) & (gap > -half) & (root - low > half)[:, None]
        above = (gap > 0) & (gap < half) & (high - root > half)[:, None]
        gain = ((below | above) & todo[:, None]).sum(2).to(places.dtype)
        asked = torch.where(todo.repeat(1, 2), places, torch.nan)
        far = (asked - asked.nanmedian(1, keepdim=True).values).abs() / self.most
        best = torch.where(asked.isnan(), -torch.inf, gain - far).argmax(1, keepdim=True)
        return places.gather(1, best)[:, 0]

    def _beside(
        self, root: Float[Tensor, "b s"], low: Float[Tensor, "b s"], high: Float[Tensor, "b s"], side: int
    ) -> Float[Tensor, "b s"]:
        """Return the place to look on one side of each root, or on the other where this side is settled."""
        near = self.tolerance * ASIDE
        settled = (root - low if side < 0 else high - root) <= self.tolerance / 2
        place = root + torch.where(settled, -side * near, side * near)
        margin = (high - low).clamp_max(self.tolerance) / 8
        place = torch.maximum(low + margin, torch.minimum(place, high - margin))
        place = torch.where(self.stale >= PATIENCE, (low + high) / 2, place)
        beyond = torch.maximum(torch.minimum(root, GROWTH * low), low + self.tolerance)
        beyond = torch.where(low > 0, beyond, self.most * FIRST)
        return torch.where(high.isinf(), beyond, place).clamp_max(self.most)

    def root(self, low: Float[Tensor, "b s"], high: Float[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """Return where the parabola of radius over bound through the three nearest points has bound zero."""
        middle = torch.where(high.isinf(), low, (low + high) / 2)
        apart = (self.eps[:, None] - middle[..., None]).abs().masked_fill(~self.values.isfinite(), torch.inf)
        near = apart.argsort(2)[..., :3]
        y, x = self.values.gather(2, near), self.eps[:, None].expand_as(self.values).gather(2, near)
        x, y = torch.where(y.isfinite(), x, torch.nan), torch.where(y.isfinite(), y, torch.nan)
        found = inverse(x, y)
        found = torch.where(found.isfinite(), found, inverse(x[..., :2], y[..., :2]))
        halves = torch.where(high.isinf(), 2 * low, (low + high) / 2)
        return torch.where((found > low) & (found < high), found, halves)


def inverse(x: Float[Tensor, "b s p"], y: Float[Tensor, "b s p"]) -> Float[Tensor, "b s"]:
    """Return Lagrange's polynomial of x over y at y = 0."""
    found = torch.zeros_like(x[..., 0])
    for i in range(x.shape[2]):
        weight = torch.ones_like(found)
        for j in range(x.shape[2]):
            if j != i:
                weight = weight * y[..., j] / (y[..., j] - y[..., i])
        found = found + weight * x[..., i]
    return found


def radii(bound: Bound, clean: Float[Tensor, "b s"], most: float, tolerance: float) -> Float[Tensor, "b s"]:
    """Return the largest radius, up to ``most``, at which each row was found positive; 0 where it is not even clean.

    Args:
        bound: lower bounds at given radii.
        clean: the rows' values at radius zero.
        most: the largest radius of interest.
        tolerance: how close above the result a radius without a positive bound must have been seen.
    """
    eps = torch.zeros_like(clean[:, :1])
    search = Search(eps, clean[..., None], most, tolerance, torch.zeros_like(clean, dtype=torch.int64))
    while True:
        todo = search.open()
        images = todo.any(1).nonzero()[:, 0]
        if not len(images):
            return torch.where(clean > 0, search.bracket()[0], 0.0)
        eps = torch.where(todo.any(1), search.next(), torch.nan)
        # Open rows come first; images with fewer fill up with settled ones.
        rows = todo.int().argsort(dim=1, descending=True)[images, : int(todo.sum(1).max())]
        found = bound(images, eps[images], rows)
        values = torch.full_like(clean, torch.nan)
        values[images] = values[images].scatter(1, rows, torch.where(found.isnan(), -torch.inf, found))
        search.add(eps, values)
