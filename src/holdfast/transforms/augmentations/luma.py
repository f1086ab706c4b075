"""How bright a pixel is: ITU-R BT.601's weights of red, green and blue, as in every image library."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.transforms.base import ImagePixels

WEIGHTS = {1: (1.0,), 3: (0.299, 0.587, 0.114)}


def weights(pixels: ImagePixels) -> Float[Tensor, "channels"]:
    """Return the weight of each channel; that of a gray image is 1.

    Raises:
        HoldfastError: the images are neither gray nor RGB.
    """
    channels = pixels.shape[1]
    if channels not in WEIGHTS:
        raise HoldfastError(f"augmentations of colour take gray (1 channel) or RGB (3) images, got {channels} channels")
    return torch.tensor(WEIGHTS[channels]).to(pixels)


def luma(pixels: ImagePixels) -> Float[Tensor, "b 1 height width"]:
    """Return the gray images."""
    return (weights(pixels) @ pixels.flatten(2)).reshape(len(pixels), 1, *pixels.shape[-2:])
