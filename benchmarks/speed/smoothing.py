"""Smoothing against its floor: the plain forwards of as many noisy copies, and their centre against those."""

from __future__ import annotations

import resource
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.measure import arguments, ratio, seconds
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.builtin import load
from holdfast.measure.population import Population
from holdfast.smoothing.index import Smoothing, central_sample
from holdfast.smoothing.noisy_codes import NoisyCodes

COPIES, SAMPLES = 2000, 10_000
"""How many copies are timed against their forwards, and of how many the centre is found."""
BLOCK = 250


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inside(x))


def encoders() -> list[Encoder]:
    """The built-in network, and a small ResNet of 3 x 32 x 32."""
    torch.manual_seed(0)
    resnet = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *(Residual(16) for _ in range(3)), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    return [load("digits-contrastive"), Encoder(resnet.eval(), "small ResNet", Domain((3, 32, 32)))]


def plain(encoder: Encoder, noisy: Tensor) -> None:
    """The floor: the same number of inputs through the encoder, in blocks, results thrown away."""
    with torch.no_grad():
        for _ in range(COPIES // BLOCK):
            encoder.forward(noisy)


def main() -> None:
    """Print what center smoothing of one image costs beside its forwards, and what finding the centre does."""
    given = arguments(__doc__ or "")
    for encoder in encoders():
        images = Images(torch.rand(2, *encoder.domain.shape, generator=torch.Generator().manual_seed(0)))
        population = Population(encoder, images, RunSettings(device=given.device, batch_size=BLOCK))
        asked = NoisyCodes(Smoothing(0.25, COPIES // 5, COPIES - 2 * (COPIES // 5), 1, 1), (L2Distance(),), ())
        population.learned(asked.smoothing.index)
        noisy = torch.rand(BLOCK, *encoder.domain.shape, device=given.device)
        floor = partial(plain, population.encoder, noisy)
        relative, ours, theirs = ratio(partial(asked.observe, population, [0]), floor, given.device, given.repeats)
        print(f"{encoder.name}: {COPIES} copies {relative:.2f} x their forwards ({ours:.2f} s, {theirs:.2f} s)")
        with torch.no_grad():
            codes = torch.cat([population.encode(torch.rand_like(noisy)) for _ in range(SAMPLES // BLOCK)])
        finding = sorted(seconds(partial(central_sample, codes), given.device) for _ in range(given.repeats))
        share = finding[given.repeats // 2] / (theirs * SAMPLES / COPIES)
        print(f"{encoder.name}: the centre of {SAMPLES} x {codes.shape[1]} takes {share:.3f} x their forwards")
    print(f"largest resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MB")


if __name__ == "__main__":
    main()
