"""How vectors are stored: as floating-point numbers, in 8 bits, as signs, or as product-quantised codes.

A form is a text such as ``int8:ranges=ranges.npy``. Fitted to a width it is a ``Kept``, which encodes and decodes:

    int8, uint8   q = clip(round((z - shift) / scale) + zero), decoded to shift + scale (q - zero); ties go to even
    binary        bit = z > threshold, decoded to -1 and 1: their squared distance is 4 times Hamming's
    pq            in each part of z the nearest centre of a codebook (Jégou et al. 2011, product quantisation)

The first two integers follow ONNX's QuantizeLinear if scale and zero are stated. With ranges per dimension, 256 levels lie
from the low to the high end of each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor, nn

from holdfast.core.encoder import Codes
from holdfast.core.errors import Conflict, Described, OutOfRange, Unreadable
from holdfast.core.settings import TextSettings, read
from holdfast.data.arrays import read_numpy
from holdfast.data.codes import faiss_files
from holdfast.data.reading.array_source import Rows

Sample = Callable[[str | None], Iterable[Float[Tensor, "b d"]]]
"""Batches of embeddings by the name of their file or images; None stands for those to store, if they are known."""
CENTRES = 256
"""Largest number of centres in a part of a codebook: codes have 8 bits."""
RANGES = "two rows, the low and the high end of each feature"


class Kept(nn.Module):
    """Embeddings as a store keeps them: forward returns what is read back, with the gradient of what came in.

    Args:
        width: Features that are kept, the first ones.
    """

    integers: ClassVar[torch.dtype | None] = None
    """Type of stored codes; None for floating-point numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes of one stored vector."""

    @abstractmethod
    def encode(self, z: Codes) -> Shaped[Tensor, "b c"]:
        """Return ``z`` as it is stored."""

    @abstractmethod
    def decode(self, codes: Shaped[Tensor, "b c"]) -> Codes:
        """Return embeddings as they are read back from stored ``codes``."""

    def smooth(self, z: Codes) -> Float[Tensor, "b kept"]:
        """Return what attacks follow the gradient of: a function near ``forward`` without its steps."""
        return z[:, : self.width]

    def forward(self, z: Codes) -> Float[Tensor, "b kept"]:
        z = z[:, : self.width]
        # The difference is zero (NaN of NaN), and its gradient is that of the identity: straight through.
        return self.decode(self.encode(z.detach())).to(z.dtype) + (z - z.detach())


@final
class Floats(Kept):
    """Floating-point numbers of 16 or 32 bits."""

    def __init__(self, width: int, half: bool) -> None:
        super().__init__(width)
        self.half_precision = half

    @property
    def bytes(self) -> int:
        return (2 if self.half_precision else 4) * self.width

    def forward(self, z: Codes) -> Float[Tensor, "b kept"]:
        if self.half_precision or z.dtype == torch.float64:
            return super().forward(z)
        return z[:, : self.width]  # no rounding, which bounds would have to refuse

    def encode(self, z: Codes) -> Codes:
        return z.half() if self.half_precision else z.float()

    def decode(self, codes: Codes) -> Codes:
        return codes.float()


@final
class Levels(Kept):
    """256 levels per feature: ``shift + scale (q - zero)`` for ``q`` in int8 or uint8."""

    scale: Tensor
    shift: Tensor

    def __init__(self, width: int, scale: Tensor, shift: Tensor, zero: int, signed: bool) -> None:
        super().__init__(width)
        self.zero, self.signed = zero, signed
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    @property
    def integers(self) -> torch.dtype:  # type: ignore[override]
        return torch.int8 if self.signed else torch.uint8

    @property
    def bytes(self) -> int:
        return self.width

    def encode(self, z: Codes) -> Shaped[Tensor, "b d"]:
        low, high = (-128, 127) if self.signed else (0, 255)
        # A feature whose ends are equal has no step; all its values are the low end.
        steps = torch.where(self.scale > 0, (z - self.shift) / self.scale, 0.0)
        return (steps.round() + self.zero).clamp(low, high).to(self.integers)

    def decode(self, codes: Shaped[Tensor, "b d"]) -> Codes:
        return self.shift + self.scale * (codes.to(self.scale.dtype) - self.zero)


@final
class Signs(Kept):
    """One bit per feature, eight in a byte as ``numpy.packbits`` packs them; read back as -1 and 1."""

    integers = torch.uint8
    threshold: Tensor

    def __init__(self, width: int, threshold: Tensor) -> None:
        super().__init__(width)
        self.register_buffer("threshold", threshold)

    @property
    def bytes(self) -> int:
        return self.width // 8

    def encode(self, z: Codes) -> UInt8[Tensor, "b bytes"]:
        bits = (z > self.threshold).to(torch.uint8).unflatten(1, (-1, 8))
        return (bits * self._places(z.device)).sum(2).to(torch.uint8)

    def decode(self, codes: UInt8[Tensor, "b bytes"]) -> Codes:
        bits = codes[:, :, None].bitwise_and(self._places(codes.device)) > 0
        return bits.flatten(1).to(self.threshold.dtype) * 2 - 1

    def smooth(self, z: Codes) -> Float[Tensor, "b kept"]:
        above = z[:, : self.width] - self.threshold
        return torch.tanh(above / above.detach().abs().mean(1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny))

    def _places(self, device: torch.device) -> UInt8[Tensor, "8"]:
        return torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=device)


@final
class Products(Kept):
    """The nearest centre in each part of a vector, one byte each."""

    integers = torch.uint8
    centres: Tensor
    """Shape (parts, centres, features of a part)."""

    def __init__(self, width: int, centres: Float[Tensor, "m k s"]) -> None:
        super().__init__(width)
        self.register_buffer("centres", centres)

    @property
    def bytes(self) -> int:
        return len(self.centres)

    def encode(self, z: Codes) -> UInt8[Tensor, "b m"]:
        parts = z.unflatten(1, (len(self.centres), -1))
        # |part - centre|^2 less |part|^2, which is the same for all centres.
        scores = self.centres.square().sum(2) - 2 * torch.einsum("bms,mks->bmk", parts, self.centres.to(z.dtype))
        return scores.argmin(2).to(torch.uint8)

    def decode(self, codes: UInt8[Tensor, "b m"]) -> Codes:
        chosen = codes.long()
        if len(codes) and int(chosen.max()) >= self.centres.shape[1]:
            raise OutOfRange(
                "stored=pq: code", int(chosen.max()), f"below {self.centres.shape[1]}, the number of centres"
            )
        return self.centres[torch.arange(len(self.centres), device=codes.device), chosen].flatten(1)


@final
class KeptRows:
    """Stored rows that are read as embeddings: integers are decoded, and floating-point numbers encoded before that."""

    def __init__(self, rows: Rows, kept: Kept) -> None:
        self.rows, self.kept = rows, kept
        self.dtype = torch.float32

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), self.kept.width))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any, /) -> Float[Tensor, "b d"]:
        values = self.rows[rows]
        if values.is_floating_point():
            return self.kept(values.float()).float()
        if self.kept.integers == torch.uint8 and values.dtype == torch.int8:  # packed bits less 128
            values = values.view(torch.uint8) ^ 128
        return self.kept.decode(values[:, : self.kept.bytes])


class Form(TextSettings):
    """How vectors are stored, in text such as ``int8:ranges=ranges.npy`` or ``binary:first=256``."""

    name: ClassVar[str]
    first: int | None
    """Keep the first features alone; None keeps all."""

    allowed: ClassVar[tuple[str, ...]] = ("first in (0, inf)",)

    @classmethod
    def read(cls, text: str) -> Form:
        return read(text, FORMS, "stored")

    @property
    def words(self) -> str:
        """Name of the form in reports.

        Example:
            >>> Form.read("binary:first=256").words
            'binary first 256'
        """
        return self.name if self.first is None else f"{self.name} first {self.first}"

    def rows(self, stored: Rows, sample: Sample, name: str) -> KeptRows:
        """Stored rows as embeddings.

        Args:
            stored: Rows, shape (n, c): integers in this form, or floating-point numbers to bring to it.

        Raises:
            OutOfRange: Rows are neither.
        """
        width = stored.shape[1] if stored.dtype.is_floating_point else self.unpacked(stored.shape[1])
        kept = self.fitted(width, sample)
        taken = [kept.integers, *([torch.int8] if isinstance(kept, Signs) else [])]
        if not stored.dtype.is_floating_point and stored.dtype not in taken:
            expected = ", ".join(str(each)[len("torch.") :] for each in taken if each) or "floating-point numbers"
            raise OutOfRange(f"{name} with stored={self.name}", Described(str(stored.dtype)[len("torch.") :]), expected)
        return KeptRows(stored, kept)

    @abstractmethod
    def fitted(self, width: int, sample: Sample) -> Kept:
        """Return this form for embeddings of ``width`` features.

        Args:
            width: Features of an embedding before the first ones are taken, or of a stored one once it is read back.

        Raises:
            HoldfastError: A setting does not fit the width.
        """

    def unpacked(self, columns: int) -> int:
        """Features of a stored row of ``columns`` integers."""
        return columns

    def kept_width(self, width: int) -> int:
        """Features that are kept of ``width``.

        Raises:
            OutOfRange: There are fewer.
        """
        first = width if self.first is None else self.first
        if not 0 < first <= width:
            raise OutOfRange(f"stored={self.name}: first", first, f"in 1..{width}, the features of an embedding")
        return first


@final
@dataclass(frozen=True)
class Float32(Form):
    """Numbers of 32 bits, to keep the first features alone (Matryoshka embeddings, Kusupati et al. 2022)."""

    first: int | None = None
    name = "float32"

    def fitted(self, width: int, sample: Sample) -> Kept:
        return Floats(self.kept_width(width), half=False)


@final
@dataclass(frozen=True)
class Float16(Form):
    """Numbers of 16 bits."""

    first: int | None = None
    name = "float16"

    def fitted(self, width: int, sample: Sample) -> Kept:
        return Floats(self.kept_width(width), half=True)


@dataclass(frozen=True)
class _Integer(Form):
    """One byte per feature."""

    scale: float | None = None
    """Step between two levels, for all features."""
    zero: int = 0
    """Level of the value 0; belongs to ``scale``."""
    ranges: str | None = None
    """``.npy`` file of shape (2, d): low and high end of each feature."""
    calibration: str | None = None
    """Embeddings or images whose smallest and largest values are the ranges."""
    first: int | None = None
    signed: ClassVar[bool]
    name = "8 bits"
    allowed = ("first in (0, inf)", "scale in (0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        stated = [key for key in ("scale", "ranges", "calibration") if getattr(self, key) is not None]
        if len(stated) > 1:
            raise Conflict(f"stored={self.name}", " and ".join(stated), "one of scale, ranges and calibration")
        if self.zero and self.scale is None:
            raise Conflict(f"stored={self.name}", "zero alone", "zero with scale only", fix="state scale")
        low, high = (-128, 127) if self.signed else (0, 255)
        if not low <= self.zero <= high:
            raise OutOfRange(f"stored={self.name}: zero", self.zero, f"a level in {low}..{high}")

    def fitted(self, width: int, sample: Sample) -> Kept:
        kept = self.kept_width(width)
        if self.scale is not None:
            return Levels(kept, torch.tensor([self.scale]), torch.zeros(1), self.zero, self.signed)
        if self.ranges is not None:
            stated = _array(self.ranges, "ranges")
            if stated.shape not in ((2, width), (2, kept)):
                raise OutOfRange(f"ranges {self.ranges}", Described(f"shape {stated.shape}"), f"{RANGES}, (2, {width})")
            low, high = torch.from_numpy(stated[:, :kept])
        else:
            ends = [torch.stack(each.aminmax(dim=0)) for each in _sampled(sample, self.calibration, width)]
            low, high = torch.stack(ends)[:, 0, :kept].amin(0), torch.stack(ends)[:, 1, :kept].amax(0)
        if bool((high < low).any()):
            worst = int((high < low).nonzero()[0])
            got = Described(f"{float(low[worst]):g} to {float(high[worst]):g} for feature {worst}")
            raise OutOfRange(f"ranges {self.ranges}", got, RANGES, fix="exchange the rows")
        step = (high.double() - low.double()) / 255
        return Levels(kept, step.float(), low.float(), -128 if self.signed else 0, self.signed)


@final
class Int8(_Integer):
    """Signed bytes."""

    name = "int8"
    signed = True


@final
class UInt8Form(_Integer):
    """Unsigned bytes."""

    name = "uint8"
    signed = False


@final
@dataclass(frozen=True)
class Binary(Form):
    """One bit per feature, compared by Hamming distance."""

    threshold: float = 0.0
    """Larger values have the bit 1."""
    calibration: str | None = None
    """Embeddings or images whose mean per feature is the threshold."""
    first: int | None = None
    name = "binary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not abs(self.threshold) < inf:
            raise OutOfRange("stored=binary: threshold", self.threshold, "a finite number")
        if self.threshold and self.calibration is not None:
            raise Conflict("stored=binary", "both", "threshold or calibration")

    def unpacked(self, columns: int) -> int:
        return 8 * columns

    def fitted(self, width: int, sample: Sample) -> Kept:
        kept = self.kept_width(width)
        if kept % 8:
            fix = f"state first={kept - kept % 8}" if kept > 8 else ""
            raise OutOfRange("stored=binary: features", kept, "a multiple of 8, because bytes hold 8 bits", fix=fix)
        if self.calibration is None:
            return Signs(kept, torch.tensor([self.threshold]))
        sums = [(each.double().sum(0), len(each)) for each in _sampled(sample, self.calibration, width)]
        mean = torch.stack([total for total, _ in sums]).sum(0) / sum(count for _, count in sums)
        return Signs(kept, mean[:kept].float())


@final
@dataclass(frozen=True)
class ProductQuantised(Form):
    """The nearest of up to 256 centres in each part of a vector."""

    codebook: str
    """``.npy`` file of centres (parts, centres, features of a part), or the file of a FAISS index IndexPQ."""
    first: int | None = None
    name = "pq"
    example = "codebook.npy"

    def _centres(self) -> Float[np.ndarray, "m k s"]:
        if self.codebook.lower().endswith(faiss_files.SUFFIXES):
            return faiss_files.codebook(Path(self.codebook).expanduser())
        return _array(self.codebook, "codebook")

    def unpacked(self, columns: int) -> int:
        return int(columns * self._centres().shape[-1])

    def fitted(self, width: int, sample: Sample) -> Kept:
        centres, kept = self._centres(), self.kept_width(width)
        what = f"codebook {self.codebook}"
        if centres.ndim != 3 or not 2 <= centres.shape[1] <= CENTRES:
            expected = f"(parts, centres, features of a part) with 2..{CENTRES} centres"
            raise OutOfRange(what, Described(f"shape {centres.shape}"), expected)
        if centres.shape[0] * centres.shape[2] != kept:
            held = f"{centres.shape[0]} parts of {centres.shape[2]} features"
            raise OutOfRange(what, Described(held), f"for {kept} features, as embeddings have")
        return Products(kept, torch.from_numpy(centres))


FORMS: dict[str, type[Form]] = {
    kind.name: kind for kind in (Float32, Float16, Int8, UInt8Form, Binary, ProductQuantised)
}


def _array(name: str, what: str) -> Float[np.ndarray, "..."]:
    """Return the finite numbers of a ``.npy`` file in float32."""
    path = Path(name).expanduser()
    if path.suffix.lower() != ".npy" or not path.is_file():
        raise Unreadable(f"{what} {name}", "it is no .npy file", fix="check the path")
    values = read_numpy(path, lambda: np.load(path, allow_pickle=False))
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        got = Described("NaN or infinity") if values.dtype.kind == "f" else values.dtype
        raise OutOfRange(f"{what} {name}", got, "finite floating-point numbers")
    return np.ascontiguousarray(values, np.float32)


def _sampled(sample: Sample, name: str | None, width: int) -> Iterator[Float[Tensor, "b d"]]:
    """Yield batches of finite embeddings of ``width`` features to fit to."""
    for codes in sample(name):
        if codes.ndim != 2 or codes.shape[1] != width:
            raise OutOfRange("calibration", Described(f"shape {tuple(codes.shape)}"), f"embeddings (n, {width})")
        if not bool(torch.isfinite(codes).all()):
            raise OutOfRange("calibration", Described("NaN or infinity"), "finite embeddings")
        yield codes.float()
