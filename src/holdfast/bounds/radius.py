"""The largest radius at which a bound is found positive, for all rows of an image at once.

Each evaluation bounds every row at one radius, so it moves the brackets of all rows. The next radius is where the row
in the middle of those still open is expected to cross zero, by a parabola through what was seen near. The bound need
not fall monotonically with the radius, so what is returned is a radius that was itself certified, never one inferred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Bound = Callable[[Int[Tensor, "a"], Float[Tensor, "a"]], Float[Tensor, "a s"]]
"""Lower bounds of all rows of the named images, each at its own radius."""
GROWTH = 4.0
FIRST = 2.0**-6  # share of the largest radius that is tried first
ASIDE = 0.45  # how far beside the expected root to look, in tolerances: once on either side closes a bracket


@dataclass
class Search:
    """Everything seen so far: radii ``eps``, the bounds ``values`` there; image by image, the newest last."""

    eps: Float[Tensor, "b r"]
    values: Float[Tensor, "b s r"]
    most: float
    tolerance: float

    def bracket(self) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"]]:
        """Return the largest radius with a positive bound, and the least beyond it without (infinite if none)."""
        eps = self.eps[:, None].expand_as(self.values)
        low = torch.where(self.values > 0, eps, -torch.inf).amax(2)
        high = torch.where(~(self.values > 0) & (eps > low[..., None]), eps, torch.inf).amin(2)
        return low, high

    def open(self) -> Bool[Tensor, "b s"]:
        """Return which rows are still to be settled, as a mask."""
        low, high = self.bracket()
        return (self.values[..., 0] > 0) & (low < self.most) & (high - low > self.tolerance)

    def proposals(self) -> Float[Tensor, "b s"]:
        """Return for each row the radius that should tell most about it."""
        low, high = self.bracket()
        root = self.root(low, high)
        near = self.tolerance * ASIDE
        beside = torch.where(root - low > self.tolerance * (1 - ASIDE), root - near, root + near)
        margin = torch.minimum(high - low, torch.tensor(self.tolerance)) / 8
        inside = torch.minimum(torch.maximum(beside, low + margin), high - margin)
        unbounded = torch.maximum(torch.minimum(root, GROWTH * low), low + self.tolerance)
        unbounded = torch.where(low > 0, unbounded, torch.full_like(low, self.most * FIRST))
        return torch.where(high.isinf(), unbounded, inside).clamp_max(self.most)

    def root(self, low: Float[Tensor, "b s"], high: Float[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """Return where the parabola of ``eps`` over value through the three nearest points has value zero."""
        middle = torch.where(high.isinf(), low, (low + high) / 2)
        apart = (self.eps[:, None] - middle[..., None]).abs().masked_fill(~self.values.isfinite(), torch.inf)
        count = min(3, self.eps.shape[1])
        near = apart.argsort(2)[..., :count]
        y = self.values.gather(2, near)
        x = self.eps[:, None].expand_as(self.values).gather(2, near)
        found = torch.zeros_like(low)
        for i in range(count):  # Lagrange's inverse interpolation at value zero
            weight = torch.ones_like(low)
            for j in range(count):
                if j != i:
                    weight = weight * y[..., j] / (y[..., j] - y[..., i])
            found = found + weight * x[..., i]
        halves = torch.where(high.isinf(), 2 * low, (low + high) / 2)
        sensible = found.isfinite() & (found > low) & (found < high)
        return torch.where(sensible, found, halves)


def radii(bound: Bound, clean: Float[Tensor, "b s"], most: float, tolerance: float) -> Float[Tensor, "b s"]:
    """Return the largest radius, up to ``most``, at which each row was found positive; 0 where it is not even clean.

    Args:
        bound: lower bounds at given radii.
        clean: the rows' values at radius zero.
        most: the largest radius of interest.
        tolerance: how close above the result a radius without a positive bound must have been seen.
    """
    search = Search(torch.zeros_like(clean[:, :1]), clean[..., None], most, tolerance)
    while True:
        todo = search.open()
        active = todo.any(1).nonzero()[:, 0]
        if not len(active):
            return torch.where(clean > 0, search.bracket()[0], 0.0)
        wanted = torch.where(todo, search.proposals(), torch.nan)[active]
        eps = wanted.nanmedian(1).values
        column = torch.full_like(clean, torch.nan)
        column[active] = bound(active, eps)
        at = torch.zeros_like(clean[:, 0])
        at[active] = eps
        search.eps = torch.cat([search.eps, at[:, None]], 1)
        search.values = torch.cat([search.values, column[..., None]], 2)
