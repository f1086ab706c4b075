"""Networks with hidden counterexamples: one input in the ball refutes, and neither gradients nor luck lead there.

Zhou et al. 2025 (SoundnessBench, https://arxiv.org/abs/2412.03154) train such networks; these are built. The output is a
linear margin, positive in the whole ball, minus ``height * relu(1 - sharpness * |x - secret|_1)``: a spike that is zero,
and flat, everywhere but very close to the secret.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.noise import Noise

SHAPE = (1, 2, 3)
BALL = Linf(0.1)


class Spiked(nn.Module):
    """A margin with a spike at ``secret``; without it at ``height`` zero."""

    def __init__(self, secret: Tensor, weights: Tensor, height: float, sharpness: float = 200.0) -> None:
        super().__init__()
        n = secret.numel()
        self.sides = nn.Linear(n, 2 * n)  # relu(x - secret) and relu(secret - x), whose sum is |x - secret|
        self.spike = nn.Linear(2 * n, 1)
        self.margin = nn.Linear(n, 1)
        eye = torch.eye(n)
        self.sides.weight.data = torch.cat([eye, -eye])
        self.sides.bias.data = torch.cat([-secret, secret])
        self.spike.weight.data = torch.full((1, 2 * n), -sharpness)
        self.spike.bias.data = torch.ones(1)
        self.margin.weight.data = weights[None]
        self.margin.bias.data = (1 - weights.sum() / 2).reshape(1)
        self.height = nn.Parameter(torch.tensor([[height]]))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        spike = torch.relu(self.spike(torch.relu(self.sides(x))))
        return self.margin(x) - nn.functional.linear(spike, self.height)


@dataclass(frozen=True)
class Hidden:
    """A network of one output, an image, and the input in the ball around it whose output is negative."""

    encoder: Encoder
    harmless: Encoder
    """The same without the spike."""
    image: Tensor
    secret: Tensor


def hidden(seed: int) -> Hidden:
    """Return one of the networks."""
    noise = Noise.of(seed, ["network"])
    image = torch.full((1, *SHAPE), 0.5)
    offset = 0.09 * (2 * noise.fork("secret").uniform(SHAPE) - 1)
    secret = image + offset
    weights = (2 * noise.fork("weights").uniform((6,))[0] - 1) / 2
    encoder, harmless = (
        Encoder(Spiked(secret.flatten(), weights, height), name, Domain(SHAPE))
        for name, height in (("hidden", 3.0), ("harmless", 0.0))
    )
    return Hidden(encoder, harmless, image, secret)
