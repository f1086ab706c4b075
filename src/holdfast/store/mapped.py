"""Arrays on disk that are mapped instead of read, for what is observed of more samples than fit into memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import numpy as np
import torch
from torch import Tensor

from holdfast.core.files import checksum_of
from holdfast.core.run_settings import Observed


def mapped(folder: Path) -> Tensor | None:
    """Return the array in ``folder`` without reading it into memory; None if there is none, or a damaged one."""
    for path in sorted(folder.glob("[!.]*.npy")):
        with suppress(OSError, ValueError):
            if checksum_of(path) == path.stem:
                # Copied when written to, so that torch need not warn: nobody writes.
                return torch.from_numpy(np.load(path, mmap_mode="c"))
    return None


def write_rows(
    folder: Path, shards: Iterable[tuple[Sequence[str], Observed]], name: str, row: Mapping[str, int]
) -> Tensor | None:
    """Return tensor ``name`` of ``shards`` as one array in ``folder``, each id in its ``row``; None if some are missing.

    Written as a file rather than through a map: a full disk is then an error, where a map would end the process.

    Raises:
        OSError: it cannot be written.
    """
    filled, start = np.zeros(len(row), dtype=bool), 0
    partial = folder / f".{os.getpid()}-{token_hex(4)}.npy"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("xb") as file:
            for ids_of_shard, tensors in shards:
                here = [position for position, sample in enumerate(ids_of_shard) if sample in row]
                rows = np.array([row[ids_of_shard[position]] for position in here])
                values = tensors[name].numpy()
                if not start:
                    header = {"descr": values.dtype.str, "fortran_order": False, "shape": (len(row), *values.shape[1:])}
                    np.lib.format.write_array_header_1_0(file, header)
                    start = file.tell()
                # Neighbouring rows at once: those of a shard mostly are.
                for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
                    file.seek(start + int(rows[run[0]]) * values[0].nbytes)
                    file.write(np.ascontiguousarray(values[[here[position] for position in run]]).data)
                filled[rows] = True
            file.flush()
            os.fsync(file.fileno())
        if not filled.all():
            return None
        partial.replace(folder / f"{checksum_of(partial)}.npy")
    finally:
        with suppress(OSError):
            partial.unlink()
    return mapped(folder)
