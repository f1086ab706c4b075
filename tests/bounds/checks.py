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


def attacked(encoder: Encoder, x: Tensor, row: Tensor, ball: Ball, steps: int = 40) -> Tensor:
    """The point of the ball at which steepest descent finds ``row . code`` lowest, from eight starts."""
    moved = points(encoder, x, ball, 8)
    best, least = moved, torch.full((8,), torch.inf, dtype=x.dtype)
    for step in range(steps):
        moved = moved.detach().requires_grad_()
        value = encoder.forward(moved) @ row
        best = torch.where((value < least).reshape(-1, 1, 1, 1), moved.detach(), best)
        least = torch.minimum(least, value.detach())
        (slope,) = torch.autograd.grad(value.sum(), moved)
        stride = ball.radius * max(0.02, 0.5 * (1 - step / steps))
        delta = ball.project(moved.detach() - stride * ball.steepest(slope) - x)
        moved = encoder.domain.clip(x + delta)
    return best


def lowest(encoder: Encoder, x: Tensor, specifications: Tensor, ball: Ball, count: int = 1000) -> Tensor:
    """The least value of each row (s, d) that sampling and attacks find: (s,), at or above any sound bound."""
    values = encoder.forward(points(encoder, x, ball, count)) @ specifications.T
    found = [encoder.forward(attacked(encoder, x, row, ball)) @ row for row in specifications]
    return torch.minimum(values.amin(0), torch.stack(found).amin(1)).detach()
