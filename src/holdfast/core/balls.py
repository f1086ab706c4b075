"""Perturbation sets (balls): everything that attacks and certificates need to know about a norm, in one place."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from numbers import Real
from typing import ClassVar, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import Conflict, HoldfastError, OutOfRange
from holdfast.core.noise import Noise
from holdfast.core.settings import TextSettings, convert, read

SMALLEST = torch.finfo(torch.float32).tiny
Flat = Float[Tensor, "b p"]


@dataclass(frozen=True)
class Ball(TextSettings):
    """Perturbation set: all ``delta`` with ``norm(delta) <= radius``, in pixel units."""

    radius: float
    """ε, in pixel units, as in 8/255."""
    name: ClassVar[str]
    example: ClassVar[str] = "8/255"
    """Radius that an error about a missing radius shows."""
    sparse: ClassVar[bool] = False
    """True if the steepest step changes few pixels, so that pixels at the edge of the range are left out."""

    def __post_init__(self) -> None:
        what, least = f"the radius of a {self.name} ball", f"at least {SMALLEST:.2g} (the smallest positive float32)"
        if isinstance(self.radius, bool) or not isinstance(self.radius, Real):
            fix = f"Ball.read('{self.name}:8/255') takes text"
            raise OutOfRange(what, self.radius, "a number such as 8 / 255", fix)
        if not SMALLEST <= self.radius < inf:
            raise OutOfRange(what, self.radius, least if 0 < self.radius < 1 else "positive and finite")
        object.__setattr__(self, "radius", float(self.radius))  # one text, whichever kind of number it was

    @classmethod
    def read(cls, text: str) -> Ball:
        return read(text, BALLS, "ball")

    @abstractmethod
    def norm(self, delta: Pixels) -> Float[Tensor, "b"]:
        """Return the norm of each perturbation."""

    @abstractmethod
    def dual_norm(self, gradient: Pixels) -> Float[Tensor, "b"]:
        """Largest increase of a linear function with this ``gradient`` over the unit ball."""

    @abstractmethod
    def steepest(self, gradient: Pixels, spread: float = 0.0) -> Pixels:
        """Unit-norm perturbation along which ``gradient`` rises fastest; 0 where it is 0.

        Args:
            gradient: Gradient of the objective, shape (b, *pixels).
            spread: Fraction of coordinates that a step in a sparse ball may use; 0 uses the largest alone.

        Returns:
            Perturbations, shape (b, *pixels).
        """

    @abstractmethod
    def project(self, delta: Pixels) -> Pixels:
        """Return the point of the ball nearest to ``delta`` in l2."""

    def onto_plane(
        self, slope: Pixels, rise: Float[Tensor, "b"], low: Float[Tensor, "b ..."], high: Float[Tensor, "b ..."]
    ) -> Pixels:
        """Perturbation of the smallest norm along which a linear function rises by ``rise``.

        Args:
            slope: Gradient of the linear function, shape (b, *pixels).
            rise: Difference to reach, of either sign, shape (b,).
            low, high: Smallest and largest entries of the perturbation, at most and at least 0, shape (b, *pixels).

        Returns:
            Perturbations, shape (b, *pixels); where ``rise`` is out of reach, the one that comes nearest to it.

        Raises:
            OutOfRange: The norm has no such projection.
        """
        flat = slope.flatten(1).double()
        signs = flat.sign() * rise.double().sign()[:, None]
        room = torch.where(signs > 0, high.flatten(1).double(), -low.flatten(1).double()).clamp_min(0)
        room = room.masked_fill(flat == 0, 0)
        return (signs * self._moved(flat.abs(), room, rise.double().abs())).to(slope.dtype).reshape(slope.shape)

    def _moved(self, weight: Flat, room: Flat, rise: Float[Tensor, "b"]) -> Flat:
        # Of the smallest norm, within the ``room``, whose sum with ``weight`` is ``rise``.
        raise OutOfRange("fab: ball", self.name, "linf, l2 or l1, whose planes it can reach")

    @abstractmethod
    def sample(self, noise: Noise, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Pixels:
        """Draw one perturbation per stream of ``noise``, uniform in the ball.

        Args:
            noise: Random streams, b in number.
            shape: Shape of one perturbation, without the batch axis.
            dtype: Type of the result.

        Returns:
            Perturbations, shape (b, *shape).
        """

    def check(self, domain: Domain) -> None:
        """Check that the ball does not contain every input of ``domain``.

        Raises:
            HoldfastError: The ball around any point holds the whole domain, so that no encoder could be robust.
        """
        widest = float(self.norm(torch.full((1, *domain.shape), domain.high - domain.low)))
        if self.radius >= widest:
            raise HoldfastError(
                f"the {self} ball holds every input in [{domain.low:g}, {domain.high:g}], so no number in it means "
                f"anything; radii are in the units of the input (8/255, not 8) and below {widest:g} here"
            )

    def scaled(self, share: float) -> Ball:
        """Return the same ball with ``share`` of the radius."""
        return replace(self, radius=self.radius * share)


def _filled(speed: Flat, weight: Flat, room: Flat, total: Float[Tensor, "b"]) -> Flat:
    """Return ``min(t speed, room)`` for the smallest ``t`` at which its sum with ``weight`` is ``total``.

    The sum is piecewise linear in ``t``, with a kink where an entry meets its room: sorting finds the piece.
    """
    full, order = (room / speed.clamp_min(SMALLEST)).sort(dim=1)
    held = (weight * room).gather(1, order).cumsum(1)
    moving = (weight * speed).gather(1, order)
    left = moving.flip(1).cumsum(1).flip(1)  # of this entry and all that meet their room later
    before = held - (weight * room).gather(1, order)
    piece = ((held + full * (left - moving)) < total[:, None]).sum(1, keepdim=True)
    inside = piece.clamp_max(full.shape[1] - 1)
    level = (total[:, None] - before.gather(1, inside)) / left.gather(1, inside).clamp_min(SMALLEST)
    return torch.minimum(speed * torch.where(piece == inside, level, torch.inf).clamp_min(0), room).nan_to_num(0.0)


def column(values: Shaped[Tensor, "b"], like: Pixels) -> Tensor:
    """Shape one value per sample so that it broadcasts against ``like``."""
    return values.reshape(-1, *(1,) * (like.ndim - 1))


@final
@dataclass(frozen=True)
class Linf(Ball):
    """``max_i |delta_i| <= radius``."""

    name = "linf"

    def norm(self, delta: Pixels) -> Float[Tensor, "b"]:
        return delta.flatten(1).abs().amax(1)

    def dual_norm(self, gradient: Pixels) -> Float[Tensor, "b"]:
        return gradient.flatten(1).abs().sum(1)

    def steepest(self, gradient: Pixels, spread: float = 0.0) -> Pixels:
        return gradient.sign()

    def project(self, delta: Pixels) -> Pixels:
        return delta.clamp(-self.radius, self.radius)

    def _moved(self, weight: Flat, room: Flat, rise: Float[Tensor, "b"]) -> Flat:
        return _filled(torch.ones_like(weight), weight, room, rise)

    def sample(self, noise: Noise, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Pixels:
        return noise.uniform(shape, dtype).mul_(2).sub_(1).mul_(self.radius)


@final
@dataclass(frozen=True)
class L2(Ball):
    """``sqrt(sum_i delta_i^2) <= radius``."""

    name = "l2"

    def norm(self, delta: Pixels) -> Float[Tensor, "b"]:
        return torch.linalg.vector_norm(delta.flatten(1), dim=1)

    def dual_norm(self, gradient: Pixels) -> Float[Tensor, "b"]:
        return self.norm(gradient)

    def steepest(self, gradient: Pixels, spread: float = 0.0) -> Pixels:
        # Scaling by the largest entry first keeps tiny gradients from underflowing when squared.
        scaled = gradient / column(
            gradient.flatten(1).abs().amax(1).clamp_min(torch.finfo(gradient.dtype).tiny), gradient
        )
        return scaled / column(self.norm(scaled).clamp_min(torch.finfo(gradient.dtype).tiny), gradient)

    def project(self, delta: Pixels) -> Pixels:
        return delta * column((self.radius / self.norm(delta)).clamp_max(1), delta)

    def _moved(self, weight: Flat, room: Flat, rise: Float[Tensor, "b"]) -> Flat:
        return _filled(weight, weight, room, rise)

    def sample(self, noise: Noise, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Pixels:
        direction = self.steepest(noise.fork("direction").normal(shape, dtype))
        length = noise.fork("length").uniform((1,), dtype)[:, 0] ** (1 / prod(shape))
        return direction * column(self.radius * length, direction)


def _summable(dtype: torch.dtype) -> torch.dtype:
    """Return ``dtype``, or single precision for half: float16 ends at 65504, below the number of pixels of an image."""
    return torch.promote_types(dtype, torch.float32)


@final
@dataclass(frozen=True)
class L1(Ball):
    """``sum_i |delta_i| <= radius``."""

    name = "l1"
    sparse = True

    def norm(self, delta: Pixels) -> Float[Tensor, "b"]:
        return delta.flatten(1).abs().sum(1)

    def dual_norm(self, gradient: Pixels) -> Float[Tensor, "b"]:
        return gradient.flatten(1).abs().amax(1)

    def steepest(self, gradient: Pixels, spread: float = 0.0) -> Pixels:
        flat = gradient.flatten(1)
        count = max(1, round(spread * flat.shape[1]))
        top = flat.abs().topk(count, dim=1).indices
        signs = torch.zeros_like(flat).scatter_(1, top, flat.gather(1, top).sign())
        return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1)).reshape(gradient.shape)

    def project(self, delta: Pixels) -> Pixels:
        """Soft-threshold at the level that sorting finds.

        Paper: Duchi et al. 2008, https://doi.org/10.1145/1390156.1390191.
        """
        flat = delta.flatten(1)
        size = flat.abs().to(_summable(delta.dtype))
        ordered = size.sort(dim=1, descending=True).values
        excess = (ordered.cumsum(1) - self.radius) / torch.arange(1, flat.shape[1] + 1, device=flat.device)
        kept = (ordered > excess).sum(1, keepdim=True).clamp_min(1)
        level = excess.gather(1, kept - 1).clamp_min(0)
        return (flat.sign() * (size - level).clamp_min(0)).to(delta.dtype).reshape(delta.shape)

    def _moved(self, weight: Flat, room: Flat, rise: Float[Tensor, "b"]) -> Flat:
        sorted_weight, order = weight.sort(dim=1, descending=True)
        part = sorted_weight * room.gather(1, order)
        missing = rise[:, None] - (part.cumsum(1) - part)  # what those with larger slopes leave
        taken = (missing / sorted_weight.clamp_min(SMALLEST)).clamp_min(0)
        return torch.zeros_like(weight).scatter_(1, order, taken).minimum(room)

    def sample(self, noise: Noise, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Pixels:
        # Normalised exponentials are uniform on the simplex; signs and a power of a uniform spread them over the ball.
        wide = _summable(dtype)
        parts = -torch.log1p(-noise.fork("direction").uniform(shape, wide))
        direction = parts * noise.fork("sign").signs(shape, wide) / column(self.norm(parts).clamp_min(1e-30), parts)
        length = noise.fork("length").uniform((1,), wide)[:, 0] ** (1 / prod(shape))
        return (direction * column(self.radius * length, direction)).to(dtype)


BALLS: dict[str, type[Ball]] = {ball.name: ball for ball in (Linf, L2, L1)}


def read_ball(ball: str | Ball) -> Ball:
    """Return the ball that a text spells, or the ball itself."""
    if not isinstance(ball, str | Ball):
        raise HoldfastError(f"a ball is needed or its text, as in Linf(8 / 255) or 'linf:8/255', got {ball!r}")
    return Ball.read(ball) if isinstance(ball, str) else ball


def balls_of(eps: Sequence[str | float], balls: Sequence[str | Ball]) -> list[Ball]:
    """ℓ∞ balls of radii ``eps``, or else ``balls``.

    Raises:
        HoldfastError: Both are given.

    Example:
        >>> balls_of(["8/255"], []) == [Linf(8 / 255)], balls_of([], ["l2:0.5", Linf(0.1)])
        (True, [L2(radius=0.5), Linf(radius=0.1)])
    """
    if eps and balls:
        raise Conflict("the size of changes", "eps and ball", "one of both", "write --eps 8/255 as --ball linf:8/255")
    return [Linf(convert(radius, float, "eps")) for radius in eps] or [read_ball(ball) for ball in balls]
