"""The inputs a bound holds for: a ball around each image, cut by the range of the encoder's domain.

A linear function's minimum over ``{x: norm(x - centre) <= eps, low <= x <= high}`` is exact for linf, where the set is
a box, and by Lagrangian duality for l2 and l1: every multiplier gives a lower bound, the best one the minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.bounds.network.forms import Form
from holdfast.bounds.relaxations import Box
from holdfast.bounds.rounding.formats import Format
from holdfast.core.balls import L1, L2, Ball, Linf, column
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError

HALVINGS = 50


@dataclass(frozen=True)
class Region:
    """A ball of kind ``ball`` and radius ``eps`` around each ``centre``, inside the box ``low``, ``high``."""

    centre: Float[Tensor, "b ..."]
    low: Float[Tensor, "b ..."]
    high: Float[Tensor, "b ..."]
    eps: Float[Tensor, "b"]
    ball: type[Ball]
    nested: bool = False
    """Whether the second half of the batch lies inside the first, entry by entry, so that bounds of the first hold."""

    def pick(self, image: int) -> Region:
        """Return the region of one image, or its two if they are nested."""
        return self.take(slice(image, None, self.distinct), self.nested)

    def take(self, images: slice | Int[Tensor, "a"], nested: bool = False) -> Region:
        """Return the regions of some images."""
        return Region(self.centre[images], self.low[images], self.high[images], self.eps[images], self.ball, nested)

    @property
    def distinct(self) -> int:
        """Number of regions with their own linear forms; of two nested ones, only the outer."""
        return len(self.eps) // 2 if self.nested else len(self.eps)

    @property
    def halves(self) -> tuple[Region, Region]:
        """Return the outer and the inner regions of a nested batch."""
        assert self.nested
        return self.take(slice(self.distinct)), self.take(slice(self.distinct, None))

    @property
    def box(self) -> Box:
        return Box(self.low, self.high)

    def minimise(self, form: Form) -> Float[Tensor, "b s"]:
        """Return a lower bound of each form over the region; exact except for l2's bisection."""
        if self.ball is Linf:
            # Infinite ends of the range never survive: the ball's own box is finite.
            return form.dot((self.low + self.high) / 2) - form.like(form.coef.abs()).dot((self.high - self.low) / 2)
        down, up = (form.arrange(end - self.centre) for end in (self.low, self.high))
        room = form.flatten_last(torch.where(form.coef > 0, -down, up))
        coef = form.flatten_last(form.coef).expand_as(room)
        eps = self.eps.reshape((-1, 1) if form.windows is None else (-1, 1, 1))
        return form.dot(self.centre) - form.per_form(GAINS[self.ball](coef.abs(), room, eps))


def region(
    pixels: Pixels,
    ball: type[Ball],
    eps: Float[Tensor, "b"],
    domain: Domain,
    nested: bool = False,
    inputs: Format | None = None,
) -> Region:
    """Return the region around ``pixels`` (b, *domain.shape), with the leading axis of batch one that graphs have.

    With ``inputs``, it holds what its points become when they are converted to that type.
    """
    if ball not in (Linf, *GAINS):
        raise HoldfastError(f"bounds know the balls linf, l2 and l1, got {ball.name}")
    centre = pixels[:, None]
    reach = column(eps, centre)
    around = Region(centre, domain.clip(centre - reach), domain.clip(centre + reach), eps, ball, nested)
    return around if inputs is None else converted(around, inputs)


def converted(around: Region, inputs: Format) -> Region:
    """Return the region of all that points of ``around`` become in another type, where what is not normal may become zero.

    Rounding is monotone: a box becomes the box of its ends. Points of other balls move by what rounding moves them.
    """
    low, high = (inputs.nearest(end) for end in around.box)
    low = torch.where((low > 0) & (low < inputs.tiny), 0.0, low)
    high = torch.where((high < 0) & (high > -inputs.tiny), 0.0, high)
    if around.ball is Linf:
        return replace(around, low=low, high=high)
    moved = inputs.unit * torch.maximum(around.low.abs(), around.high.abs()) + inputs.tiny
    # A norm of what is computed in floating point is a little too small at most.
    further = around.ball(1.0).norm(moved[:, 0]) * (1 + 2.0**-20)
    return replace(around, low=low, high=high, eps=around.eps + further)


def check_box(region: Region) -> None:
    """Raise HoldfastError unless the region is a box, as exact bounds need."""
    if region.ball is not Linf:
        raise HoldfastError(f"exact bounds are for linf balls, got {region.ball.name}; use alpha or branch")


def l2_gain(slope: Tensor, room: Tensor, eps: Tensor) -> Tensor:
    """Return the largest ``slope . d`` for ``0 <= d <= room`` and ``|d| <= eps``, or a little more.

    For every multiplier ``t >= 0`` the gain is at most ``max_d slope . d - t/2 (|d|^2 - eps^2)``, attained at
    ``d = min(slope / t, room)``.
    """
    t = l2_multiplier(slope, room, eps)
    best = torch.minimum(slope / t[..., None], room)
    return (slope * best).sum(-1) - t / 2 * ((best * best).sum(-1) - eps**2)


def l2_multiplier(slope: Tensor, room: Tensor, eps: Tensor) -> Tensor:
    """Return the multiplier ``t`` at which ``d = min(slope / t, room)`` has norm ``eps``, by bisection, or a larger one."""

    def point(t: Tensor) -> Tensor:
        return torch.minimum(slope / t[..., None], room)

    least = torch.finfo(slope.dtype).tiny ** 0.5  # a slope of zero has no direction, a radius of zero no multiplier
    # There the unclipped step has norm eps, and the clipped one less.
    high = (slope.norm(dim=-1) / eps.clamp_min(least)).clamp_min(least)
    low = high * 1e-9
    with torch.no_grad():
        for _ in range(HALVINGS):
            middle = low.sqrt() * high.sqrt()  # apart, for their product may underflow
            long = point(middle).norm(dim=-1) > eps
            low, high = torch.where(long, middle, low), torch.where(long, high, middle)
    return high


def l1_gain(slope: Tensor, room: Tensor, eps: Tensor) -> Tensor:
    """Return the largest ``slope . d`` for ``0 <= d <= room`` and ``sum d <= eps``: steepest coordinates first."""
    ordered, order = slope.sort(dim=-1, descending=True)
    room = room.gather(-1, order)
    before = room.cumsum(-1) - room
    return (ordered * torch.minimum(room, (eps[..., None] - before).clamp_min(0))).sum(-1)


GAINS: dict[type[Ball], Callable[[Tensor, Tensor, Tensor], Tensor]] = {L2: l2_gain, L1: l1_gain}
