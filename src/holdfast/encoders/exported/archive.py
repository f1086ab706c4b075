"""What must hold of a ``.pt2`` archive before torch may read it: tensors and a graph, no objects and no code.

``torch.export.load`` falls back to unrestricted unpickling for some records, evaluates shape expressions and writes
Python source from names. So everything that may appear is listed, records here and JSON in ``program``, and torch
is given an archive written anew from what is on the list: two readers may find different records in one file.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from holdfast.core.errors import HoldfastError
from holdfast.encoders.exported.program import PROGRAM, payload
from holdfast.encoders.exported.rules import UnlistedError
from holdfast.encoders.loading.reference import first_line
from holdfast.encoders.loading.zipped import check_expansion

RAW = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|\.data/(version|serialization_id)|(archive_)?(format|version)"
    r"|byteorder"
)
TENSORS = re.compile(r"(data/(weights|constants)/model|serialized_(state_dict|constants))\.pt")
UNUSED = re.compile(r"extra/.*|(data/sample_inputs/model|serialized_example_inputs)\.pt")
"""Records that nothing reads here; torch is given empty ones."""
DOCUMENTS = {
    "models/model.json": PROGRAM,
    "serialized_exported_program.json": PROGRAM,
    "data/weights/model_weights_config.json": payload("weight"),
    "data/constants/model_constants_config.json": payload("tensor"),
}


def checked_archive(path: Path) -> io.BytesIO:
    """Return an archive of what is on the list in the one at ``path``, which holds nothing else.

    Raises:
        HoldfastError: it is damaged, unpacks to more than it holds, or holds what is not on the list.
    """
    checked = io.BytesIO()
    try:
        check_expansion(path, f"'{path}'")
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(checked, "w") as copy:
            _check_names(archive.namelist())
            for record in archive.namelist():
                copy.writestr(record, _checked(record.partition("/")[2] or record, archive.read(record)))
    except UnlistedError as error:
        raise HoldfastError(
            f"'{path}' is refused, trusted or not: reading it could run code, because it holds more than tensors and a "
            f"graph of torch's operators on them ({error}); export it again with the torch that is installed, from a "
            "module whose inputs and outputs are plain tensors, or export it to ONNX"
        ) from error
    except HoldfastError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise HoldfastError(
            f"'{path}' is no exported program ({first_line(error)}); it may be truncated: copy or export it again"
        ) from error
    checked.seek(0)
    return checked


def _check_names(records: Sequence[str]) -> None:
    # torch finds records whatever their case.
    counted = Counter(record.casefold() for record in records)
    for record in records:
        if counted[record.casefold()] > 1:
            raise UnlistedError(f"two records are called {record}")


def _checked(record: str, content: bytes) -> bytes:
    """Return what torch is given as the record."""
    if UNUSED.fullmatch(record):
        return b""
    if record in DOCUMENTS:
        return json.dumps(DOCUMENTS[record](json.loads(content), record)).encode()
    if TENSORS.fullmatch(record):
        _check_tensors(record, content)
    elif not RAW.fullmatch(record):
        raise UnlistedError(f"unexpected record {record}")
    return content


def _check_tensors(record: str, content: bytes) -> None:
    check_expansion(io.BytesIO(content), f"its record {record}")
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise UnlistedError(f"{record} is not a dictionary of tensors alone") from error
