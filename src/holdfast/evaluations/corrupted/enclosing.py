"""The divergence radius: how wide a ball must be to hold the unit codes of one image under a whole family of edits.

    rho(x) = min over c of max over edits t of | f(t(x)) / |f(t(x))| - c |

Liu et al. 2026, https://arxiv.org/abs/2604.14973. Label-free, between 0 and 1, and never smaller for a larger family.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from holdfast.core.points.enclosing_balls import enclosing_balls

TOLERANCE = 1e-7
STEPS = 40
FEW = 8
"""So many points have at most 247 subsets of two or more."""


def divergence_radii(families: Sequence[Float[Tensor, "b _ d"]]) -> Float[Tensor, "b f"]:
    """Return the radius of the smallest ball around each image's unit codes of each family; nan where one has no direction.

    Example:
        >>> apart = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [-3.0, 0.0]]])
        >>> divergence_radii([apart, apart[:, [0, 0, 0]]])
        tensor([[0.7071, 0.0000],
                [1.0000, 0.0000]], dtype=torch.float64)
    """
    most, placed, undefined = max(codes.shape[1] for codes in families), [], []
    for codes in families:
        unit = codes.double() / torch.linalg.vector_norm(codes.double(), dim=2, keepdim=True)
        undefined.append(~unit.isfinite().flatten(1).all(1))
        points = coordinates(unit.masked_fill(undefined[-1][:, None, None], 0))
        lacking = most - codes.shape[1]
        placed.append(pad(points, (0, lacking, 0, lacking)))  # the first point, at the origin, a few more times
    radii = smallest(torch.stack(placed, dim=1).flatten(0, 1))
    return radii.clamp_max(1).unflatten(0, (-1, len(families))).masked_fill(torch.stack(undefined, dim=1), torch.nan)


def smallest(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
    """Return the radius of the smallest ball around each set of points, up to ``TOLERANCE``."""
    balls = enclosing_balls(points, TOLERANCE, STEPS)
    slow = balls.radii > balls.least * (1 + TOLERANCE)
    if slow.any():  # few sets need many steps, thousands of them
        exact = (
            circumscribed(points[slow]) if points.shape[1] <= FEW else enclosing_balls(points[slow], TOLERANCE).radii
        )
        balls.radii[slow] = exact.minimum(balls.radii[slow])
    return balls.radii


def circumscribed(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
    """Return the radius of the smallest ball around each set of few points, all subsets tried.

    The smallest ball is centred in the plane of those points that lie on its surface. From whatever centre, the distance of
    the farthest point is the radius of a ball around all; so centres of subsets without one (points on a line) do no harm.

    Example:
        >>> circumscribed(torch.tensor([[[0.0, 0.0], [2.0, 0.0], [1.0, 0.5], [1.0, -0.9]]]))
        tensor([1.])
    """
    radii = [torch.full_like(points[:, 0, 0], torch.inf)]
    for size in range(2, points.shape[1] + 1):
        corners = points[:, torch.tensor([*combinations(range(points.shape[1]), size)], device=points.device)]
        sides = corners[:, :, 1:] - corners[:, :, :1]
        squares = sides @ sides.mT
        halves = squares.diagonal(dim1=2, dim2=3)[..., None] / 2
        centres = corners[:, :, 0] + (torch.linalg.solve_ex(squares, halves).result.mT @ sides)[:, :, 0]
        farthest = (points[:, None] - centres[:, :, None]).square().sum(3).amax(2).sqrt()
        radii.append(farthest.nan_to_num(nan=torch.inf).amin(1))
    return torch.stack(radii).amin(0)


def coordinates(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b n m"]:
    """Return points as far apart as these, the first at the origin, in the ``n - 1`` dimensions that ``n`` points span.

    Example:
        >>> corner = torch.tensor([[[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
        >>> torch.pdist(coordinates(corner)[0])
        tensor([3.], dtype=torch.float64)
    """
    sides = points[:, 1:] - points[:, :1]
    squares, axes = torch.linalg.eigh(sides @ sides.mT)
    placed = axes * squares.clamp_min(0).sqrt()[:, None]
    return torch.cat([torch.zeros_like(placed[:, :1]), placed], dim=1)
