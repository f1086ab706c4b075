"""Points of a ball that try to lie below a bound."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Encoder
from holdfast.core.noise import Noise


def points(encoder: Encoder, x: Tensor, ball: Ball, count: int, seed: int = 0) -> Tensor:
    """Random points of the ball around one image ``x`` (1, ...), inside the domain: within, corners, near it."""
    noise = Noise.of(seed, [str(k) for k in range(count)])
    delta = ball.sample(noise, x.shape[1:], x.dtype)
    if isinstance(ball, Linf):
        delta[1::2] = delta[1::2].sign() * ball.radius
    return encoder.domain.clip(x + torch.cat([torch.zeros_like(delta[:1]), delta[1:]]))


def attacked(encoder: Encoder, x: Tensor, rows: Tensor, ball: Ball, steps: int = 40) -> Tensor:
    """The least value of each row (s, d) that steepest descent finds in the ball, from eight starts: (s,)."""
    moved = points(encoder, x, ball, 8).repeat(len(rows), *[1] * (x.ndim - 1))
    rows, least = rows.repeat_interleave(8, 0), torch.full((len(moved),), torch.inf, dtype=x.dtype)
    for step in range(steps):
        moved = moved.detach().requires_grad_()
        value = (encoder.forward(moved) * rows).sum(1)
        least = torch.minimum(least, value.detach())
        (slope,) = torch.autograd.grad(value.sum(), moved)
        stride = ball.radius * max(0.02, 0.5 * (1 - step / steps))
        delta = ball.project(moved.detach() - stride * ball.steepest(slope) - x)
        moved = encoder.domain.clip(x + delta)
    return least.unflatten(0, (-1, 8)).amin(1)


def lowest(encoder: Encoder, x: Tensor, specifications: Tensor, ball: Ball, count: int = 1000) -> Tensor:
    """The least value of each row (s, d) that sampling and attacks find: (s,), at or above any sound bound."""
    values = encoder.forward(points(encoder, x, ball, count)) @ specifications.T
    return torch.minimum(values.amin(0), attacked(encoder, x, specifications, ball)).detach()
