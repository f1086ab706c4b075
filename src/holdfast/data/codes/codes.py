"""Embeddings that were computed elsewhere: ``embeddings:codes.npy?ids=ids.txt&labels=labels.txt``, one row per image.

A .npy file is mapped from disk, a .parquet file is copied into a mapped temporary one, an .npz archive is held in memory.
Each row has an id and may have a label and a group. Without ids, rows are named by their positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.errors import Described, HoldfastError, OutOfRange, did_you_mean, readable, warn
from holdfast.core.images import DIGEST, Images, Source, TensorSource
from holdfast.data.by_name import Selection, check_settings, groups_of
from holdfast.data.codes.files import FLOATS, INTEGERS, Table, read_table
from holdfast.data.codes.forms import Form
from holdfast.data.reading.array_source import Rows
from holdfast.data.reading.label_files import numbered

SOURCE = "embeddings"
BLOCK = 1 << 22
"""Values looked at together."""
Named = str | Path | Sequence[Any] | np.ndarray | Tensor | None
"""One value per row, in memory, or the name of a file, a column or an array that holds them."""


@final
@dataclass(frozen=True, eq=False)
class StoredCodes:
    """Embeddings (n, d) with an id for each row, all finite, read when needed.

    Args:
        codes: float16, float32 or float64 numbers, in memory or mapped, shape (n, d).
        ids: Distinct names, one per row.
        positions: True if ids are the positions of the rows, because none were given.
        labels: One number per row; None without.
        classes: Names of these numbers, where labels are text.
        groups: Group of each row; None without.
        inputs: What the embeddings were computed from; None if unknown.
        name: Name in reports.
    """

    codes: Rows
    ids: tuple[str, ...]
    positions: bool = False
    labels: Int[Tensor, "n"] | None = None
    classes: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None
    inputs: Source | None = None
    name: str = SOURCE

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        """Number of features of an embedding."""
        return int(self.codes.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all ids and embeddings."""
        digest = blake2b("\0".join(self.ids).encode() + f"{self.codes.dtype}{self.width}".encode(), digest_size=8)
        for block in blocks(self.codes):
            digest.update(block.contiguous().numpy().data)
        return digest.hexdigest()

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each id."""
        return {name: row for row, name in enumerate(self.ids)}

    def of(self, ids: Sequence[str]) -> Float[Tensor, "n d"]:
        """Embeddings of ``ids``, in their order.

        Raises:
            HoldfastError: An id has no embedding.
        """
        return self.codes[torch.tensor(self.rows_of(ids), dtype=torch.int64)]

    def rows_of(self, ids: Sequence[str]) -> list[int]:
        """Return the row of each of ``ids``.

        Raises:
            HoldfastError: one of them has no code here.
        """
        missing = [name for name in ids if name not in self.rows]
        if missing:
            examples = ", ".join(map(repr, self.ids[:2]))
            stated = "has no ids (name them with ?ids=FILE), so its rows are called" if self.positions else "holds"
            raise HoldfastError(
                f"{self.name} has no embedding for {len(missing)} of {len(ids)} images, {missing[0]!r} among them; it "
                f"{stated} {examples} ...: give ids as the images have them"
            )
        return [self.rows[name] for name in ids]

    def images(self, others: Sequence[StoredCodes] = ()) -> Images:
        """The rows as images of an identity encoder, identified by ids or inputs.

        Labels and groups that are missing here are taken from the first of ``others`` that has them for all ids.
        """
        candidates = [self, *(other for other in others if all(name in other.rows for name in self.ids))]
        labelled = next((each for each in candidates if each.labels is not None), self)
        grouped = next((each for each in candidates if each.groups is not None), self)
        labels = None if labelled.labels is None else labelled.labels[labelled.rows_of(self.ids)]
        groups = None if grouped.groups is None else [grouped.groups[row] for row in grouped.rows_of(self.ids)]
        return Images(CodeRows(self), self.ids, labels, self.name, labelled.classes, groups)

    def images_like(self, originals: Images) -> Images:
        """Embeddings of ``originals``, identified by their pixels, to compare with encoders.

        Raises:
            HoldfastError: An image has no embedding.
        """
        source = CodeRows(self, self.rows_of(originals.ids), originals.source)
        return Images(source, originals.ids, originals.labels, originals.name, originals.classes, originals.groups)


class CodeRows:
    """Embeddings in the place of pixels, identified by their inputs or else by ids."""

    def __init__(self, stored: StoredCodes, rows: Sequence[int] | None = None, shown: Source | None = None) -> None:
        self.stored, self.rows = stored, range(len(stored)) if rows is None else list(rows)
        self.inputs = stored.inputs if shown is None else shown
        """What the codes were computed from, row by row as these."""

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> Tensor:
        return self.stored.codes[torch.tensor([self.rows[row] for row in rows], dtype=torch.int64)]

    def digest(self, row: int) -> bytes:
        if self.inputs is not None:
            return self.inputs.digest(row)
        return blake2b(self.stored.ids[self.rows[row]].encode(), digest_size=DIGEST).digest()


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Rows of a file of embeddings as images of an identity encoder, for a reference set."""
    check_settings(settings, ["column", "ids", "labels", "groups", "inputs", "stored"], SOURCE)
    form = settings.pop("stored", None)
    stored = read_codes(name, **settings, stored=None if form is None else Form.read(form))
    if selection.domain.shape != (stored.width,):
        raise HoldfastError(
            f"{name} holds embeddings of {stored.width} features, but the encoder takes inputs of shape "
            f"{selection.domain.shape}; name images, or embeddings of the same encoder as the ones that are measured"
        )
    if stored.positions:  # which are no reason to take them for the images that are measured
        stored = replace(stored, ids=tuple(f"{stored.name}:{row}" for row in stored.ids))
    images = stored.images()
    return images if selection.limit is None else images[selection.choose(images.ids)]


def read_codes(
    codes: str | Path | np.ndarray | Tensor,
    column: str | None = None,
    *,
    ids: Named = None,
    labels: Named = None,
    groups: Named = None,
    inputs: Any = None,
    name: str | None = None,
    stored: Form | None = None,
) -> StoredCodes:
    """Read embeddings (n, d) with ids, labels, groups and inputs of their rows.

    Args:
        codes: an array, or a ``.npy``, ``.npz`` or ``.parquet`` file of one.
        column: which array or column of the file holds the codes, where that is not plain.
        ids: one text per row, or a ``.txt``, ``.csv`` or ``.npy`` file of them, or the column of them.
        labels: a number or a text per row, or the same.
        groups: a text per row, or the same; ``prefix`` and ``folders`` make them of the ids.
        inputs: an array (n, ...) of what the codes were computed from, or the file of one.
        name: how reports call the set.
        stored: the form in which the codes are stored, or to which floating-point numbers are brought.

    Raises:
        HoldfastError: the file cannot be read, or codes, ids, labels or groups are not what they must be.

    Example:
        >>> read_codes(np.eye(3), ids=["a", "b", "a"])
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: ids of embeddings must be distinct, got 'a' twice. Give each row its own.
    """
    table = read_table(codes, column, integers=stored is not None)
    called = name or (Path(codes).name if isinstance(codes, str | Path) else SOURCE)
    if stored is not None and name is None:
        called = f"{called} as {stored.words}"
    if stored is not None:
        table = replace(table, codes=_as_embeddings(table.codes, stored, called))
    _check(table.codes, called)
    stated = _column(ids, "ids", table, called)
    named = tuple(map(str, range(len(table.codes)))) if stated is None else tuple(map(str, stated))
    if len(set(named)) < len(named):
        twice, _ = Counter(named).most_common(1)[0]
        raise OutOfRange(f"ids of {called}", Described(f"{twice!r} twice"), "distinct", fix="give each row its own")
    numbers, classes = _labelled(labels, table, called)
    members = _groups(groups, named, table, called)
    seen = None if inputs is None else _inputs(inputs, len(named), called)
    return StoredCodes(table.codes, named, stated is None, numbers, classes, members, seen, called)


def _as_embeddings(codes: Rows, form: Form, name: str) -> Rows:
    """Return ``codes`` that are stored in this ``form``, or floating-point numbers brought to it."""
    _check_shape(codes, name, (*FLOATS, *INTEGERS))
    if codes.dtype.is_floating_point:
        _check(codes, name)

    def sample(named: str | None) -> Iterable[Tensor]:
        if named is None and not codes.dtype.is_floating_point:
            fix = "state scale or ranges, as in ?stored=int8:ranges=ranges.npy"
            raise OutOfRange(
                f"stored={form.name}", Described("neither"), "given with the scale or ranges of its integers", fix
            )
        return blocks(codes if named is None else read_codes(named.removeprefix(f"{SOURCE}:")).codes)

    return form.rows(codes, sample, name)


def blocks(codes: Rows) -> Iterable[Tensor]:
    """Batches of rows, in their order."""
    step = max(1, BLOCK // max(1, codes.shape[1]))
    return (codes[start : start + step] for start in range(0, len(codes), step))


def _check(codes: Rows, name: str) -> None:
    """Raise unless ``codes`` are finite rows of floating-point numbers."""
    _check_shape(codes, name, FLOATS)
    start, bad, first = 0, 0, 0
    for block in blocks(codes):
        wrong = ~torch.isfinite(block).all(1)
        if wrong.any():
            first = first if bad else start + int(wrong.nonzero()[0])
            bad += int(wrong.sum())
        start += len(block)
    if bad:
        raise HoldfastError(
            f"{bad} of {len(codes)} embeddings of {name} hold NaN or infinity, row {first} the first; leave these rows "
            "out, or compute them again"
        )


def _check_shape(codes: Rows, name: str, kinds: Sequence[str]) -> None:
    """Raise unless ``codes`` are rows of numbers of one of these ``kinds``."""
    if len(codes.shape) != 2 or not codes.shape[1]:
        raise OutOfRange(name, Described(f"shape {tuple(codes.shape)}"), "one embedding per row, shape (n, d)")
    if str(codes.dtype)[len("torch.") :] not in kinds:
        raise OutOfRange(f"embeddings of {name}", codes.dtype, ", ".join(kinds), fix="convert them")
    if len(codes) == 0:
        raise HoldfastError(f"{name} holds no embeddings")


def _column(values: Any, what: str, table: Table, name: str) -> list[Any] | None:
    """Return one value per row, from memory, a column of the table, or a file."""
    if values is None:
        values = table.column(what, default=True)
    elif isinstance(values, str | Path):
        values = table.column(str(values)) if str(values) in table.names else _from_file(Path(values), what, table)
    if values is None:
        return None
    listed = values.tolist() if isinstance(values, np.ndarray | Tensor) else list(values)
    blank = next((row for row, value in enumerate(listed) if _missing(value)), None)
    if blank is not None:
        raise HoldfastError(f"{what} of {name} are missing for row {blank}; state one per row, or leave {what} out")
    if len(listed) != len(table.codes) or any(isinstance(value, list) for value in listed[:1]):
        raise HoldfastError(
            f"{name} holds {len(table.codes)} embeddings but {len(listed)} {what}; give one for each row, in their order"
        )
    return listed


def _from_file(file: Path, what: str, table: Table) -> Any:
    """Return the lines of a text file or the entries of a .npy file."""
    path = file.expanduser()
    if not path.is_file():
        columns = f" and no column. {did_you_mean(str(file), table.names)}" if table.names else "; check the path"
        raise HoldfastError(f"{what} are named {str(file)!r}, which is no file{columns}")
    if path.suffix.lower() == ".npy":
        return np.atleast_1d(np.load(path, allow_pickle=False))
    with readable(f"{what} from {file}", "give a .npy file, or text with one line per row", OSError, ValueError):
        return path.read_text("utf-8-sig").splitlines()


def _missing(value: Any) -> bool:
    """Return whether ``value`` stands for none: empty text, None, NaN or what pandas has in their place."""
    text = str(value).strip()
    return not text or (not isinstance(value, str) and text in ("None", "nan", "NaT", "<NA>"))


def _labelled(labels: Named, table: Table, name: str) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return labels as numbers, and what these are called where they are no numbers themselves.

    Labels that are not named, in a column that happens to be called so, are left out with a warning if they are none.
    """
    try:
        return _numbered(_column(labels, "labels", table, name), name)
    except HoldfastError as error:
        if labels is not None:
            raise
        warn(f"{error}; they are ignored", 2)
        return None, ()


def _numbered(labels: list[Any] | None, name: str) -> tuple[Tensor | None, tuple[str, ...]]:
    if labels is None:
        return None, ()
    texts = [str(label).strip() for label in labels]
    numbers = [_number(text) for text in texts]
    known = [number for number in numbers if number is not None]
    if len(known) == len(texts) and all(abs(number) < 2**63 or not isfinite(number) for number in known):
        for row, number in enumerate(known):
            if not isfinite(number) or number != int(number):
                got, fix = Described(f"{texts[row]} for row {row}"), "correct it, or leave labels out"
                raise OutOfRange(f"labels of {name}", got, "whole numbers or names", fix)
        return torch.tensor([int(number) for number in known]), ()
    return numbered(texts)


def _number(text: str) -> int | float | None:
    """Return the number that ``text`` spells, a whole one exactly; None where it is a word.

    Example:
        >>> _number("7"), _number("7.0"), _number("nan"), _number("1_000"), _number("cat")
        (7, 7.0, nan, None, None)
    """
    if "_" in text or not text.isascii():
        return None
    try:
        return int(text) if text.removeprefix("-").isdigit() else float(text)
    except ValueError:
        return None


def _groups(groups: Named, ids: Sequence[str], table: Table, name: str) -> tuple[str, ...] | None:
    by_id = isinstance(groups, str | Path) and str(groups) not in table.names
    if by_id and (str(groups) in ("prefix", "folders") or Path(str(groups)).suffix.lower() == ".csv"):
        return groups_of(ids, str(groups))
    stated = _column(groups, "groups", table, name)
    return None if stated is None else tuple(map(str, stated))


def _inputs(inputs: Any, count: int, name: str) -> Source:
    """Return what the codes were computed from."""
    values = read_table(inputs, None, "inputs").codes
    if len(values) != count:
        raise HoldfastError(
            f"{name} holds {count} embeddings but {len(values)} inputs; give one for each row, in their order"
        )
    return TensorSource(values if isinstance(values, Tensor) else values[torch.arange(count)])
