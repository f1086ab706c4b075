"""What must hold of a ``.pt2`` archive before torch may read it: tensors and a graph, no objects and no code.

``torch.export.load`` falls back to unrestricted unpickling for some records, imports the modules that serialized
structures name and evaluates shape expressions. Here every record is looked at first, and torch is given an archive of
the very records that were looked at: two readers may find different records in one file.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import HoldfastError
from holdfast.encoders.reference import first_line
from holdfast.encoders.zipped import check_expansion

HARMLESS = re.compile(
    r"(data/weights/weight_\d+|data/constants/tensor_\d+|extra/.*|\.data/\w+|(archive_)?(format|version)|byteorder)"
)
TENSORS = re.compile(r"(data/(weights|constants|sample_inputs)/model|serialized_\w+)\.pt")
STRUCTURES = re.compile(r"(models/model|data/(weights|constants)/model_\w+|serialized_\w+)\.json")
IMPORTING = ("__enum__", "default_factory_module", "\\u")
ALGEBRA = (
    ast.Expression,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.keyword,
    ast.Compare,
    ast.UnaryOp,
    ast.BinOp,
    ast.BoolOp,
)
OPERATORS = (ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


def checked_archive(path: Path) -> io.BytesIO:
    """Return an archive of all records of the one at ``path``, each of which is plain data.

    Raises:
        HoldfastError: it is damaged, unpacks to more than it holds, or reading it could run code.
    """
    checked = io.BytesIO()
    try:
        check_expansion(path, f"'{path}'")
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(checked, "w") as copy:
            _check_names(archive.namelist())
            for record in archive.namelist():
                content = archive.read(record)
                _check_record(record.partition("/")[2] or record, content)
                copy.writestr(record, content)
    except _CodeFoundError as error:
        raise HoldfastError(
            f"'{path}' is refused, because reading it could run code ({error}); "
            "export it again with a recent torch, from a module whose inputs and outputs are plain tensors"
        ) from error
    except HoldfastError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise HoldfastError(
            f"'{path}' is no exported program ({first_line(error)}); it may be truncated: copy or export it again"
        ) from error
    checked.seek(0)
    return checked


class _CodeFoundError(Exception):
    """Which record is more than data."""


def _check_names(records: Sequence[str]) -> None:
    # torch finds records whatever their case.
    counted = Counter(record.casefold() for record in records)
    for record in records:
        if counted[record.casefold()] > 1:
            raise _CodeFoundError(f"two records are called {record}")


def _check_record(record: str, content: bytes) -> None:
    if TENSORS.fullmatch(record):
        _check_tensors(record, content)
    elif STRUCTURES.fullmatch(record):
        for key, value in _leaves("", json.loads(content)):
            _check_leaf(record, key, value)
    elif not HARMLESS.fullmatch(record):
        raise _CodeFoundError(f"unexpected record {record}")


def _check_tensors(record: str, content: bytes) -> None:
    check_expansion(io.BytesIO(content), f"its record {record}")
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise _CodeFoundError(f"{record} holds more than tensors") from error


def _check_leaf(record: str, key: str, value: Any) -> None:
    if key == "use_pickle" and value:
        raise _CodeFoundError(f"{record} holds a pickled tensor")
    if not isinstance(value, str):
        return
    if any(word in value for word in IMPORTING):
        raise _CodeFoundError(f"{record} names a module to import")
    if key == "expr_str" and not _is_algebra(value):
        raise _CodeFoundError(f"{record} holds the expression {value[:40]!r}")


def _is_algebra(expression: str) -> bool:
    """Return whether evaluating a shape expression can only build a formula.

    Example:
        >>> _is_algebra("Mul(Integer(2), Symbol('s31', positive=True, integer=True))"), _is_algebra("open('x', 'w')")
        (True, False)
    """
    try:
        parts = list(ast.walk(ast.parse(expression, mode="eval")))
    except (SyntaxError, ValueError):
        return False
    # The constructors of formulas are classes with capital names, except for two; Python's own functions are not.
    return all(
        isinstance(part, (*ALGEBRA, *OPERATORS))
        or (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Name)
            and (part.func.id[0].isupper() or part.func.id in ("floor", "ceiling"))
        )
        for part in parts
    )


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value with the key it stands under; recorded stack traces are text that nothing reads."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name != "metadata":
                yield from _leaves(name, part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(key, part)
    else:
        yield key, value
