"""A run on disk: one JSON record per finished cell, one file per shard of what was observed.

A process may die at any moment. So every file is written beside its final name and moved there in one step, nothing is
rewritten in place, and whatever cannot be read back exactly (truncated, damaged, foreign) counts as never computed.

    run.json                          what was asked for, last
    results/EVALUATION-ENCODER-KEY.json
    failures/EVALUATION-ENCODER.json
    fits/FIT-KEY/CHECKSUM.safetensors
    shards/OBSERVATION-KEY/CHECKSUM.safetensors
    arrays/OBSERVATION-KEY/CHECKSUM.npy
    files.index                       image files found sound, and their digests

A shard says which samples it holds, so that a later run may cut its work differently and still use it: neither batch
size, device nor worker count is part of a key. An array is what the shards of one observation hold, one row after the
other, where a population's is too large to be held in memory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Shaped
from pydantic import ValidationError
from torch import Tensor

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_whole
from holdfast.core.images import Images
from holdfast.core.records import Failure, Record, Result
from holdfast.core.run import Observed, Run
from holdfast.protocol.evaluation import Evaluation, circumstances, parts, settings
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation

Kept = TypeVar("Kept", Result, Failure)
IDS = ".ids"
"""The tensor of each shard that spells its samples' ids (JSON as bytes)."""


class StoreError(HoldfastError):
    """The run's folder cannot be written: no cell can be kept, so the run ends."""


class Key(Record):
    """Everything that may change what a file holds; its digest names the file."""

    kind: str
    version: int
    settings: dict[str, Any]
    encoder: str
    images: str
    seed: int
    precision: str
    name: str = ""
    """The encoder's name: two names for the same weights share shards but are two columns of a table."""

    @property
    def digest(self) -> str:
        return checksum(json.dumps(self.model_dump(), sort_keys=True).encode())

    @property
    def stem(self) -> str:
        """A file name that a person can read and that is unique."""
        return "-".join(filter(None, (self.kind, _plain(self.name), self.digest)))


def key_of(
    what: Evaluation | Observation | Fit[Any], encoder: Encoder, images: Images, run: Run, bank: Images | None = None
) -> Key:
    """Return what identifies ``what`` of this encoder on these images; an evaluation also by what it is made from."""
    seen = parts(what.observation()) if isinstance(what, Evaluation) else ()
    made: dict[str, Any] = (
        {"observed": [key_of(part, encoder, images, run, bank).digest for part in seen]} if seen else {}
    )
    # What is learned follows from the settings, but for its version; results older than fits hold the first of each.
    learned = {} if isinstance(what, Fit) else {fit.name: fit.version for fit in what.fits() if fit.version > 1}
    made |= {"learned": learned} if learned else {}
    return Key(
        kind=what.name,
        version=what.version,
        settings={**settings(what), **circumstances(what, images, run, bank), **made},
        encoder=encoder.fingerprint,
        images=images.fingerprint,
        seed=run.seed,
        precision=run.precision,
        name=encoder.name if isinstance(what, Evaluation) else "",
    )


def _plain(name: str) -> str:
    """Return ``name`` as a piece of a file name."""
    return re.sub(r"[^\w.]+", "_", name)[:60]


def checksum(content: bytes) -> str:
    """Return the hash that names a file's content."""
    return blake2b(content, digest_size=8).hexdigest()


class Store:
    """The files of one run under ``folder``. Every write makes the folders it needs, or raises ``StoreError``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def request(self, content: str) -> None:
        """Record what was asked for, as JSON text."""
        self._write(self.folder / "run.json", content.encode())

    def export(self, name: str, content: bytes) -> None:
        """Write the file ``name`` below the folder, made of what is kept here and meant for people and programs."""
        self._write(self.folder / name, content)

    def result(self, key: Key) -> Result | None:
        """Return the finished cell ``key``, or None if it is missing or damaged."""
        return _record(self.folder / "results" / f"{key.stem}.json", Result)

    def finish(self, key: Key, result: Result) -> None:
        """Keep ``result`` as the cell ``key``, instead of what an earlier version found under the same protocol."""
        path = self.folder / "results" / f"{key.stem}.json"
        self._write(path, result.model_dump_json(indent=1).encode())
        for other in path.parent.glob(f"{key.kind}-*.json"):
            if other != path and (old := _record(other, Result)) and _cell(old) == _cell(result):
                other.unlink(missing_ok=True)

    def fail(self, failure: Failure) -> None:
        """Keep why a cell has no result."""
        self._write(self._failure(failure.evaluation, failure.encoder), failure.model_dump_json(indent=1).encode())

    def clear_failure(self, evaluation: str, encoder: str) -> None:
        """Forget that this cell failed, if it did: it is about to be tried again."""
        with suppress(OSError):
            self._failure(evaluation, encoder).unlink()

    def _failure(self, evaluation: str, encoder: str) -> Path:
        return self.folder / "failures" / f"{evaluation}-{_plain(encoder)}-{checksum(encoder.encode())}.json"

    def results(self) -> list[Result]:
        """Return every readable result under the folder: all that a report needs."""
        return _records(self.folder / "results", Result)

    def failures(self) -> list[Failure]:
        """Return every recorded failure."""
        return _records(self.folder / "failures", Failure)

    def keep(self, key: Key, ids: Sequence[str], observed: Observed) -> None:
        """Keep what was ``observed`` of the samples ``ids`` (tensors whose first axis runs over them)."""
        tensors = dict(observed)
        tensors[IDS] = torch.frombuffer(bytearray(json.dumps(list(ids)).encode()), dtype=torch.uint8)
        self._save(self._shards(key), tensors)

    def observed(self, key: Key, ids: Sequence[str]) -> tuple[list[str], Observed]:
        """Return which of ``ids`` were observed, in their order, and what was seen of them, row by row."""
        names: list[str] = []
        parts: list[Observed] = []
        for held, part in self._held(key):
            names += held
            parts.append(part)
        row = {name: position for position, name in reversed(list(enumerate(names)))}
        have = [name for name in ids if name in row]
        order = torch.tensor([row[name] for name in have], dtype=torch.int64)
        tensors = parts[0] if have else {}
        return have, {name: torch.cat([part[name] for part in parts])[order] for name in tensors}

    def array(self, key: Key, name: str, ids: Sequence[str]) -> Tensor | None:
        """Return tensor ``name`` of what was observed of all ``ids``, memory-mapped; None if some are missing.

        It is written once, shard by shard, so that no more than a shard is ever held.
        """
        folder = self.folder / "arrays" / key.stem
        for path in sorted(folder.glob("*.npy")):
            if (known := _mapped(path)) is not None:
                return known
        row = {name: position for position, name in enumerate(ids)}
        partial, whole, filled = folder / f".{os.getpid()}.npy", None, set[int]()
        try:
            for held, part in self._held(key):
                here = [position for position, sample in enumerate(held) if sample in row]
                rows, values = [row[held[position]] for position in here], _plain_numbers(part[name])[here]
                if whole is None:
                    folder.mkdir(parents=True, exist_ok=True)
                    whole = np.lib.format.open_memmap(partial, "w+", values.dtype, (len(ids), *values.shape[1:]))
                whole[rows] = values
                filled.update(rows)
            if whole is None or len(filled) < len(ids):
                return None
            whole.flush()
            path = folder / f"{_checksum_of(partial)}.npy"
            partial.replace(path)
        except OSError as error:
            raise _unwritable(partial, error) from error
        finally:
            with suppress(OSError):
                partial.unlink()
        return _mapped(path)

    def learned(self, key: Key) -> Observed | None:
        """Return what was learned under ``key``, or None if that is missing or damaged."""
        return next(_intact(self._fits(key)), None)

    def keep_learned(self, key: Key, learned: Observed) -> None:
        """Keep what was ``learned``."""
        self._save(self._fits(key), learned)

    def _held(self, key: Key) -> Iterator[tuple[list[str], Observed]]:
        for tensors in _intact(self._shards(key)):
            yield json.loads(tensors.pop(IDS).numpy().tobytes()), tensors

    def _shards(self, key: Key) -> Path:
        return self.folder / "shards" / key.stem

    def _fits(self, key: Key) -> Path:
        return self.folder / "fits" / key.stem

    def _save(self, folder: Path, tensors: Observed) -> None:
        # Cloned because tensors that share memory are refused.
        own = {name: values.detach().cpu().contiguous().clone() for name, values in tensors.items()}
        content = safetensors.torch.save(own)
        self._write(folder / f"{checksum(content)}.safetensors", content)

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_whole(path, content)
        except OSError as error:
            raise _unwritable(path, error) from error


def _intact(folder: Path) -> Iterator[Observed]:
    """Yield the tensors of each file in ``folder`` that reads back as it was written."""
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(OSError):
            content = path.read_bytes()
            if checksum(content) == path.stem:
                yield safetensors.torch.load(content)


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {path}: {error.strerror or error}; free some space or choose another --out "
        "(everything written before is kept)"
    )


def _plain_numbers(values: Tensor) -> Shaped[np.ndarray, "..."]:
    """Return ``values`` as an array; bfloat16, which numpy does not know, as the bits it has."""
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def _mapped(path: Path) -> Tensor | None:
    """Return the array at ``path`` without reading it into memory, or None if it is damaged."""
    with suppress(OSError, ValueError):
        if _checksum_of(path) == path.stem:
            # Copied when written to, so that torch need not warn: nobody writes.
            values = torch.from_numpy(np.load(path, mmap_mode="c"))
            return values.view(torch.bfloat16) if values.dtype == torch.int16 else values
    return None


def _checksum_of(path: Path) -> str:
    """Return ``checksum`` of the content of ``path``, read block by block."""
    digest = blake2b(digest_size=8)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _cell(result: Result) -> tuple[object, ...]:
    """Return what tells a cell of a report from others."""
    encoder = result.encoder.name, result.encoder.fingerprint
    return result.evaluation, result.version, encoder, result.images.fingerprint, result.settings


def _record(path: Path, kind: type[Kept]) -> Kept | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _records(folder: Path, kind: type[Kept]) -> list[Kept]:
    found = (_record(path, kind) for path in sorted(folder.glob("*.json")))
    return [record for record in found if record is not None]


def load(folder: Path) -> tuple[list[Result], list[Failure]]:
    """Return the results and failures of the run in ``folder``.

    Raises:
        HoldfastError: there is no run in it.
    """
    store = Store(folder)
    if not (folder / "run.json").is_file():
        raise HoldfastError(f"{folder} holds no run (no run.json); name the folder that was given as --out")
    return store.results(), store.failures()
