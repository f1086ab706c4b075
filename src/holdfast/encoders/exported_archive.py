"""What must hold of a ``.pt2`` archive before torch may read it: tensors and a graph, no objects and no code.

``torch.export.load`` falls back to unrestricted unpickling for some records, imports the modules that serialized
structures name and evaluates shape expressions. Here every record is looked at first.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from holdfast.encoders.reference import first_line
from holdfast.errors import HoldfastError

HARMLESS = re.compile(
    r"(data/weights/weight_\d+|data/constants/tensor_\d+|extra/.*|\.data/\w+|(archive_)?(format|version)|byteorder)"
)
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


def check_archive(path: Path) -> None:
    """Raise unless every record of the archive is plain data."""
    try:
        with zipfile.ZipFile(path) as archive:
            for record in archive.namelist():
                _check_record(record.partition("/")[2] or record, archive.read(record))
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HoldfastError(
            f"'{path}' is no exported program ({first_line(error)}); it may be truncated: copy or export it again"
        ) from error
    except _CodeFoundError as error:
        raise HoldfastError(
            f"'{path}' is refused, because reading it could run code ({error}); "
            "export it again with a recent torch, from a module whose inputs and outputs are plain tensors"
        ) from error


class _CodeFoundError(Exception):
    """Which record is more than data."""


def _check_record(record: str, content: bytes) -> None:
    if record.endswith(".pt"):
        try:
            torch.load(io.BytesIO(content), weights_only=True)
        except Exception as error:
            raise _CodeFoundError(f"{record} holds more than tensors") from error
    elif record.endswith(".json"):
        for key, value in _leaves("", json.loads(content)):
            _check_leaf(record, key, value)
    elif not HARMLESS.fullmatch(record):
        raise _CodeFoundError(f"unexpected record {record}")


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
