"""Where the embeddings of a ball may lie: hyperplanes between images, and bounds in directions."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.bounds.certified_pairs import CertifiedEncoder, directions
from holdfast.bounds.methods.base import Method, vacuous_unless_finite
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball
from holdfast.core.divergences import Cosine, Divergence, L2Distance, LinfDistance
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError

# The hyperplanes in code space between an image and others: past one, a code is closer to the other image than to its
# own.
#
# Under l2 ``d(z, f(x')) < d(z, f(x))`` means ``n . z < c`` for ``n`` along ``f(x) - f(x')`` and ``c`` the value of
# ``n . z`` half the way between them; under cosine ``n . z < 0`` for ``n`` along ``u(x) - u(x')``, with unit codes
# ``u``.

ALIKE = 1e-6
"""Relative distance of two embeddings that rounding alone may cause."""


@dataclass(frozen=True)
class BisectorHyperplanes:
    """Hyperplanes ``n . z = c`` between ``b`` embeddings and ``m`` others each: unit ``normals`` and ``offsets``."""

    normals: Float[Tensor, "b m d"]
    offsets: Float[Tensor, "b m"]
    defined: Bool[Tensor, "b m"]

    def signed_distances(self, codes: Float[Tensor, "b p d"]) -> Float[Tensor, "b m p"]:
        """Return the distance of ``p`` embeddings from each hyperplane; negative if closer to the other image."""
        return self.normals @ codes.mT - self.offsets[..., None]


def bisector_hyperplanes(divergence: Divergence, anchors: Codes, others: Float[Tensor, "b m d"]) -> BisectorHyperplanes:
    """Return the hyperplanes of equal distance to each of ``anchors`` and ``others``.

    Raises:
        HoldfastError: the divergence has no such hyperplanes.
    """
    if not isinstance(divergence, (L2Distance, Cosine)):
        raise HoldfastError(
            f"under {divergence} the embeddings closer to another image are no half-space, so that none can be certified; "
            "use the divergences l2 and cosine"
        )
    anchors = anchors[:, None]
    if isinstance(divergence, Cosine):
        anchors, others = (codes / codes.norm(dim=2, keepdim=True) for codes in (anchors, others))
    difference = anchors - others
    length = difference.norm(dim=2)
    # A zero code has no direction: its length is nan, and so not above.
    defined = length > ALIKE * torch.maximum(anchors.norm(dim=2), others.norm(dim=2))
    normals = torch.where(defined[..., None], difference / length[..., None], 0.0)
    through_zero = isinstance(divergence, Cosine)
    middle = torch.zeros_like(length) if through_zero else (normals * (anchors + others)).sum(2) / 2
    return BisectorHyperplanes(normals, torch.where(defined, middle, 0.0), defined)


AT_ONCE = 2048
"""Number of specifications bounded together; more take memory and save no time."""


# How far a code can move while its image stays in a ball: from above, by linear bounds in chosen directions.
#
# Take orthonormal axes in pairs. In the plane of a pair, one of ``m`` unit vectors ``v_j`` at equal angles lies within
# ``pi / m`` of any move ``y``, so that ``v_j . y >= |y| cos(pi / m)``. With ``h_j >= v_j . (f(x') - f(x))`` over the
# ball,
#
#     |part of f(x') - f(x) in the plane|  <=  max_j h_j / cos(pi / m),
#
# and the squares of all planes add up. (Single axes, whose box has corners, would give up to 1.4 times as much.) Any
# axes are sound; those along which the code moves most ... least by first order, the left singular vectors of the
# Jacobian, are close to the best. For the cosine the first axis is the clean code's own direction ``u``: with ``u .
# f(x') >= t > 0`` and the rest of ``f(x')`` no longer than ``q``,
#
#     cos(f(x'), f(x)) >= t / sqrt(t^2 + q^2)
#
# Under linf the largest of the bounds along the axes of the code is the bound.

MOST_FEATURES = 5000
"""Largest number of features; the axes of more would take gigabytes per image."""
DIRECTIONS = 12
"""Directions in each plane, an even number: bounds exceed those of infinitely many by at most 3.5 percent."""


@dataclass(frozen=True)
class OutputBounds:
    """Bounds by ``method`` of the movement of embeddings over ``ball``, in float64."""

    certified: CertifiedEncoder
    method: Method
    ball: Ball

    def lower(self, pixels: Pixels, specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
        """Return lower bounds of ``specifications . f(x')`` in the ball around each image; minus infinity if they fail."""
        graph, domain = self.certified.graph, self.certified.encoder.domain
        if not specifications.shape[1]:
            return specifications.sum(2)
        bounds, size = [], max(1, AT_ONCE // specifications.shape[1])
        for x, rows in zip(pixels.split(size), specifications.split(size), strict=True):
            around = region(x, type(self.ball), x.new_full((len(x),), self.ball.radius), domain, inputs=graph.inputs)
            bounds.append(vacuous_unless_finite(self.method(graph, around, rows)))
        return torch.cat(bounds)

    def lower_and_upper(
        self, pixels: Pixels, specifications: Float[Tensor, "b s d"]
    ) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"]]:
        """Return lower and upper bounds of ``specifications . f(x')``."""
        low, high = self.lower(pixels, torch.cat([specifications, -specifications], 1)).chunk(2, 1)
        return low, -high

    def farthest(self, divergence: Divergence, pixels: Pixels) -> Float[Tensor, "b"]:
        """Return upper bounds of ``d(f(x'), f(x))``; infinite if unknown."""
        codes = self._codes(divergence, pixels)
        if isinstance(divergence, LinfDistance):
            low, high = self.lower_and_upper(pixels, units(codes))
            return torch.maximum(high - codes, codes - low).amax(1)
        if isinstance(divergence, L2Distance):
            return self._farthest_within(pixels, codes, principal(self.certified.encoder, pixels))
        return self._farthest_cosine(pixels, codes)

    def nearest(self, divergence: Divergence, pixels: Pixels, targets: Codes) -> Float[Tensor, "b"]:
        """Return lower bounds of ``d(f(x'), target)``, for ``x'`` in the ball around each image; at least 0."""
        codes = self._codes(divergence, pixels)
        if isinstance(divergence, LinfDistance):
            low, high = self.lower_and_upper(pixels, units(codes))
            return torch.maximum(low - targets, targets - high).amax(1).clamp_min(0)
        if isinstance(divergence, L2Distance):
            along = directions(codes - targets)
            return (self._lower(pixels, along) - (along * targets).sum(1)).clamp_min(0)
        return self._nearest_cosine(pixels, codes, directions(targets))

    def _farthest_cosine(self, pixels: Pixels, codes: Codes) -> Float[Tensor, "b"]:
        """Return upper bounds of ``1 - cos`` to the clean embeddings."""
        clean = directions(codes)
        t = self._lower(pixels, clean)
        q = self._farthest_within(pixels, codes, across(clean, principal(self.certified.encoder, pixels)))
        # Codes that may point anywhere are at most opposite: 1 - cos = 2.
        distance = torch.where(t > 0, one_minus_cosine(t, q), 2.0)
        return torch.where(codes.norm(dim=1) > 0, distance.nan_to_num(nan=2.0), torch.nan)

    def _nearest_cosine(self, pixels: Pixels, codes: Codes, to: Codes) -> Float[Tensor, "b"]:
        """Return lower bounds of ``1 - cos`` to the unit embeddings ``to``: ``cos <= t / sqrt(t^2 + q^2)``, as above."""
        rest = codes - (codes * to).sum(1, keepdim=True) * to
        parallel = ~(rest.norm(dim=1) > ALIKE * codes.norm(dim=1))  # what is left of such codes is rounding
        aside = directions(rest)
        aside = directions(aside - (aside * to).sum(1, keepdim=True) * to)
        t = -self._lower(pixels, -to)
        q = self._lower(pixels, aside).clamp_min(0).masked_fill(parallel, 0.0)
        distance = torch.where(t > 0, one_minus_cosine(t, q), 1.0)
        distance = torch.where(t.isinf(), 0.0, distance)
        return torch.where(t.isnan(), torch.nan, distance)

    def _farthest_within(self, pixels: Pixels, codes: Codes, axes: Float[Tensor, "b s d"]) -> Float[Tensor, "b"]:
        """Return upper bounds of the norm of ``f(x') - f(x)`` within the space of ``axes``."""
        if axes.shape[1] % 2:
            axes = torch.cat([axes, torch.zeros_like(axes[:, :1])], 1)
        angles = torch.arange(DIRECTIONS // 2, dtype=axes.dtype, device=axes.device) * (2 * pi / DIRECTIONS)
        first, other = axes[:, 0::2, None], axes[:, 1::2, None]
        specifications = (angles.cos()[:, None] * first + angles.sin()[:, None] * other).flatten(1, 2)
        # Opposite directions are the other half of the circle.
        low, high = self.lower_and_upper(pixels, specifications)
        clean = (specifications @ codes[..., None]).squeeze(2)
        farthest = torch.maximum(high - clean, clean - low).clamp_min(0).unflatten(1, (-1, DIRECTIONS // 2)).amax(2)
        return farthest.norm(dim=1) / cos(pi / DIRECTIONS)

    def _lower(self, pixels: Pixels, direction: Codes) -> Float[Tensor, "b"]:
        """Return lower bounds of ``direction . f(x')`` for each image; nan where the direction is."""
        bounds = self.lower(pixels, direction.nan_to_num()[:, None])[:, 0]
        return torch.where(direction.isnan().any(1), torch.nan, bounds)

    def _codes(self, divergence: Divergence, pixels: Pixels) -> Codes:
        codes, name = self.certified.codes(pixels), self.certified.encoder.name
        if codes.shape[1] > MOST_FEATURES:
            raise HoldfastError(
                f"bounds of moves of embeddings take an axis for each of {codes.shape[1]:,} features of {name}, "
                f"more than the {MOST_FEATURES:,} that fit into memory; measure smaller images, or leave this encoder out"
            )
        if not isinstance(divergence, (LinfDistance, L2Distance, Cosine)):
            raise HoldfastError(
                f"no certificates are known under {divergence}; use the divergences l2, linf and cosine"
            )
        return codes


def one_minus_cosine(t: Float[Tensor, "b"], q: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return ``1 - t / sqrt(t^2 + q^2)`` without cancellation."""
    length = torch.hypot(t, q)
    return torch.where(q.isinf(), 1.0, q * (q / length) / (length + t))


def units(codes: Codes) -> Float[Tensor, "b d d"]:
    """Return the axes of the embedding space, for each embedding."""
    return torch.eye(codes.shape[1], dtype=codes.dtype, device=codes.device).expand(len(codes), -1, -1)


def principal(encoder: Encoder, pixels: Pixels) -> Float[Tensor, "b d d"]:
    """Return orthonormal axes, sorted by the first-order movement of the embedding, largest first."""
    x = pixels.detach().requires_grad_()
    with torch.enable_grad():
        codes = encoder.forward(x)
        slopes = [torch.autograd.grad(codes[:, k].sum(), x, retain_graph=True)[0] for k in range(codes.shape[1])]
    jacobian = torch.stack(slopes, 1).flatten(2)
    return torch.linalg.eigh(jacobian @ jacobian.mT).eigenvectors.mT.flip(1)


def across(clean: Codes, basis: Float[Tensor, "b d d"]) -> Float[Tensor, "b s d"]:
    """Return ``d - 1`` orthonormal axes at right angles to ``clean``, turned from ``basis`` as little as QR does."""
    clean = clean.nan_to_num()
    first = torch.cat([clean[:, None], basis], 1)
    return torch.linalg.qr(first.mT).Q.mT[:, 1:].contiguous()
