"""``embeddings:codes.npy?ids=ids.txt&tags=tags.csv``: codes that were computed elsewhere, measured without their encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor, nn

from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.data.codes.codes import StoredCodes, read_codes
from holdfast.encoders.loading.reference import Options, split

SOURCE = "embeddings"
POSITIONS = (
    "Its rows have no ids, so they are told apart by position: it can be compared with files of the same images in the same "
    "order alone."
)


@final
@dataclass(frozen=True)
class Settings:
    """Settings of a reference: which column holds the codes, and the columns or files of what belongs to its rows."""

    column: str | None = None
    ids: str | None = None
    labels: str | None = None
    tags: str | None = None
    groups: str | None = None
    inputs: str | None = None


class Recorded(nn.Module):
    """Returns what it is given: codes, of which ``content`` is the hash."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.content = content

    def forward(self, codes: Pixels) -> Codes:
        return codes


@final
class Embeddings(Encoder):
    """Codes that were computed elsewhere: what looks at codes alone is asked of them, without their encoder.

    Args:
        codes: (n, d) floating-point numbers, or a ``.npy``, ``.npz`` or ``.parquet`` file of them.
        column: which array or column of the file holds the codes, where that is not plain.
        ids: a text for each row, as the images are called, or the file or column of them; positions by default.
        labels: a number or a text for each row, or the file or column of them.
        tags: a CSV or JSON file with what should not matter of each id, such as its scanner: the robustness index and the
            margin across tags are measured with it.
        groups: which rows belong together, or the file or column of that; ``prefix`` and ``folders`` read it from ids.
        inputs: (n, ...) what the codes were computed from, or the array file of it: SPADE compares the codes with it.
        name: how reports call them; by default as their file.

    Raises:
        HoldfastError: a file cannot be read, codes are not finite, or there is not one id, label or group for each row.

    Example:
        >>> codes = Embeddings(np.eye(3), ids=["a", "b", "c"])
        >>> len(codes.stored), codes.stored.width
        (3, 3)
    """

    recorded = True

    def __init__(
        self,
        codes: str | Path | np.ndarray | Tensor,
        *,
        column: str | None = None,
        ids: str | Path | Sequence[str] | np.ndarray | None = None,
        labels: str | Path | Sequence[Any] | np.ndarray | Tensor | None = None,
        tags: str | Path | None = None,
        groups: str | Path | Sequence[str] | np.ndarray | None = None,
        inputs: str | Path | np.ndarray | Tensor | None = None,
        name: str | None = None,
    ) -> None:
        self.stored = read_codes(codes, column, ids=ids, labels=labels, groups=groups, inputs=inputs, name=name)
        self.tags = None if tags is None else str(tags)
        super().__init__(
            Recorded(self.stored.fingerprint),
            self.stored.name,
            Domain((self.stored.width,), -inf, inf),
            pooling="none, codes were computed elsewhere",
            caution=POSITIONS if self.stored.positions else "",
        )

    def images(self, originals: Images | None = None, others: Sequence[StoredCodes] = ()) -> Images:
        """Return the codes in the place of pixels: of all rows, or of the ``originals`` that are measured.

        Labels and groups that are not stated here may be in ``others``, of the same images.

        Raises:
            HoldfastError: one of the ``originals`` has no code.
        """
        return self.stored.images(others) if originals is None else self.stored.images_like(originals)


def load(name: str, options: Options) -> Embeddings:
    """Return the codes in the file ``name``, as in ``embeddings:codes.npy?ids=ids.txt&labels=labels.txt``."""
    file, settings = split(name, Settings)
    if options.size:
        raise HoldfastError(f"--size {options.size} changes nothing: {file} holds embeddings, not images; leave it out")
    return Embeddings(file, **vars(settings))
