"""Saved as JPEG and opened again."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import final

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.transforms.base import ImagePixels, Transform


@final
@dataclass(frozen=True)
class Jpeg(Transform):
    """Rounded to 8 bits, and compressed by Pillow's JPEG encoder at ``quality`` 1..100; ``none`` changes nothing."""

    quality: int | None
    name = "jpeg"
    channels = (1, 3)
    rungs = (None, 90, 70, 50, 30, 10)

    def __post_init__(self) -> None:
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise HoldfastError(f"quality of jpeg must lie in 1..100, or be none, got {self.quality}")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return pixels if self.quality is None else compressed(pixels, self.quality)


def compressed(pixels: ImagePixels, quality: int) -> ImagePixels:
    """Return images as they are after JPEG compression.

    Raises:
        HoldfastError: they have neither one channel nor three.
    """
    if pixels.shape[1] not in (1, 3):
        raise HoldfastError(f"JPEG holds images of 1 or 3 channels, got {pixels.shape[1]}; use another transform")
    levels = (pixels * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    again = torch.stack([_again(image, quality) for image in levels]) if len(levels) else levels
    return again.to(pixels) / 255


def _again(image: UInt8[Tensor, "channels height width"], quality: int) -> UInt8[Tensor, "channels height width"]:
    from PIL import Image

    values, file = image.permute(1, 2, 0).numpy(), BytesIO()
    Image.fromarray(np.ascontiguousarray(values[:, :, 0] if len(image) == 1 else values)).save(
        file, "JPEG", quality=quality
    )
    return torch.from_numpy(np.array(Image.open(file))).reshape(values.shape).permute(2, 0, 1)
