"""What all transforms are: functions from pixels to pixels, image by image; and several in a row."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.discovery import OldName, OldNames, named_classes
from holdfast.core.errors import HoldfastError, OutOfRange, check_no_blanks
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.settings import TextSettings, read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ImagePixels = Float[Tensor, "b channels height width"]


@dataclass(frozen=True)
class Transform(TextSettings, OldNames):
    """Change images in [0, 1] to images of the same shape in [0, 1], each by itself.

    The fields are the settings. Random draws come from ``noise``, one stream per image. What is drawn once for a whole
    data set, such as a permutation of patches, depends on a setting ``seed``.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Version of the transform; it rises whenever the pixels change."""
    draws: ClassVar[bool] = False
    """True if something is drawn for each image."""
    channels: ClassVar[tuple[int, ...]] = ()
    """Numbers of channels that the transform accepts; empty for any number."""
    severities: ClassVar[tuple[float | None, ...]] = ()
    """Values of the one parameter of a family, from no change to severe; empty if there are no severity levels."""
    rungs, ladder = OldName("severities"), OldName("family")

    @classmethod
    def family(cls) -> tuple[Transform, ...]:
        """Severity levels of the family, from no change to the most severe; empty without levels.

        Example:
            >>> [str(rung) for rung in transforms()["brightness"].family()][:3]
            ['brightness:0.0', 'brightness:0.05', 'brightness:0.1']
        """
        of: Callable[[float | None], Transform] = cls
        return tuple(of(value) for value in cls.severities)

    @classmethod
    def read(cls, text: str) -> Transform:
        """Parse a transform; several with a plus between them run one after the other.

        Example:
            >>> str(Transform.read("gamma:5")), str(Transform.read("jpeg:quality=30 + gamma:0.5"))
            ('gamma:5.0', 'jpeg:30 + gamma:0.5')
        """
        # A plus between digits belongs to a number.
        parts = [read(part.strip(), transforms(), "transform") for part in re.split(r"\+(?!\d)", text)]
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def needs(self, shape: Sequence[int]) -> str | None:
        """Requirement that inputs of ``shape`` do not meet; None if the transform applies.

        Example:
            >>> Transform.read("jpeg:30").needs((13, 64, 64)), Transform.read("gamma:5").needs((13, 64, 64))
            ('images of 1 or 3 channels', None)
        """
        if len(shape) != 3:
            return "images of shape (channels, height, width)"
        if self.channels and shape[0] not in self.channels:
            return f"images of {' or '.join(map(str, self.channels))} channels"
        return None

    @abstractmethod
    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        """Change images; values outside [0, 1] are clipped afterwards.

        Args:
            pixels: Images in [0, 1], shape (b, channels, height, width).
            noise: Random streams, one per image.

        Returns:
            Changed images of the same shape.
        """

    def undone(self, pixels: ImagePixels) -> ImagePixels:
        """Put what belongs to the places of changed images back to those of the original images.

        By default a transform moves nothing.

        Args:
            pixels: Images or maps of the size of the images, shape (b, channels, height, width).
        """
        return pixels

    def __call__(self, pixels: Tensor, noise: Noise) -> ImagePixels:
        """Return the changed images, shape (b, channels, height, width), in [0, 1] and in the precision of ``pixels``.

        Raises:
            HoldfastError: ``pixels`` are no images in [0, 1], or the transform cannot change images of this size.
        """
        if needed := self.needs(pixels.shape[1:]):
            raise HoldfastError(f"{self} needs {needed}, got a batch of shape {tuple(pixels.shape)}. Leave it out.")
        low, high = extent(pixels)
        if not 0 <= low <= high <= 1:  # NaN fails, too
            raise HoldfastError(
                f"{self} changes pixels in [0, 1], got values from {low:g} to {high:g}; pass raw pixels divided by 255"
            )
        return self.applied(pixels, noise)

    def applied(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        """Change images and clip them, without a check that ``pixels`` are images in [0, 1].

        Args:
            pixels: Images in [0, 1], shape (b, channels, height, width).
            noise: Random streams, one per image.

        Returns:
            Changed images in [0, 1], of the same shape.

        Raises:
            HoldfastError: Changed pixels are not finite. This is checked on the CPU only, where it needs no waiting.
        """
        changed = self.change(pixels, noise.fork("transform", self.name))
        assert changed.shape == pixels.shape, f"{self} returned {tuple(changed.shape)} for {tuple(pixels.shape)}"
        if changed.device.type != "cpu":  # each look would wait for the device
            return changed.clamp(0, 1).to(pixels.dtype)
        low, high = extent(changed)
        if not (isfinite(low) and isfinite(high)):
            raise HoldfastError(f"{self} made pixels that are not finite; choose other settings")
        return (changed if 0 <= low <= high <= 1 else changed.clamp(0, 1)).to(pixels.dtype)


def extent(pixels: Tensor) -> tuple[float, float]:
    """Return the least and the greatest value, both NaN if any value is; of nothing, 0 and 1."""
    if not pixels.numel():
        return 0.0, 1.0
    # Each by itself, for aminmax takes longer than both; moved together, for each copy from a GPU waits for its queue.
    low, high = torch.stack([pixels.amin(), pixels.amax()]).tolist()
    return low, high


@final
@dataclass(frozen=True)
class Chain(Transform):
    """Several transforms, one after the other: ``jpeg:30 + gamma:0.5``."""

    parts: tuple[Transform, ...]
    """Transforms in the order in which they run."""
    name = "chain"

    def __post_init__(self) -> None:
        if not self.parts:
            raise OutOfRange("the number of transforms in a chain", 0, "at least 1")

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))

    def needs(self, shape: Sequence[int]) -> str | None:
        return next((needed for part in self.parts if (needed := part.needs(shape))), None)

    def undone(self, pixels: ImagePixels) -> ImagePixels:
        for part in reversed(self.parts):
            pixels = part.undone(pixels)
        return pixels

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        for position, part in enumerate(self.parts):
            pixels = part.applied(pixels, noise.fork(position))
        return pixels


@dataclass(frozen=True)
class View(Transform):
    """Named chain of transforms: how a paper augments an image for training."""

    draws = True

    def __post_init__(self) -> None:
        assert self.chain  # whose parts say what the settings may be

    @property
    @abstractmethod
    def chain(self) -> Chain:
        """The transforms, one after the other."""

    def needs(self, shape: Sequence[int]) -> str | None:
        return self.chain.needs(shape)

    def change(self, pixels: ImagePixels, noise: Noise) -> ImagePixels:
        return self.chain.change(pixels, noise)


def versions(transform: Transform) -> str:
    """Return the text of ``transform`` with the versions of all that it is made of.

    Example:
        >>> versions(Transform.read("gamma:5 + gamma:0.2"))
        'gamma:5.0 v1 + gamma:0.2 v1'
    """
    if isinstance(transform, Chain):
        return " + ".join(map(versions, transform.parts))
    if isinstance(transform, View):
        return f"{transform} v{transform.version} ({versions(transform.chain)})"
    return f"{transform} v{transform.version}"


class TransformedSource:
    """The images of another set, changed as they are read."""

    def __init__(self, images: Images, transform: Transform, seed: int) -> None:
        self.images, self.transform, self.seed = images, transform, seed
        self.skipped: Mapping[str, str] = images.skipped

    def __len__(self) -> int:
        return len(self.images)

    def read(self, rows: Sequence[int]) -> Tensor:
        noise = Noise.of(self.seed, [self.images.ids[row] for row in rows])
        return self.transform(self.images.pixels(rows), noise)

    def digest(self, row: int) -> bytes:
        how = f"{versions(self.transform)} {self.seed} {self.images.ids[row]}"
        return blake2b(self.images.digests[row] + how.encode(), digest_size=16).digest()


def transform_of(named: Transform | str) -> Transform:
    """Return a transform, or the one that a text spells.

    Example:
        >>> str(transform_of("gamma:5"))
        'gamma:5.0'
    """
    transform = Transform.read(named) if isinstance(named, str) else named
    if not isinstance(transform, Transform):
        raise OutOfRange("transform", named, "a Transform or its text, as in 'fog-c:3'")
    return transform


def transformed(images: Images | Tensor, transform: Transform | str, seed: int = 0) -> Images:
    """Change ``images`` lazily: same ids and labels, another fingerprint.

    Args:
        images: Images, or a tensor (n, channels, height, width) in [0, 1].
        transform: Transform or its text.
        seed: Seed of random draws.

    Raises:
        HoldfastError: ``images`` are neither, or the transform does not apply to them.

    Example:
        >>> import torch
        >>> dark = transformed(Images(torch.full((1, 1, 2, 2), 0.5)), "brightness:-0.25")
        >>> float(dark.pixels([0]).max())
        0.25
    """
    check_no_blanks(locals())
    images = Images(images) if isinstance(images, Tensor) else images
    if not isinstance(images, Images):
        raise HoldfastError(
            f"Images are transformed, or a tensor in [0, 1], got {type(images).__name__}; load_images makes Images of a "
            "folder"
        )
    transform = transform_of(transform)
    source, name = TransformedSource(images, transform, seed), f"{images.name} ({transform})"
    return Images(source, images.ids, images.labels, name, images.classes, images.groups)


def transforms() -> dict[str, type[Transform]]:
    """Return every transform by name."""
    import holdfast.transforms as home

    return {name: kind for name, kind in named_classes(home, Transform).items() if kind is not Chain}
