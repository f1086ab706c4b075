"""Images of a canary: pictures small enough for a portable file, and their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images, Subset
from holdfast.core.optimised import codes_of
from holdfast.core.run_settings import RunSettings, without_tf32
from holdfast.data.reading.decode import USUAL, fitted
from holdfast.data.reading.scan import Encoded
from holdfast.service.canary import Canary, Picture, Vectors

ROOM = 1.5
"""Shorter side of a stored picture over the longest side of the input, so that there is still something to resize."""


@dataclass(frozen=True)
class Shrunk(Preprocessing):
    """The whole picture; its shorter side is at most ``side`` pixels."""

    side: int
    crop: tuple[int, int] = (0, 0)

    def __call__(self, image: Image.Image) -> UInt8[np.ndarray, "rows columns c"]:
        factor = self.side / min(image.size)
        if factor < 1:
            image = image.resize(
                (max(1, round(image.width * factor)), max(1, round(image.height * factor))), Image.Resampling.LANCZOS
            )
        return np.asarray(image).reshape(image.height, image.width, -1)

    @property
    def words(self) -> str:
        return f"shorter side to at most {self.side}, lanczos"


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures as one encoder gets them."""

    encoder: Encoder
    pictures: tuple[Picture, ...]
    side: int
    """Longest shorter side of a picture; 0 if they are inputs of the encoder already."""
    run: RunSettings

    @classmethod
    def of(cls, canary: Canary, encoder: Encoder, run: RunSettings) -> Pictures:
        """Return the images of ``canary`` for ``encoder``.

        Raises:
            HoldfastError: the encoder does not take such images.
        """
        check_pictures(encoder)
        canary.images  # noqa: B018  raises if there are none
        channels = canary.pictures[0].shape[2]
        if channels != encoder.domain.shape[0]:
            raise OutOfRange(f"channels of {encoder.name}", encoder.domain.shape[0], f"{channels}, as in the canary")
        return cls(encoder, canary.pictures, canary.header.side, run)

    def few(self, count: int) -> Pictures:
        """Return the first ``count`` of them."""
        return replace(self, pictures=self.pictures[:count])

    def pixels(self, geometry: Preprocessing | None) -> Pixels:
        """Return the inputs (n, c, h, w) that ``geometry`` makes of the pictures."""
        domain, geometry = self.encoder.domain, geometry if self.side else None
        channels = domain.shape[0]
        rows = [
            fitted(Image.fromarray(picture[..., 0] if channels == 1 else picture), geometry)
            if geometry
            else torch.from_numpy(picture.copy()).permute(2, 0, 1)
            for picture in self.pictures
        ]
        for row in rows:
            if tuple(row.shape) != domain.shape:
                raise OutOfRange(
                    f"inputs of {self.encoder.name}", domain.shape, f"{tuple(row.shape)}, as in the canary"
                )
        pixels = torch.stack(rows)
        unit = pixels.to(self.run.device).to(self.run.dtype)
        return unit / 255 if pixels.dtype == torch.uint8 else unit

    @cached_property
    def usual(self) -> Pixels:
        """The inputs as the encoder wants them."""
        return self.pixels(self.encoder.geometry)

    def codes(self, pixels: Pixels | None = None, batch: int | None = None) -> Vectors:
        """Return the embeddings (n, d) of ``pixels``, by default those of the pictures, as float64.

        Raises:
            HoldfastError: one is not finite.
        """
        encoder = self.encoder.to(self.run.device, self.run.dtype)
        pixels = self.usual if pixels is None else pixels
        with without_tf32(), torch.no_grad():
            parts = pixels.split(batch or self.run.batch_size)
            codes = torch.cat([codes_of(encoder, part).cpu().double() for part in parts])
        if not torch.isfinite(codes).all():
            raise HoldfastError(
                f"{encoder.name} returned NaN or infinite embeddings; check its weights and its precision"
            )
        return codes.numpy()


def check_pictures(encoder: Encoder) -> None:
    """Raise unless ``encoder`` takes pictures in grey or colour, and can be run."""
    shape, domain = encoder.domain.shape, encoder.domain
    if encoder.codes_only or len(shape) != 3 or shape[0] not in (1, 3) or (domain.low, domain.high) != (0, 1):
        raise HoldfastError(
            f"{encoder.name}: a canary holds pictures of 1 or 3 channels in [0, 1], and an encoder that can be run; "
            f"got inputs of shape {shape} in [{domain.low:g}, {domain.high:g}]"
        )


def side_for(domain: Domain) -> int:
    """Return the longest shorter side of a stored picture, in pixels.

    Example:
        >>> side_for(Domain((3, 224, 224)))
        336
    """
    return round(ROOM * max(domain.shape[1:]))


def pictures_of(images: Images, rows: Sequence[int], side: int) -> tuple[Picture, ...]:
    """Return uint8 pictures of ``images``: of files the whole picture, of arrays the pixels, rounded to 8 bits."""
    source, positions = images.source, list(rows)
    while isinstance(source, Subset):
        positions = [source.rows[row] for row in positions]
        source = source.source
    if isinstance(source, Encoded):
        files = source.otherwise(Shrunk(side), USUAL)
        pixels = [files.picture(row) for row in positions]
    else:
        pixels = [(images.pixels([row])[0] * 255).round().to(torch.uint8) for row in rows]
    return tuple(np.ascontiguousarray(each.permute(1, 2, 0).numpy()) for each in pixels)


def from_files(images: Images) -> bool:
    """Return whether ``images`` are picture files, which encoders resize."""
    source = images.source
    while isinstance(source, Subset):
        source = source.source
    return isinstance(source, Encoded)
