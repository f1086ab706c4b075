"""Resizing and cropping by an encoder's own library, and preprocessing stated in a reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import Conflict, HoldfastError, OutOfRange, warn
from holdfast.core.geometry import Preprocessing, sizes
from holdfast.encoders.loading.inputs import declare_missing_operators, numbers

if TYPE_CHECKING:
    from PIL import Image


# Resizing and cropping by the library that an encoder comes from, and what is left: one affine map for each channel.
#
# The library turns a picture into numbers ``y``. Here it only resizes and crops, in 8 bits: ``x`` in [0, 1]. What is
# left is ``y[c] = (x[order[c]] - mean[c]) / std[c]``, which belongs inside the encoder. The map is read off the
# library's result for pictures of one colour, and then the two sides are compared on pictures of odd sizes.

Result = Shaped[np.ndarray, "c h w"]
Whole = Callable[["Image.Image"], Result]
"""The library's whole preprocessing of one picture."""

PROBED = ((131, 97), (200, 301), (64, 500), (901, 641))
"""Width and height of the pictures on which both sides are compared: smaller and larger than usual inputs, tall and wide."""
SOLID = (96, 96)
TOLERANCE = 0.02
"""Largest difference in grey levels (1/255) that is put down to rounding."""
MOST_PIXELS = 256_000_000
"""Pixels that a picture may have after its shorter side is resized."""
SPELLED = ("size", "crop_size", "resize_size", "input_size", "crop_pct", "crop_mode", "resize_mode")
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""As Pillow numbers them."""


@dataclass(frozen=True)
class LibraryTransform(Preprocessing):
    """Resizing and cropping of a library, as data that can be compared, kept and sent.

    Args:
        library: transformers, timm, open_clip or torchvision.
        kind: the class that does it, as ``module:name``; empty where the library has one.
        settings: its configuration without rescaling and normalisation, as canonical JSON.
        crop: height and width of the result.
        floats: whether the library resizes in floating point, after dividing by 255.
    """

    library: str
    kind: str
    settings: str
    crop: tuple[int, int]
    floats: bool = False

    def __call__(self, image: Image.Image) -> Shaped[np.ndarray, "rows columns c"]:
        # Enlarging all of a line of pixels, of which the crop shows the middle, would fill the memory.
        if max(self.crop) ** 2 * max(image.size) / min(image.size) > MOST_PIXELS:
            raise HoldfastError(f"a picture of {sizes(image.size[::-1])} pixels is too elongated; leave it out")
        pixels = _resizer(self.library, self.kind, self.settings)(image)
        pixels = (_floats if self.floats else _bytes)(pixels, self.library)
        if pixels.shape[:2] != self.crop:
            raise HoldfastError(
                f"{self._who} makes {sizes(pixels.shape[:2])} pixels of a picture of {sizes(image.size[::-1])}, and the "
                f"encoder takes {sizes(self.crop)}; leave the picture out"
            )
        return pixels

    @property
    def words(self) -> str:
        stated = json.loads(self.settings)
        filter_ = stated.get("interpolation") or FILTERS.get(stated.get("resample"), "")
        steps = [f"{key} {_spelled(stated[key])}" for key in SPELLED if stated.get(key) is not None]
        return ", ".join(filter(None, [f"by {self._who}: {sizes(self.crop)}", *steps, filter_]))

    @property
    def _who(self) -> str:
        return " ".join(filter(None, [self.library, self.kind.rpartition(":")[2]]))


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {part}" for key, part in value.items() if part is not None)
    return sizes(tuple(value)) if isinstance(value, list) else str(value)


def stated(settings: dict[str, Any]) -> str:
    """Return ``settings`` as canonical JSON."""
    return json.dumps(settings, sort_keys=True, default=lambda value: getattr(value, "value", value))


# Resizing and cropping of each library.


@cache
def _resizer(library: str, kind: str, settings: str) -> Callable[[Image.Image], Any]:
    declare_missing_operators()
    return LIBRARIES[library](kind, json.loads(settings))


def _bytes(values: Any, library: str) -> UInt8[np.ndarray, "rows columns c"]:
    """Return (c, h, w) ``values`` as 8-bit pixels, rows first."""
    values = np.asarray(values)
    if values.dtype != np.uint8:
        rounded = np.rint(values)
        if not (np.abs(values - rounded) < 1e-3).all() or rounded.min() < 0 or rounded.max() > 255:
            raise HoldfastError(f"{library} resizes or pads in floating point")
        values = rounded.astype(np.uint8)
    return np.ascontiguousarray(values.transpose(1, 2, 0))


def _floats(values: Any, library: str) -> Float[np.ndarray, "rows columns c"]:
    """Return (c, h, w) ``values`` as pixels in [0, 1], rows first; filters of the library overshoot by rounding at most."""
    values = np.asarray(values, dtype=np.float32)
    if values.min() < -1e-6 or values.max() > 1 + 1e-6:
        raise HoldfastError(f"{library} resizes in floating point, beyond the range of pixels")
    return np.ascontiguousarray(values.clip(0, 1).transpose(1, 2, 0))


def _by_transformers(kind: str, settings: dict[str, Any]) -> Callable[[Image.Image], Any]:
    module, _, name = kind.partition(":")
    if module.startswith("transformers_modules."):  # code of a repository, which a new process does not find by itself
        import_module("transformers.dynamic_module_utils").init_hf_modules()
    processor = getattr(import_module(module), name)(**settings)
    return lambda image: pixel_values(processor(image, return_tensors="pt"))


def _by_open_clip(_: str, settings: dict[str, Any]) -> Callable[[Image.Image], Any]:
    transform = import_module("open_clip").transform
    settings |= {"mean": (0, 0, 0), "std": (1, 1, 1)}
    whole = transform.image_transform_v2(transform.PreprocessCfg(**settings), is_train=False)
    return lambda image: whole(image).numpy() * 255


def _by_torchvision(_: str, settings: dict[str, Any]) -> Callable[[Image.Image], Any]:
    transforms = import_module("torchvision.transforms")
    filter_ = transforms.InterpolationMode(settings.pop("interpolation"))
    preset = import_module("torchvision.transforms._presets").ImageClassification
    whole = preset(**settings, interpolation=filter_, mean=(0, 0, 0), std=(1, 1, 1))
    return lambda image: whole(image).numpy() * 255


LIBRARIES = {
    "transformers": _by_transformers,
    "timm": lambda _, settings: import_module("timm.data").create_transform(
        **settings, is_training=False, normalize=False
    ),
    "open_clip": _by_open_clip,
    "torchvision": _by_torchvision,
}


def pixel_values(outputs: Any) -> Result:
    """Return what a processor of transformers made of one picture.

    Raises:
        HoldfastError: it is not one image of rows and columns.
    """
    if "pixel_values" not in outputs:
        raise HoldfastError(f"it returns {', '.join(outputs)} instead of pixel_values")
    values = outputs["pixel_values"]
    if isinstance(values, list | tuple):  # of images that differ in size
        raise HoldfastError(f"it returns {len(values)} images of different sizes")
    if values.ndim != 4 or len(values) != 1:
        raise HoldfastError(f"it makes patches, tiles or frames of a picture, of shape {tuple(values.shape)}")
    return np.asarray(values[0].float() if values.is_floating_point() else values[0])


# What is left between the pixels and the library's result.


@dataclass(frozen=True)
class Recipe:
    """Preprocessing that a network was trained with."""

    geometry: LibraryTransform
    """Resizing and cropping."""
    channels: int
    """Channels of a picture, 1 or 3."""
    mean: tuple[float, ...]
    """Mean per channel, subtracted inside the encoder; none by default."""
    std: tuple[float, ...]
    """Standard deviation per channel, divided by inside the encoder; none by default."""
    order: tuple[int, ...]
    """Channel of the pixels that the network takes at each place."""

    @property
    def domain(self) -> Domain:
        """Domain of the pictures that the network takes."""
        return Domain((self.channels, *self.geometry.crop))

    def encoder(self, module: nn.Module, name: str, **stated: Any) -> Encoder:
        """Return the encoder of ``module``, with what else is ``stated`` of it, for channels in the order of the pixels.

        A ``caution`` is a warning of what is not stated, which the encoder's record then holds.
        """
        if self.order != tuple(range(self.channels)):
            module = Reordered(module, self.order).eval()
        mean, std, geometry = self.mean, self.std, self.geometry
        encoder = Encoder(module, name, self.domain, mean=mean, std=std, geometry=geometry, **stated)
        if encoder.caution:
            warn(encoder.caution, 3)
            if "normalisation" in encoder.caution:
                encoder.normalisation = f"{NOT_STATED} ({encoder.normalisation} is assumed)"
        return encoder


class Reordered(nn.Module):
    """A module that takes its channels in another order, as blue, green, red."""

    def __init__(self, module: nn.Module, order: Sequence[int]) -> None:
        super().__init__()
        self.module, self.order = module, list(order)
        self.train(module.training)

    def extra_repr(self) -> str:
        return f"order={self.order}"

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x[:, self.order])


def recipe(
    name: str,
    library: str,
    kind: str,
    settings: dict[str, Any],
    whole: Whole,
    channels: int,
    numbers: Iterable[float] = (),
    steps: str = "",
    in_floats: dict[str, Any] | None = None,
) -> Recipe:
    """Return the recipe whose pixels, normalised, equal the result of ``whole``, the library's own preprocessing.

    Args:
        name: of the encoder, for errors.
        library, kind, settings: as in ``LibraryTransform``.
        whole: from a picture in mode L or RGB to what the network takes, (c, h, w).
        channels: of a picture, 1 or 3.
        numbers: mean, std and the like as the library states them; measured ones are replaced by them where they agree.
        steps: which steps of the library may be responsible if the two sides differ.
        in_floats: configuration by which it divides by 255 before it resizes, tried where resizing bytes differs.

    Raises:
        HoldfastError: the two sides differ, or the size of the result depends on the picture.
    """
    try:
        pictures = [_picture(size, channels).copy() for size in PROBED]  # a library may write into what it is given
        theirs = [whole(picture) for picture in pictures]
        shapes = {result.shape for result in theirs}
        if len(shapes) > 1:
            raise HoldfastError(
                "its images differ in size: "
                + ", ".join(sorted(f"{sizes(s[1:])}" for s in shapes))
                + "; state one height and width"
            )
        (shape,) = shapes
        if shape[0] != channels:
            raise HoldfastError(f"it makes {shape[0]} channels, and the network takes {channels}")
        order, mean, std = _affine(whole, channels, list(numbers))
        transforms = [LibraryTransform(library, kind, stated(settings), tuple(shape[1:]))]
        if in_floats is not None:
            transforms.append(replace(transforms[0], settings=stated(in_floats), floats=True))
        geometry = _equal(transforms, pictures, theirs, order, mean, std, steps)
    except HoldfastError as error:
        raise HoldfastError(
            f"{name!r} cannot be fed as {' '.join(filter(None, [library, kind.rpartition(':')[2]]))} does: {error}. "
            "Wrap the network yourself: python:package.module:factory"
        ) from error
    # The normalisation acts before the channels are reordered.
    mean, std = (tuple(values[order.index(channel)] for channel in range(channels)) for values in (mean, std))
    return Recipe(geometry, channels, mean, std, order)


Numbers = tuple[float, ...]


def _equal(
    transforms: Sequence[LibraryTransform], pictures: Sequence[Image.Image], theirs: Sequence[Result], *how: Any
) -> LibraryTransform:
    """Return the first transform that gives the library's results; raise the refusal of the first if none does."""
    refusals = list[HoldfastError]()
    for transform in transforms:
        try:
            for picture, result in zip(pictures, theirs, strict=True):
                _compare(transform(picture), result, *how)
        except HoldfastError as refusal:
            refusals.append(refusal)
        else:
            return transform
    raise refusals[0]


def _affine(whole: Whole, channels: int, known: list[float]) -> tuple[tuple[int, ...], Numbers, Numbers]:
    """Return ``order``, ``mean`` and ``std`` of the map from pixels to the results of ``whole``."""
    black = _centre(whole, (0,) * channels)
    basis = [tuple(255 * (channel == other) for other in range(channels)) for channel in range(channels)]
    slopes = np.stack(
        [_centre(whole, colour) - black for colour in basis], 1
    )  # (channel of the result, of the picture)
    order = tuple(int(channel) for channel in np.abs(slopes).argmax(1))
    slope = slopes[range(channels), order]
    mixed = np.abs(slopes).sum(1) - np.abs(slope) > 1e-5 * np.abs(slope)
    if sorted(order) != list(range(channels)) or mixed.any() or not (slope > 0).all():
        raise HoldfastError("it mixes the colours of a picture, as a conversion to grey does, or inverts them")
    return order, _stated(-black / slope, known), _stated(1 / slope, known)


def _centre(whole: Whole, colour: tuple[int, ...]) -> Float[np.ndarray, " c"]:
    from PIL import Image

    picture = Image.new("RGB" if len(colour) == 3 else "L", SOLID, colour if len(colour) == 3 else colour[0])
    result = whole(picture)
    return result[:, result.shape[1] // 2, result.shape[2] // 2].astype(np.float64)


def _stated(measured: Float[np.ndarray, " c"], known: list[float]) -> Numbers:
    """Return ``measured`` numbers as the library states them, or else to six digits, which rounding does not reach."""
    found = []
    for value in measured.tolist():
        near = [number for number in known if abs(number - value) <= 2e-6 * abs(number) + 1e-9]
        found.append(float(near[0] if near else f"{value:.6g}") if abs(value) > 1e-7 else 0.0)
    return tuple(found)


def _compare(
    pixels: Shaped[np.ndarray, "rows columns c"],
    theirs: Result,
    order: tuple[int, ...],
    mean: Numbers,
    std: Numbers,
    steps: str,
) -> None:
    """Raise unless ``pixels``, normalised, equal the library's result."""
    low, width = (np.array(values)[:, None, None] for values in (mean, std))
    ours = pixels.transpose(2, 0, 1)[list(order)] / (255 if pixels.dtype == np.uint8 else 1)
    difference = np.abs(ours - (theirs.astype(np.float64) * width + low)) * 255
    if not (difference <= TOLERANCE).all():
        share = float((~(difference <= TOLERANCE)).mean())
        raise HoldfastError(
            f"its result is no normalisation of 8-bit pixels (off by up to {difference.max():.3g}/255, in {share:.0%} of "
            f"them): it {_named(difference, steps)}"
        )


def _named(difference: Float[np.ndarray, "c h w"], steps: str) -> str:
    """Return which step makes the ``difference``, in grey levels."""
    if difference.max() <= 1:
        return "resizes in floating point"
    return f"takes the steps {steps}" if steps else "takes a step that is no resizing, cropping or normalising"


@cache
def _picture(size: tuple[int, int], channels: int) -> Image.Image:
    """Return a picture of ``size`` (width, height) with edges, waves and noise; always the same one."""
    from PIL import Image

    width, height = size
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(width * height)
    waves = [127 + 100 * np.sin(x / (3 + 2 * c) + y / (11 - 2 * c) + c) for c in range(channels)]
    values = np.stack(waves, -1) + rng.normal(0, 12, (height, width, channels))
    values[height // 3 : height // 2, width // 4 : width // 2] = 255
    pixels = np.clip(values, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels if channels == 3 else pixels[..., 0])


NOT_STATED = "not stated"
FITS = ("shortest", "longest", "squash")


@dataclass(frozen=True)
class PreprocessingSettings:
    """Settings of a reference that replace the preprocessing which the source assumes."""

    mean: str | None = None
    """Per-channel mean of pixels in [0, 1], one number for all channels or one each."""
    std: str | None = None
    """Standard deviation per channel of pixels in [0, 1], like ``mean``."""
    interpolation: str | None = None
    """Filter for resizing, as the source names it, such as bilinear or bicubic."""
    resize: str | None = None
    """``shortest``, ``longest`` or ``squash``: what is resized to the input's size. ``timm`` also takes the number of pixels
    to which the shorter side is resized before the centre is cropped."""

    def normalisation(self, name: str, channels: int) -> dict[str, tuple[float, ...]]:
        """``mean`` and ``std`` per channel; empty if neither is set.

        Raises:
            HoldfastError: Only one of the two is set.
        """
        if (self.mean is None) != (self.std is None):
            raise Conflict(f"{name!r}", f"mean={self.mean} and std={self.std}", "both mean and std, or neither")
        if self.mean is None or self.std is None:
            return {}
        return {"mean": numbers(self.mean, channels), "std": numbers(self.std, channels)}

    def checked_resize(self, name: str, sizes: bool) -> str | None:
        """Check ``resize``.

        Args:
            sizes: True to accept a number of pixels as well.

        Raises:
            HoldfastError: The way to resize is unknown.
        """
        if self.resize is not None and self.resize not in FITS and not (sizes and self.resize.isdecimal()):
            raise OutOfRange(
                f"{name!r}: resize", self.resize, f"{', '.join(FITS)}{' or a number of pixels' if sizes else ''}"
            )
        return self.resize

    def missing(self, name: str, source: str) -> str:
        """Sentence on preprocessing that is not stated; empty if all of it is."""
        stated = {"normalisation": self.mean, "interpolation": self.interpolation, "resize": self.resize}
        missing = [what for what, value in stated.items() if value is None]
        if not missing:
            return ""
        return (
            f"{name!r}: its file of weights does not state {', '.join(missing)}; the default of {source} for this network "
            "is used. State what the weights were trained with: ?mean=...&std=...&interpolation=...&resize=..."
        )
