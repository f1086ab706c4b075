"""Images whose files can be read again, resized or decoded as another program may have done it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import UInt8
from torch import Tensor

from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images, Subset
from holdfast.data.reading.decode import Decoding
from holdfast.data.reading.encoded import Encoded


@dataclass(frozen=True, eq=False)
class Files:
    """Files by the names of their images."""

    source: Encoded
    rows: dict[str, int]

    @classmethod
    def of(cls, images: Images) -> Files | None:
        """Return the files of ``images``; None if they were no files."""
        source, rows = images.source, list(range(len(images)))
        while isinstance(source, Subset):
            rows = [source.rows[row] for row in rows]
            source = source.source
        return cls(source, dict(zip(images.ids, rows, strict=True))) if isinstance(source, Encoded) else None

    def read(self, names: Sequence[str], geometry: Preprocessing, decoding: Decoding) -> UInt8[Tensor, "b c h w"]:
        """Return the pixels of the images called ``names``."""
        return self.source.otherwise(geometry, decoding).read([self.rows[name] for name in names])

    def depends(self, name: str) -> tuple[bool, bool]:
        """Return whether a file says how it is turned, and whether it has transparent parts."""
        return self.source.depends(self.rows[name])
