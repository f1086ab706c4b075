"""From a decoded picture to an encoder's pixels: resize and crop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Shaped, UInt8

from holdfast.core.errors import HoldfastError, check_known

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

ELONGATED = 16
"""Ratio of the longer to the shorter side above which a picture's ends, which no centre crop shows, are cut off first."""


class Preprocessing(ABC):
    """How a picture of any size becomes an encoder's pixels.

    Implementations are frozen, compare by their settings and can be pickled: they are part of an encoder's fingerprint.
    """

    crop: tuple[int, int]
    """Height and width of the result, in pixels."""
    floats: bool = False
    """True if the result is float32 in [0, 1]; else it is bytes."""

    @abstractmethod
    def __call__(self, image: Image.Image) -> Shaped[np.ndarray, "rows columns c"]:
        """Return the pixels of an upright, opaque picture in mode L (c = 1) or RGB (c = 3)."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The steps, as reports state them."""


@dataclass(frozen=True)
class Geometry(Preprocessing):
    """Resize a picture, then crop its centre.

    Args:
        resize: New length of the shorter side in pixels (proportions stay), or new (height, width).
        crop: Height and width of the centre to keep, in pixels.
        interpolation: Pillow's filter: nearest, bilinear, bicubic or lanczos. All except nearest smooth when they
            shrink.

    Raises:
        HoldfastError: A size is no positive whole number, the crop exceeds a given (height, width), or the filter is
            unknown.

    Example:
        >>> Geometry(256, (224, 224)).words, Geometry((224, 224), (224, 224), "bicubic").words
        ('shorter side to 256, centre 224 x 224, bilinear', 'squashed to 224 x 224, bicubic')
    """

    resize: int | tuple[int, int]
    """New length of the shorter side in pixels, or new (height, width)."""
    crop: tuple[int, int]
    """Height and width of the centre to keep, in pixels."""
    interpolation: Interpolation = "bilinear"
    """Filter of Pillow: nearest, bilinear, bicubic or lanczos."""

    def __post_init__(self) -> None:
        resize = self.resize if isinstance(self.resize, tuple) else (self.resize,)
        if not (are_sizes(resize) and len(resize) <= 2 and are_sizes(self.crop) and len(self.crop) == 2):
            raise HoldfastError(
                f"geometry needs a size and (height, width), as in Geometry(256, (224, 224)), got {self.resize!r} and "
                f"{self.crop!r}"
            )
        if len(resize) == 2 and (resize[0] < self.crop[0] or resize[1] < self.crop[1]):
            raise HoldfastError(f"geometry cannot crop {self.crop} from a picture squashed to {resize}; crop less")
        check_known("interpolation", self.interpolation, get_args(Interpolation))

    def __call__(self, image: Image.Image) -> UInt8[np.ndarray, "rows columns c"]:
        return np.asarray(self.fit(image)).reshape(*self.crop, -1)

    def fit(self, image: Image.Image) -> Image.Image:
        """Return ``image``, of any mode, resized and cropped.

        Sizes and corners are rounded as torchvision rounds them, so that its recipes are followed to the pixel. A picture
        too elongated to fill the crop is enlarged until it does, where torchvision would frame it in black.
        """
        from PIL.Image import Resampling

        rows, columns = self.crop
        if isinstance(self.resize, tuple):
            height, width = self.resize
        else:
            # Enlarging all of a line of pixels would fill the memory.
            most = ELONGATED * min(image.size)
            x, y = (max(0, side - most) // 2 for side in image.size)
            image = image.crop((x, y, image.width - x, image.height - y)) if x or y else image
            sides = [int(self.resize * side / min(image.size)) for side in image.size]
            enlarge = max(1.0, columns / sides[0], rows / sides[1])
            width, height = (
                max(round(side * enlarge), least) for side, least in zip(sides, (columns, rows), strict=True)
            )
        resized = image.resize((width, height), Resampling[self.interpolation.upper()])
        left, top = round((width - columns) / 2), round((height - rows) / 2)
        return resized.crop((left, top, left + columns, top + rows))

    @property
    def words(self) -> str:
        if isinstance(self.resize, int):
            return f"shorter side to {self.resize}, centre {sizes(self.crop)}, {self.interpolation}"
        centre = "" if self.resize == self.crop else f", centre {sizes(self.crop)}"
        return f"squashed to {sizes(self.resize)}{centre}, {self.interpolation}"


def sizes(shape: tuple[int, ...]) -> str:
    """Return ``shape`` as reports state it.

    Example:
        >>> sizes((3, 224, 224))
        '3 x 224 x 224'
    """
    return " x ".join(map(str, shape))


def are_sizes(values: Any) -> bool:
    """True if ``values`` are positive whole numbers in a tuple."""
    return isinstance(values, tuple) and all(isinstance(value, Integral) and int(value) > 0 for value in values)
