"""``embeddings:codes.npy?ids=ids.txt&tags=tags.csv``: embeddings computed elsewhere, measured without their encoder."""

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
from holdfast.data.codes.forms import Form
from holdfast.encoders.by_name import Options, split

SOURCE = "embeddings"
POSITIONS = (
    "Its rows have no ids, so position tells them apart: it can be compared with files of the same images in the same "
    "order alone."
)


@final
@dataclass(frozen=True)
class Settings:
    """Settings of a reference to embeddings: columns or files that belong to its rows."""

    column: str | None = None
    """Array or column of the file that holds the embeddings."""
    ids: str | None = None
    """File or column of ids."""
    labels: str | None = None
    """File or column of labels."""
    tags: str | None = None
    """CSV or JSON file with a nuisance attribute of each id."""
    groups: str | None = None
    """File or column of groups, ``prefix`` or ``folders``."""
    inputs: str | None = None
    """Array file of what the embeddings were computed from."""
    stored: Form | None = None
    """Form in which the embeddings are stored, or to which floating-point numbers are brought."""


class Recorded(nn.Module):
    """Identity module for stored embeddings, whose hash is ``content``."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.content = content

    def forward(self, codes: Pixels) -> Codes:
        return codes


@final
class Embeddings(Encoder):
    """Embeddings that were computed elsewhere, to measure without their encoder.

    Args:
        codes: Numbers, shape (n, d), or a ``.npy``, ``.npz``, ``.parquet``, ``.lance`` or ``.faiss`` file with them.
        column: Array or column of the file that holds the embeddings, if there are several.
        ids: Text for each row, as the images are called, or the file or column with it. Default: positions.
        labels: Number or text for each row, or the file or column with it.
        tags: CSV or JSON file with a nuisance attribute of each id, such as its scanner, for the robustness index and
            the margin across tags.
        groups: Group of each row, or the file or column with it; ``prefix`` and ``folders`` read it from ids.
        inputs: What the embeddings were computed from, shape (n, ...), or an array file with it; SPADE compares both.
        name: Name in reports; by default that of the file.
        stored: How embeddings are stored, as in ``int8:ranges=ranges.npy``. Integers are read in this form;
            floating-point numbers are brought to it, to measure what it costs.

    Raises:
        HoldfastError: A file cannot be read, embeddings are not finite, or ids, labels or groups do not match the rows.

    Example:
        >>> codes = Embeddings(np.eye(3), ids=["a", "b", "c"])
        >>> len(codes.stored), codes.stored.width
        (3, 3)
    """

    codes_only = True

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
        stored: str | Form | None = None,
    ) -> None:
        form = Form.read(stored) if isinstance(stored, str) else stored
        self.tags = None if tags is None else str(tags)
        rows = read_codes(codes, column, ids=ids, labels=labels, groups=groups, inputs=inputs, name=name, stored=form)
        self.hold(rows)

    def hold(self, stored: StoredCodes) -> None:
        """Become the encoder of these rows."""
        self.stored = stored
        pooling, caution = "none, embeddings were computed elsewhere", POSITIONS if stored.positions else ""
        module, domain = Recorded(stored.fingerprint), Domain((stored.width,), -inf, inf)
        super().__init__(module, stored.name, domain, pooling=pooling, caution=caution)

    def images(self, originals: Images | None = None, others: Sequence[StoredCodes] = ()) -> Images:
        """Embeddings in the place of pixels, for all rows or for the images that are measured.

        Args:
            originals: Images to measure; None for all rows.
            others: Further embeddings of the same images, whose labels and groups fill gaps.

        Raises:
            HoldfastError: One of the ``originals`` has no embedding.
        """
        return self.stored.images(others) if originals is None else self.stored.images_like(originals)


def load(name: str, options: Options) -> Embeddings:
    """Stored embeddings, as in ``embeddings:codes.npy?ids=ids.txt&labels=labels.txt``."""
    file, settings = split(name, Settings)
    if options.size:
        raise HoldfastError(f"--size {options.size} changes nothing: {file} holds embeddings, not images; leave it out")
    return Embeddings(file, **vars(settings))
