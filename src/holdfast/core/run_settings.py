"""Settings of a run: seed, device, precision and batch size.

Full float32 precision on GPUs is switched on here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError, UnknownName, check_known, check_whole, explained, out_of_memory, warn
from holdfast.core.noise import Noise


def factors_are_rounded() -> bool:
    """True if torch may round factors of float32 products on NVIDIA GPUs (TF32)."""
    backends: Any = torch.backends
    try:
        return bool(backends.cudnn.allow_tf32 or backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # set by the newer of torch's two interfaces, beside which the older one refuses to be read
        return "tf32" in (backends.cudnn.conv.fp32_precision, backends.cuda.matmul.fp32_precision)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute convolutions in full float32: NVIDIA GPUs round factors otherwise (TF32).

    Without this, embeddings of a ResNet-50 differ by 4e-4 between a GPU and a CPU; with it by 2e-6.
    """
    cudnn: Any = torch.backends.cudnn
    try:
        before = cudnn.allow_tf32
    except RuntimeError:  # as above
        yield
        return
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


Observed = dict[str, Tensor]
"""What was seen of some samples: named tensors whose first axis runs over those samples."""

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class RunSettings:
    """Seeds, device, precision and batch size; only seeds and precision may change a result."""

    seed: int = 0
    """Seed of the choice of images and, without ``attack_seed``, of all draws."""
    device: str = "cpu"
    """Device that computes, such as ``cpu`` or ``cuda``."""
    precision: str = "float32"
    """Floating-point type of embeddings, such as ``float32``."""
    batch_size: int = 256
    """Images per batch, 1 or more."""
    attack_seed: int | None = None
    """Seed of the draws for each image; None uses ``seed``."""
    workers: str | None = None
    """Device of the machines that work is sent to; this machine need not have one."""
    fitting: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Batch size that fitted into memory, by the name of the work; a memory, no setting."""

    def __post_init__(self) -> None:
        check_whole(self.seed, "seed")
        check_whole(self.batch_size, "batch_size", 1)
        if self.attack_seed is not None:
            check_whole(self.attack_seed, "attack_seed")
        check_known("precision", self.precision, PRECISIONS)
        kind, _ = _kind(self.device), _kind(self.computes_on)
        if kind == "cuda" and not torch.cuda.is_available():
            raise HoldfastError(f"device {self.device!r} was asked for but torch sees no GPU; use --device cpu")
        if kind == "cuda" and (torch.device(self.device).index or 0) >= torch.cuda.device_count():
            known = ", ".join(f"cuda:{index}" for index in range(torch.cuda.device_count()))
            raise HoldfastError(f"device {self.device!r} was asked for but torch sees {known} alone; name one of these")
        if kind not in ("cpu", "cuda"):
            with explained(f"device {self.device!r} cannot be used", "use --device cpu"):
                torch.zeros(1, device=self.device).tolist()

    @property
    def computes_on(self) -> str:
        """Return the device that does the work, here or elsewhere."""
        return self.workers or self.device

    @property
    def dtype(self) -> torch.dtype:
        """Torch type of pixels and embeddings."""
        return PRECISIONS[self.precision]

    def noise(self, ids: Sequence[str]) -> Noise:
        """Return the random streams of samples ``ids`` on this run's device."""
        return Noise.of(self.seed if self.attack_seed is None else self.attack_seed, ids, self.device)

    def batches(self, rows: Sequence[int], work: Callable[[Sequence[int]], Observed], name: str = "") -> Observed:
        """Run ``work`` over all ``rows``, in batches that halve whenever memory runs out.

        Args:
            rows: Rows to work on.
            work: Function from some rows to tensors whose first axis runs over these rows.
            name: Name under which a batch size that fits is remembered; empty remembers nothing.

        Returns:
            Tensors of all rows, by name.

        Raises:
            HoldfastError: Not even one sample fits into memory.
        """
        size = min(self.batch_size, self.fitting.get(name, self.batch_size))
        parts = []
        for fits, part in _halving(rows, work, size):
            parts.append(part)
            if fits < size:
                size = fits
                warn(
                    f"{name or 'a batch'} does not fit into memory whole: {size} samples at a time from here on, which "
                    f"changes no result; --batch-size {size} says so from the beginning"
                )
                if name:
                    self.fitting[name] = size
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _kind(device: str) -> str:
    try:
        return torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise UnknownName("device", str(device), ("cpu", "cuda", "cuda:1", "mps")) from error


def _halving(
    rows: Sequence[int], work: Callable[[Sequence[int]], Observed], size: int
) -> Iterator[tuple[int, Observed]]:
    """Yield how many samples at a time fit into memory so far, and what ``work`` makes of the next of ``rows``."""
    start = 0
    while start < len(rows):
        batch = rows[start : start + size]
        try:
            with without_tf32():
                part = work(batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(batch) == 1:
                raise HoldfastError(
                    "one single sample does not fit into memory; use a smaller encoder or image"
                ) from error
            part = None
        if part is None:  # only here has Python let go of the error, and with it of what the failed attempt had made
            size = len(batch) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        yield size, part
        start += len(batch)
