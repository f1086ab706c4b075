"""ReLUs over a ball of their inputs: the constant of a linear bound of many neurons together.

For ``z`` in a box ``[l, u]`` and in a ball ``|z - c| <= r``, any slopes ``g`` and any multiplier ``t > 0``,

    a . relu(z) >= g . z + sum_i m_i(t) - t r^2 / 2,   m_i(t) = min over z_i in [l_i, u_i] of
                                                       a_i relu(z_i) - g_i z_i + t/2 (z_i - c_i)^2.

Proof: ``t/2 (|z - c|^2 - r^2)`` is not positive in the ball, so that adding it to ``a . relu(z) - g . z`` can only lower
that; the sum falls apart into neurons, and a minimum of a sum over a box is the sum of minima. Without the box,

    m_i(t) = t c_i^2 / 2 - min(a_i - g_i - t c_i, g_i + t c_i, 0)^2 / (2 t),

which is the constant of SDP-CROWN (Chiu et al. 2025, https://arxiv.org/abs/2506.06665, theorem 4.1). With the box, the limit
``t -> 0`` is the constant that CROWN has for the same slopes, so that the best ``t`` serves as the tighter of the two or
better. On either side of zero ``m_i`` is the minimum of a parabola over an interval: its vertex, clamped. The sum is concave
in ``t``; its slope, ``(|z - c|^2 - r^2) / 2`` at the minimiser ``z``, falls, and bisection finds where it is zero.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.relaxations.rules import Box

BISECTIONS = 13
SMALLEST = 1e-9
"""The smallest multiplier, as a share of the one at which the ball no longer binds: as good as none."""


def offset(
    a: Float[Tensor, "*f n"],
    g: Float[Tensor, "*f n"],
    box: Box,
    centre: Float[Tensor, "*#f n"],
    radius: Float[Tensor, "*#f"],
    rounding: float = 0.0,
) -> Float[Tensor, "*f"]:
    """Return a lower bound of ``a . relu(z) - g . z`` over the ``z`` in box and ball; minus infinity or nan claims nothing.

    Its gradients by ``a`` and ``g`` are those at the best multiplier.

    Args:
        a, g: coefficients of the outputs, and slopes.
        box: of the inputs.
        centre, radius: of the ball.
        rounding: what rounding may add to the sum, as a share of the sizes of its terms: it is subtracted.
    """
    with torch.no_grad():
        t = best_multiplier(a, g, box, centre, radius)[..., None]
        z = minimiser(a, g, box, centre, t)
    far = (z - centre) * (z - centre)
    total = (a * z.clamp_min(0) - g * z + t / 2 * far).sum(-1) - t[..., 0] / 2 * radius * radius
    with torch.no_grad():
        largest = torch.maximum(box.lower.abs(), box.upper.abs())
        sizes = ((a.abs() + g.abs()) * largest + t * (largest + centre.abs()) ** 2).sum(-1) + t[
            ..., 0
        ] * radius * radius
    return total - rounding * sizes


def best_multiplier(
    a: Float[Tensor, "*f n"],
    g: Float[Tensor, "*f n"],
    box: Box,
    centre: Float[Tensor, "*#f n"],
    radius: Float[Tensor, "*#f"],
) -> Float[Tensor, "*f"]:
    """Return the multiplier that makes the constant largest, or one close to it: every choice is sound."""
    # Where no neuron gains more by moving than the parabola takes, the minimiser lies in the ball.
    steepest = torch.maximum((a - g).abs(), g.abs()).norm(dim=-1)
    least = torch.finfo(a.dtype).eps * (1 + centre.norm(dim=-1))
    high = (2 * steepest / torch.maximum(radius, least)).clamp_min(torch.finfo(a.dtype).tiny ** 0.5)
    low = high * SMALLEST
    for _ in range(BISECTIONS):
        middle = low.sqrt() * high.sqrt()
        outside = (minimiser(a, g, box, centre, middle[..., None]) - centre).norm(dim=-1) > radius
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    return low.sqrt() * high.sqrt()


def minimiser(
    a: Float[Tensor, "*f n"],
    g: Float[Tensor, "*f n"],
    box: Box,
    centre: Float[Tensor, "*#f n"],
    t: Float[Tensor, "*#f 1"],
) -> Float[Tensor, "*f n"]:
    """Return for each neuron where ``a relu(z) - g z + t/2 (z - c)^2`` is smallest in its box."""
    low, high = box
    above, value_above = lowest_point(a - g, low.clamp_min(0), high, centre, t)
    below, value_below = lowest_point(-g, low, high.clamp_max(0), centre, t)
    return torch.where((value_above < value_below) & (high > 0) | (low >= 0), above, below)


def lowest_point(
    slope: Float[Tensor, "*f n"],
    low: Float[Tensor, "*#f n"],
    high: Float[Tensor, "*#f n"],
    centre: Float[Tensor, "*#f n"],
    t: Float[Tensor, "*#f 1"],
) -> tuple[Float[Tensor, "*f n"], Float[Tensor, "*f n"]]:
    """Return where ``slope z + t/2 (z - c)^2`` is smallest between ``low`` and ``high``, and how small it is."""
    z = torch.minimum(torch.maximum(centre - slope / t, low), high)
    return z, slope * z + t / 2 * (z - centre) ** 2
