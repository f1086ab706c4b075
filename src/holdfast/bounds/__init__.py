"""Certified bounds: what no perturbation in a ball can do to a code. Sound in real arithmetic; see ``lower_bound``."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.balls import Ball
from holdfast.bounds.method import Crown, Interval, Method
from holdfast.bounds.region import region
from holdfast.bounds.trace import trace
from holdfast.encoder import Encoder, Pixels
from holdfast.errors import HoldfastError

__all__ = ["Crown", "Interval", "Method", "lower_bound"]


def lower_bound(
    encoder: Encoder,
    pixels: Pixels,
    rows: Float[Tensor, "b s d"],
    ball: Ball,
    method: Method | None = None,
) -> Float[Tensor, "b s"]:
    """Return for each image and row ``w`` a number below ``w . f(x)`` for every ``x`` in the ball and the domain.

    Computed in the precision of ``rows``: float64 for the last word. It is sound in real arithmetic, that is, up to
    the rounding of the bound itself. Where nothing is known it is minus infinity.

    Args:
        encoder: built of operations that can be bounded; others are refused by name.
        pixels: images, in the encoder's domain.
        rows: linear functions of the code, (b, s, d).
        ball: allowed perturbations, intersected with the domain.
        method: how hard to try; CROWN by default.

    Example:
        >>> from holdfast.balls import Linf
        >>> from holdfast.encoders import load
        >>> encoder = load("builtin:digits-robust")
        >>> x = torch.full((1, 1, 8, 8), 0.5)
        >>> code = encoder(x)[:, None].double()
        >>> clean = (code * code).sum()
        >>> bool(lower_bound(encoder, x, code, Linf(0.01)) < clean)
        True
    """
    encoder.domain.check(pixels)
    if rows.ndim != 3 or len(rows) != len(pixels):
        raise HoldfastError(f"rows must have shape ({len(pixels)}, s, d), got {tuple(rows.shape)}")
    graph = trace(encoder, rows.dtype, rows.device)
    d = graph.nodes[-1].shape[-1]
    if rows.shape[2] != d:
        raise HoldfastError(f"rows must have {d} columns, one for each feature of {encoder.name}, got {rows.shape[2]}")
    x = pixels.to(rows)
    eps = torch.full((len(x),), ball.radius, dtype=rows.dtype, device=rows.device)
    found = (method or Crown())(graph, region(x, type(ball), eps, encoder.domain), rows)
    return torch.where(found.isfinite(), found, -torch.inf)
