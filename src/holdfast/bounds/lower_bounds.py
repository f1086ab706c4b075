"""Certified lower bounds of linear functions of an embedding over a ball; start with ``lower_bound``."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.certified_search import SMALLEST_TOLERANCE, search_radii
from holdfast.bounds.methods.base import Method, read_method, vacuous_unless_finite
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.tracing import EXACT, precision_of, trace
from holdfast.bounds.regions import region
from holdfast.bounds.rounding.arithmetic import rigorous
from holdfast.bounds.rounding.executed import executed_encoder, executes
from holdfast.core.balls import Ball
from holdfast.core.checks import check_dense
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import Described, HoldfastError, OutOfRange

__all__ = ["Method", "certified_radius", "lower_bound", "read_method"]


def lower_bound(
    encoder: Encoder,
    pixels: Pixels,
    specifications: Float[Tensor, "b s d"],
    ball: Ball,
    method: Method | str = "crown",
    arithmetic: str = "real",
) -> Float[Tensor, "b s"]:
    """Return lower bounds of ``w . f(x)`` over all ``x`` in the ball and the domain.

    Bounds have the precision of ``specifications`` (pass float64 for tight ones) and account for their own rounding. A
    bound of minus infinity proves nothing.

    Args:
        encoder: its operations must have bounds; others are refused by name.
        pixels: images (b, *pixels), in the encoder's domain.
        specifications: linear functions ``w`` of the embedding, (b, s, d).
        ball: perturbation set, intersected with the domain.
        method: bounding method or its text form, as in ``"alpha:steps=100"``.
        arithmetic: ``"real"`` for exact arithmetic, or ``"executed"`` for floating-point arithmetic in the encoder's own
            precision (``bounds.rounding``). Half precision is always ``"executed"``.

    Returns:
        Lower bounds, (b, s).

    Raises:
        HoldfastError: an argument does not fit, or the encoder cannot be bounded.

    Example:
        >>> from holdfast.core.balls import Linf
        >>> from holdfast.encoders.by_name import load
        >>> encoder = load("builtin:digits-robust")
        >>> x = torch.full((1, 1, 8, 8), 0.5)
        >>> code = encoder(x)[:, None].double()
        >>> clean = (code * code).sum()
        >>> bool(lower_bound(encoder, x, code, Linf(0.01)) < clean)
        True
    """
    x, graph, method = _prepare(encoder, pixels, specifications, ball, method, arithmetic)
    around = region(x, type(ball), x.new_full((len(x),), ball.radius), encoder.domain, inputs=graph.inputs)
    return vacuous_unless_finite(method(graph, around, specifications))


def certified_radius(
    encoder: Encoder,
    pixels: Pixels,
    specifications: Float[Tensor, "b s d"],
    ball: Ball,
    method: Method | str = "crown",
    tolerance: float = 1e-4,
    arithmetic: str = "real",
) -> Float[Tensor, "b s"]:
    """Return the largest radii found at which ``w . f(x)`` is proved positive.

    A radius is 0 if ``w . f(x)`` is not positive at the image itself. At most ``tolerance`` above each result, a proof
    failed. All specifications of an image share the work, and some proofs use the relaxations of a ball larger by up to
    ``tolerance``.

    Args:
        encoder, pixels, specifications: as for ``lower_bound``.
        ball: norm, and the largest radius of interest.
        method: as for ``lower_bound``.
        tolerance: precision of the search.
        arithmetic: as for ``lower_bound``.

    Returns:
        Radii in the norm of ``ball``, (b, s).

    Example:
        >>> from holdfast.core.balls import Linf
        >>> from holdfast.encoders.by_name import load
        >>> encoder = load("builtin:digits-robust")
        >>> x = torch.full((1, 1, 8, 8), 0.5)
        >>> radius = certified_radius(encoder, x, encoder(x)[:, None].double(), Linf(0.5))
        >>> bool(lower_bound(encoder, x, encoder(x)[:, None].double(), Linf(radius.item())) > 0)
        True
    """
    x, graph, method = _prepare(encoder, pixels, specifications, ball, method, arithmetic)
    if not tolerance > 0:
        raise OutOfRange("tolerance", tolerance, "a positive radius, as in 1e-4")
    largest = x.new_full((len(x),), ball.radius)
    share = min(1.0, max(SMALLEST_TOLERANCE, tolerance / ball.radius))
    return search_radii(method, graph, x, specifications, type(ball), encoder.domain, largest, share).radii


def _prepare(
    encoder: Encoder, pixels: Pixels, specifications: Tensor, ball: Ball, method: Method | str, arithmetic: str
) -> tuple[Pixels, Graph, Method]:
    """Check the arguments; return the images in the precision of the specifications, the traced encoder and the method."""
    check_dense(specifications, "specifications")
    if not isinstance(encoder, Encoder):
        raise HoldfastError(f"an Encoder can be bounded, got {type(encoder).__name__}; wrap the module in one")
    if not isinstance(ball, Ball):
        raise HoldfastError(f"a ball is needed, as in Linf(8 / 255), got {ball!r}")
    encoder.domain.check(pixels)
    for name, values in (("pixels", pixels), ("specifications", specifications)):
        if values.dtype not in EXACT:
            raise OutOfRange(
                name,
                values.dtype,
                "in float32 or float64",
                fix=f"convert them, as in {name}.double(): no bound accounts for the rounding of half precision",
            )
    if specifications.ndim != 3 or len(specifications) != len(pixels) or not specifications.numel():
        raise OutOfRange(
            "specifications", tuple(specifications.shape), f"of shape ({len(pixels)}, s, d) with no axis empty"
        )
    if not specifications.isfinite().all():
        raise OutOfRange("specifications", Described("nan or infinite entries"), "finite")
    if executes(arithmetic, precision_of(encoder)):
        if specifications.dtype != torch.float64:
            raise HoldfastError("bounds of encoders as executed are computed in float64; convert the specifications")
        graph = executed_encoder(encoder, precision_of(encoder), specifications.device).graph
    else:
        graph = rigorous(trace(encoder, specifications.dtype, specifications.device))
    d = graph.nodes[-1].shape[-1]
    if specifications.shape[2] != d:
        raise OutOfRange(
            "columns of specifications", specifications.shape[2], f"{d}, one for each feature of {encoder.name}"
        )
    return pixels.to(specifications), graph, read_method(method) if isinstance(method, str) else method
