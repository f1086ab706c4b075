"""Random changes of place: flips, crops, resized crops and affine maps."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, radians
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from holdfast.core.errors import Conflict, HoldfastError, check_known
from holdfast.core.noise import Noise
from holdfast.transforms.augmentations.colour import sometimes
from holdfast.transforms.base import ImagePixels, Transform
from holdfast.transforms.filters import centred, sampled


@final
@dataclass(frozen=True)
class HorizontalFlip(Transform):
    """Mirrored left to right with probability ``p``."""

    p: float = 0.5
    """Probability that an image is mirrored."""
    name = "horizontal-flip"
    allowed = ("p in [0, 1]",)
    draws = True

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return sometimes(pixels, noise.uniform(()) < self.p, lambda some, _: some.flip(-1))


@final
@dataclass(frozen=True)
class RandomAffine(Transform):
    """Random rotation, scaling and shift.

    About the middle, bilinear, with black around the image. The defaults are those of the built-in digit encoders.
    """

    degrees: float = 15.0
    """Largest rotation, in degrees."""
    scale: float = 0.15
    """Largest relative change of scale."""
    translate: float = 0.0625
    """Largest shift, as a fraction of each side."""
    name = "random-affine"
    allowed = ("degrees in [0, 180]", "scale in [0, 1)", "translate in [0, 1]")
    draws = True

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        height, width = pixels.shape[-2:]
        limits = [radians(self.degrees), self.scale, self.translate * height, self.translate * width]
        draws = (2 * noise.uniform((4,), torch.float64) - 1) * torch.tensor(limits, device=pixels.device)
        return moved(pixels, draws[:, 0], 1 + draws[:, 1], draws[:, 2:])


def moved(
    pixels: ImagePixels, angles: Float[Tensor, "b"], scales: Float[Tensor, "b"], shifts: Float[Tensor, "b 2"]
) -> ImagePixels:
    """Rotate and scale images about the middle, then shift them.

    Args:
        angles: Clockwise rotation of each image in radians, shape (b,).
        shifts: Shift of each image in pixels (down, right), shape (b, 2).
    """
    rows, columns = (axis.to(pixels) for axis in centred(pixels))
    down, across = shifts.T[..., None, None].to(pixels)
    rows, columns = rows - down, columns - across
    cosine, sine = ((side / scales)[:, None, None].to(pixels) for side in (angles.cos(), angles.sin()))
    height, width = pixels.shape[-2:]
    at = cosine * rows - sine * columns + (height - 1) / 2, cosine * columns + sine * rows + (width - 1) / 2
    return sampled(pixels, *at, beyond="zeros")


PADDING_MODES = {"zeros": "constant", "reflect": "reflect"}


@final
@dataclass(frozen=True)
class RandomCrop(Transform):
    """Pad the image, then crop it at a random place.

    Paper: residual networks on CIFAR (He et al. 2016, section 4.2).
    """

    padding: int = 4
    """Pixels added at each side before the crop."""
    padding_mode: str = "zeros"
    """Content of these pixels: `zeros` or `reflect`."""
    name = "random-crop"
    allowed = ("padding in [1, inf)",)
    draws = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("random-crop: padding_mode", self.padding_mode, PADDING_MODES)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        height, width = pixels.shape[-2:]
        if self.padding_mode == "reflect" and self.padding >= min(height, width):
            raise HoldfastError(
                f"{self} reflects {self.padding} pixels, which images of {height} x {width} do not have; "
                "choose a smaller padding or padding_mode=zeros"
            )
        padded = functional.pad(pixels, 4 * [self.padding], PADDING_MODES[self.padding_mode])
        down, across = (noise.uniform((2,)) * (2 * self.padding + 1)).long().T
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view of every place
        return windows[torch.arange(len(pixels), device=pixels.device), :, down, across]


# A random part of the image enlarged to its size (Szegedy et al. 2015, https://arxiv.org/abs/1409.4842).
#
# Area and aspect ratio are drawn up to ten times until the crop fits into the image; else it is as much of the middle
# as the ratio allows. The crop is never larger than the image, so nothing shrinks and no antialiasing is needed.

TRIES = 10


@final
@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Random crop, enlarged to the size of the image.

    The area is uniform, the aspect ratio uniform in its logarithm. Whole pixels are cut out, and enlarging is bilinear.
    """

    scale_min: float = 0.08
    """Smallest crop, as a fraction of the image's area."""
    scale_max: float = 1.0
    """Largest crop, as a fraction of the image's area."""
    ratio: float = 4 / 3
    """Largest ratio of width to height, or height to width; at least 1."""
    name = "random-resized-crop"
    allowed = ("scale_min in (0, 1]", "scale_max in (0, 1]", "ratio in [1, inf)")
    draws = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_min > self.scale_max:
            got = f"scale_min={self.scale_min} and scale_max={self.scale_max}"
            raise Conflict("random-resized-crop", got, "them in order")

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return resized_crops(pixels, self.boxes(noise, *pixels.shape[-2:]))

    def boxes(self, noise: Noise, height: int, width: int) -> Float[Tensor, "b 4"]:
        """Crop of each image.

        Returns:
            Top, left, height and width in whole pixels, shape (b, 4).
        """
        return self.boxes_of(self.drawn(noise), height, width)

    def drawn(self, noise: Noise) -> Float[Tensor, "b draws"]:
        """Return what is drawn for each image, whatever its size."""
        return noise.uniform((2 * TRIES + 2,), torch.float64)

    def boxes_of(self, draws: Float[Tensor, "b draws"], height: int, width: int) -> Float[Tensor, "b 4"]:
        """Return the crops that ``draws`` mean for images of this size."""
        area = height * width * (self.scale_min + (self.scale_max - self.scale_min) * draws[:, :TRIES])
        ratio = torch.exp(log(self.ratio) * (2 * draws[:, TRIES:-2] - 1))
        shapes = torch.stack([(area / ratio).sqrt().round(), (area * ratio).sqrt().round()], -1)
        fits = ((shapes >= 1) & (shapes <= shapes.new_tensor([height, width]))).all(-1)
        # The last resort counts as one more try, which always fits.
        resort = [min(height, round(width * self.ratio)), min(width, round(height * self.ratio))]
        shapes = torch.cat([shapes, shapes.new_tensor(resort).expand(len(shapes), 1, 2)], 1)
        first = torch.cat([fits, fits.new_ones(len(fits), 1)], 1).int().argmax(1)
        size = shapes[torch.arange(len(shapes), device=shapes.device), first]
        room = size.new_tensor([height, width]) - size
        middle = (first == TRIES)[:, None]
        return torch.cat([torch.where(middle, room / 2, draws[:, -2:] * (room + 1)).floor(), size], 1)


def resized_crops(pixels: ImagePixels, boxes: Float[Tensor, "b 4"]) -> ImagePixels:
    """Enlarge a crop of each image to the size of the image.

    Args:
        boxes: Top, left, height and width of each crop in pixels, shape (b, 4).
    """
    rows, columns = (
        _places(boxes[:, axis, None], boxes[:, axis + 2, None], side) for axis, side in enumerate(pixels.shape[-2:])
    )
    return sampled(pixels, rows[:, :, None], columns[:, None])


def _places(start: Tensor, length: Tensor, side: int) -> Float[Tensor, "b side"]:
    """Return where to read along one axis; beyond the crop's outermost pixels there is nothing of the crop."""
    centres = (torch.arange(side, dtype=start.dtype, device=start.device) + 0.5) * length / side - 0.5
    return start + torch.minimum(centres.clamp(min=0), length - 1)
