"""From a stored array to inputs of an encoder: position of the channels, sizes that fit, valid values."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from holdfast.core.encoder import Domain
from holdfast.core.errors import Described, HoldfastError, OutOfRange
from holdfast.core.geometry import Geometry, Preprocessing
from holdfast.core.images import DIGEST, THREADS, Images, check_unchanged, row_digests
from holdfast.data.by_name import Selection
from holdfast.data.reading.decode import fitted
from holdfast.data.reading.scan_cache import ScanCache

if TYPE_CHECKING:
    from PIL import Image

Layout = Literal["as stored", "grey", "channels first", "channels last"]
BLOCK = 1 << 22
"""Values looked at together."""


@runtime_checkable
class Rows(Protocol):
    """A tensor, or what is fetched like one: (n, ...)."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Tensor: ...


def load_array(
    name: str,
    stored: Rows,
    labels: Int[Tensor, "n"] | None,
    selection: Selection,
    file: Path | str | None = None,
    part: str = "",
) -> Images:
    """Chosen rows of an array as images, with their positions as ids.

    Rows found sound and their digests are remembered for later runs.

    Args:
        file: File of the array, under which digests are remembered; None remembers nothing.

    Raises:
        HoldfastError: Shape or type do not fit the encoder, or a chosen image holds NaN or is out of range.
    """
    source = ArraySource(name, stored, selection)
    if len(stored) == 0:
        raise HoldfastError(f"{name} holds no images")
    ids = [str(row) for row in range(len(stored))]
    chosen, domain, scan_cache = selection.choose(ids), selection.domain, selection.scan_cache
    which = blake2b(np.array(chosen, dtype=np.int64).tobytes()).hexdigest()

    def checked() -> bytes:
        check_values(name, stored, chosen, domain)
        return b"sound"

    scan_cache.recall(scan_cache.key(file, part, which, domain.low, domain.high), checked)
    rows = ChosenRows(source, chosen, scan_cache, scan_cache.key(file, part, which, "digests"))
    return Images(rows, [ids[row] for row in chosen], None if labels is None else labels[chosen], name)


class ArraySource:
    """Array in memory, mapped or remote, whose rows are read in the shape of the domain.

    Images of another height and width than the encoder's are resized and cropped as files of them are; images of its
    height and width are taken as they are. Grey ones are repeated for encoders of three channels. A digest is that of
    the stored row, so that encoders of different sizes share it.
    """

    def __init__(self, name: str, stored: Rows, selection: Selection) -> None:
        self.name, self.stored, self.domain = name, stored, selection.domain
        if stored.dtype == torch.uint8 and (self.domain.low, self.domain.high) != (0, 1):
            raise HoldfastError(
                f"{name} holds uint8, which stands for pixels in [0, 1], but the encoder takes values in "
                f"[{self.domain.low:g}, {self.domain.high:g}]; store floats in that range"
            )
        self.layout = layout(name, tuple(stored.shape), self.domain)
        self.geometry: Preprocessing | None = None
        if self.layout != "as stored" and _size(stored, self.layout) != self.domain.shape[1:]:
            self.geometry = selection.framing

    def __len__(self) -> int:
        return len(self.stored)

    def read(self, rows: Sequence[int]) -> Tensor:
        return self.shaped(self.stored[torch.as_tensor(rows, dtype=torch.int64)])

    def shaped(self, pixels: Tensor) -> Tensor:
        """Return stored rows in the domain's shape."""
        if self.layout == "as stored":
            return pixels
        if self.layout == "grey":
            pixels = pixels[:, None]
        elif self.layout == "channels last":
            pixels = pixels.movedim(-1, 1)
        pixels = pixels.expand(-1, self.domain.shape[0], -1, -1)
        return pixels if self.geometry is None else resized(pixels, self.geometry, self.domain)

    def digest(self, row: int) -> bytes:
        return digests_of(self.stored, [row])


class ChosenRows:
    """Rows of an array; their digests are computed together and remembered."""

    def __init__(self, source: ArraySource, rows: Sequence[int], scan_cache: ScanCache, stamp: bytes | None) -> None:
        self.source, self.rows, self.scan_cache, self.stamp = source, rows, scan_cache, stamp

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> Tensor:
        chosen = [self.rows[row] for row in rows]
        stored = self.source.stored[torch.as_tensor(chosen, dtype=torch.int64)]
        if "_digests" in vars(self):
            names = (f"image {row} of {self.source.name}" for row in chosen)
            check_unchanged(stored, dict(enumerate(zip(names, map(self.digest, rows), strict=True))))
        return self.source.shaped(stored)

    def digest(self, row: int) -> bytes:
        return self._digests[DIGEST * row : DIGEST * (row + 1)]

    @cached_property
    def _digests(self) -> bytes:
        digests = self.scan_cache.recall(self.stamp, lambda: digests_of(self.source.stored, self.rows))
        self.scan_cache.save()
        return digests


def digests_of(stored: Rows, rows: Sequence[int]) -> bytes:
    """Digests of many rows, in a tenth of the time of one by one."""

    def hashed(block: Sequence[int]) -> bytes:
        return b"".join(row_digests(stored[torch.as_tensor(block)]))

    step = max(1, BLOCK // max(1, stored[0].numel()))
    with ThreadPoolExecutor(THREADS) as pool:
        return b"".join(pool.map(hashed, [rows[first : first + step] for first in range(0, len(rows), step)]))


def _size(stored: Rows, layout: Layout) -> tuple[int, ...]:
    return tuple(stored.shape[1:3] if layout in ("grey", "channels last") else stored.shape[2:4])


def layout(name: str, shape: tuple[int, ...], domain: Domain) -> Layout:
    """Meaning of the axes of an array, if there is exactly one way to read it.

    Raises:
        HoldfastError: No layout fits, or several do.

    Example:
        >>> layout("x.npy", (10, 32, 32, 3), Domain((3, 224, 224)))
        'channels last'
        >>> layout("x.npy", (10, 3, 32, 3), Domain((3, 224, 224)))
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: x.npy of shape (10, 3, 32, 3) may be N x C x H x W or N x H x W x C; ...
    """
    if shape[1:] == domain.shape:
        return "as stored"
    if len(domain.shape) != 3 or 0 in shape[1:]:
        raise OutOfRange(name, shape, f"of shape (n, {', '.join(map(str, domain.shape))})")
    accepted = {domain.shape[0], 1} if domain.shape[0] == 3 else {domain.shape[0]}
    if len(shape) == 3 and 1 in accepted:
        return "grey"
    first, last = (len(shape) == 4 and shape[axis] in accepted for axis in (1, -1))
    if first and last:
        raise HoldfastError(
            f"{name} of shape {shape} may be N x C x H x W or N x H x W x C; store it as N x C x H x W of the "
            f"encoder's size, (n, {', '.join(map(str, domain.shape))})"
        )
    if not (first or last):
        count = " or ".join(map(str, sorted(accepted)))
        grey = " (or N x H x W)" if 1 in accepted else ""
        raise OutOfRange(
            name, Described(f"shape {shape}"), f"images N x C x H x W or N x H x W x C{grey} with {count} channels"
        )
    return "channels first" if first else "channels last"


def resized(
    pixels: Shaped[Tensor, "b c h w"], geometry: Preprocessing, domain: Domain
) -> Shaped[Tensor, "b c rows columns"]:
    """Resize images of another size as ``geometry`` resizes files.

    Pictures (1 or 3 channels, pixels in [0, 1]) are resized in 8 bits, as files are; floats are rounded to bytes first.
    Other inputs are resized in single precision, which only a ``Geometry`` can do.

    Raises:
        HoldfastError: The inputs are no pictures, and ``geometry`` accepts nothing else.
    """
    if pixels.shape[1] in (1, 3) and (domain.low, domain.high) == (0, 1):
        as_bytes = pixels if pixels.dtype == torch.uint8 else (pixels.double() * 255).round().to(torch.uint8)
        return torch.stack([fitted(_picture(image), geometry) for image in as_bytes])
    if isinstance(geometry, Geometry):
        return domain.clip(torch.stack([_each_channel(image, geometry) for image in pixels]))
    raise HoldfastError(
        f"images of {pixels.shape[2]} x {pixels.shape[3]} pixels cannot be resized by the encoder's library, which takes 1 "
        f"or 3 channels in [0, 1]; store them at {domain.shape[1:]}"
    )


def _picture(image: UInt8[Tensor, "c h w"]) -> Image.Image:
    from PIL import Image

    return Image.fromarray((image[0] if len(image) == 1 else image.permute(1, 2, 0)).contiguous().numpy())


def _each_channel(image: Shaped[Tensor, "c h w"], geometry: Geometry) -> Float[Tensor, "c rows columns"]:
    """Return an image of any number of channels, in single precision."""
    from PIL import Image

    values = image.float() / (255 if image.dtype == torch.uint8 else 1)
    return torch.stack([torch.from_numpy(np.array(geometry.fit(Image.fromarray(part.numpy())))) for part in values])


def check_values(name: str, stored: Rows, rows: Sequence[int], domain: Domain) -> None:
    """Check that all values are finite and in range, reading the array once.

    Raises:
        HoldfastError: A value does not fit; the sentence gives the position of the first row.
    """
    if stored.dtype == torch.uint8:
        return
    step = max(1, BLOCK // max(1, stored[0].numel())) if len(stored) else 1
    for start in range(0, len(rows), step):
        block = torch.as_tensor(rows[start : start + step])
        low, high = torch.aminmax(stored[block].flatten(1), dim=1)
        # A NaN fails both comparisons, and aminmax propagates it.
        bad = ~((low >= domain.low) & (high <= domain.high)) | low.isinf() | high.isinf()
        if bad.any():
            first = int(bad.nonzero()[0])
            raise OutOfRange(
                f"image {rows[start + first]} of {name}",
                Described(f"values from {float(low[first]):g} to {float(high[first]):g}"),
                f"finite and lie in [{domain.low:g}, {domain.high:g}]",
                fix="store raw pixels (divide by 255, do not normalise), or leave that image out",
            )
