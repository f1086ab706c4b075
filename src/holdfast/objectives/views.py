"""Deterministic views of images that contrastive objectives compare with: shifts and high frequencies."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.noise import Noise

SHIFT = 0.1
"""The share of an image's size that a view is moved by, at most."""


def shifted(pixels: Pixels, noise: Noise) -> Pixels:
    """Return each image moved by up to ``SHIFT`` of its size, edges repeated; other inputs as they are.

    One shift per sample, drawn from its own stream, so that a view does not depend on the batch.
    """
    if pixels.ndim != 4:
        return pixels
    height, width = pixels.shape[-2:]
    draws = 2 * noise.uniform((2,)) - 1
    down = (draws[:, 0] * max(1, SHIFT * height)).round().long()
    right = (draws[:, 1] * max(1, SHIFT * width)).round().long()
    rows = (torch.arange(height, device=pixels.device) + down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=pixels.device) + right[:, None]).clamp(0, width - 1)
    moved = pixels.gather(2, rows[:, None, :, None].expand_as(pixels))
    return moved.gather(3, columns[:, None, None, :].expand_as(pixels))


def high_pass(pixels: Pixels, radius: float, domain: Domain) -> Pixels:
    """Return the images without frequencies below ``radius`` (a share of the largest), around mid-range, clipped."""
    if pixels.ndim != 4:
        return pixels
    spectrum = torch.fft.fft2(pixels)
    middle = (domain.low + domain.high) / 2
    return domain.clip(torch.fft.ifft2(spectrum * ~low_frequencies(pixels, radius)).real + middle)


def low_frequencies(pixels: Pixels, radius: float) -> Tensor:
    """Return a mask over the spectrum: distance from frequency zero below ``radius`` times the largest on an axis."""
    vertical = torch.fft.fftfreq(pixels.shape[-2], device=pixels.device)
    horizontal = torch.fft.fftfreq(pixels.shape[-1], device=pixels.device)
    return (vertical[:, None].square() + horizontal.square()).sqrt() < radius / 2
