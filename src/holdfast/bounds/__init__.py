"""Certified bounds: what no perturbation in a ball can do to a code. Sound in real arithmetic; see ``lower_bound``."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.methods.alpha import Alpha
from holdfast.bounds.methods.base import Crown, Interval, Method
from holdfast.bounds.methods.branch import Branch
from holdfast.bounds.methods.exact import Exact
from holdfast.bounds.methods.semidefinite import Semidefinite
from holdfast.bounds.network.graph import Graph
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.proved import LEAST, known, proved_radii
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.settings import read

__all__ = [
    "METHODS",
    "Alpha",
    "Branch",
    "Crown",
    "Exact",
    "Interval",
    "Method",
    "Semidefinite",
    "certified_radius",
    "lower_bound",
    "read_method",
]

METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Interval, Crown, Alpha, Branch, Semidefinite, Exact)}


def read_method(text: str) -> Method:
    """Return the way to bound that ``text`` spells.

    Example:
        >>> read_method("alpha:steps=100")
        Alpha(steps=100, inner=20, rate=0.25)
    """
    return read(text, METHODS, "method")


def lower_bound(
    encoder: Encoder,
    pixels: Pixels,
    rows: Float[Tensor, "b s d"],
    ball: Ball,
    method: Method | str = "crown",
) -> Float[Tensor, "b s"]:
    """Return for each image and row ``w`` a number below ``w . f(x)`` for every ``x`` in the ball and the domain.

    Computed in the precision of ``rows``: float64 for the last word. It is sound in real arithmetic, that is, up to
    the rounding of the bound itself. Where nothing is known it is minus infinity.

    Args:
        encoder: built of operations that can be bounded; others are refused by name.
        pixels: images, in the encoder's domain.
        rows: linear functions of the code, (b, s, d).
        ball: allowed perturbations, intersected with the domain.
        method: how hard to try, or its text form, as in ``"alpha:steps=100"``.

    Raises:
        HoldfastError: an argument does not fit, or the encoder cannot be bounded.

    Example:
        >>> from holdfast.core.balls import Linf
        >>> from holdfast.encoders import load
        >>> encoder = load("builtin:digits-robust")
        >>> x = torch.full((1, 1, 8, 8), 0.5)
        >>> code = encoder(x)[:, None].double()
        >>> clean = (code * code).sum()
        >>> bool(lower_bound(encoder, x, code, Linf(0.01)) < clean)
        True
    """
    x, graph, method = _ready(encoder, pixels, rows, ball, method)
    eps = torch.full((len(x),), ball.radius, dtype=rows.dtype, device=rows.device)
    return known(method(graph, region(x, type(ball), eps, encoder.domain), rows))


def certified_radius(
    encoder: Encoder,
    pixels: Pixels,
    rows: Float[Tensor, "b s d"],
    ball: Ball,
    method: Method | str = "crown",
    tolerance: float = 1e-4,
) -> Float[Tensor, "b s"]:
    """Return for each image and row ``w`` the largest radius found at which ``w . f(x)`` is proved positive.

    It is 0 where the row is not positive at the image itself. All rows of an image share the work; a radius without a
    proof was seen at most ``tolerance`` above each result. Some are proved with what CROWN knows of inner layers in a
    ball larger by up to ``tolerance``. Arguments are those of ``lower_bound``; ``ball`` is the largest of interest.

    Example:
        >>> from holdfast.core.balls import Linf
        >>> from holdfast.encoders import load
        >>> encoder = load("builtin:digits-robust")
        >>> x = torch.full((1, 1, 8, 8), 0.5)
        >>> radius = certified_radius(encoder, x, encoder(x)[:, None].double(), Linf(0.5))
        >>> bool(lower_bound(encoder, x, encoder(x)[:, None].double(), Linf(radius.item())) > 0)
        True
    """
    x, graph, method = _ready(encoder, pixels, rows, ball, method)
    if not tolerance > 0:
        raise HoldfastError(f"tolerance must be a positive radius, as in 1e-4, got {tolerance:g}")
    most = torch.full((len(x),), ball.radius, dtype=rows.dtype, device=rows.device)
    share = min(1.0, max(LEAST, tolerance / ball.radius))
    return proved_radii(method, graph, x, rows, type(ball), encoder.domain, most, share).radii


def _ready(
    encoder: Encoder, pixels: Pixels, rows: Float[Tensor, "b s d"], ball: Ball, method: Method | str
) -> tuple[Pixels, Graph, Method]:
    """Return the images in the rows' precision, the encoder's graph and the method, after checking that all fit."""
    if not isinstance(encoder, Encoder):
        raise HoldfastError(f"an Encoder can be bounded, got {type(encoder).__name__}; wrap the module in one")
    if not isinstance(ball, Ball):
        raise HoldfastError(f"a ball is needed, as in Linf(8 / 255), got {ball!r}")
    encoder.domain.check(pixels)
    if rows.ndim != 3 or len(rows) != len(pixels) or not rows.numel():
        raise HoldfastError(f"rows must have shape ({len(pixels)}, s, d) with no axis empty, got {tuple(rows.shape)}")
    if not rows.isfinite().all():
        raise HoldfastError("rows must be finite, got nan or infinite entries")
    graph = trace(encoder, rows.dtype, rows.device)
    d = graph.nodes[-1].shape[-1]
    if rows.shape[2] != d:
        raise HoldfastError(f"rows must have {d} columns, one for each feature of {encoder.name}, got {rows.shape[2]}")
    return pixels.to(rows), graph, read_method(method) if isinstance(method, str) else method
