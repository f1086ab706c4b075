"""The divergence radius: how wide a ball must be to hold the unit codes of one image under a whole family of edits.

    rho(x) = min over c of max over edits t of | f(t(x)) / |f(t(x))| - c |

Liu et al. 2026, https://arxiv.org/abs/2604.14973. Label-free, between 0 and 1, and never smaller for a larger family.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.enclosing_balls import enclosing_balls

TOLERANCE = 1e-5


def divergence_radius(codes: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
    """Return the radius of the smallest ball around each image's ``n`` unit codes; nan where one has no direction.

    Example:
        >>> divergence_radius(torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [-3.0, 0.0]]]))
        tensor([0.7071, 1.0000], dtype=torch.float64)
    """
    unit = codes.double() / torch.linalg.vector_norm(codes.double(), dim=2, keepdim=True)
    undefined = ~unit.isfinite().flatten(1).all(1)
    radii = enclosing_balls(coordinates(unit.masked_fill(undefined[:, None, None], 0)), TOLERANCE).radii
    return radii.clamp_max(1).masked_fill(undefined, torch.nan)


def coordinates(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b n m"]:
    """Return points as far apart as these, in the ``n - 1`` dimensions that ``n`` points span: a few instead of hundreds.

    Example:
        >>> corner = torch.tensor([[[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
        >>> torch.pdist(coordinates(corner)[0])
        tensor([3.], dtype=torch.float64)
    """
    sides = points[:, 1:] - points[:, :1]
    squares, axes = torch.linalg.eigh(sides @ sides.mT)
    placed = axes * squares.clamp_min(0).sqrt()[:, None]
    return torch.cat([torch.zeros_like(placed[:, :1]), placed], dim=1)
