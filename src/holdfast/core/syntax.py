"""The code of a function as text that depends neither on the version of Python nor on layout.

A function is described by its syntax tree without docstrings, annotations and statements without effect. The tree is read
from the source file and used only if it compiles to exactly this code, so a file edited after its import is not used. Code
without such a source is described by its bytecode, which differs between versions of Python.

This module imports nothing but Python, so that several versions of Python can be compared.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SAYS_NOTHING = frozenset(("annotation", "returns", "type_comment", "type_params", "ctx", "kind", "simple"))
"""Fields of syntax trees that compute nothing; some versions of Python lack a few of them."""


def code_text(code: CodeType) -> Iterator[str]:
    """Text that differs if functions of this code object compute something else.

    Example:
        >>> def plain(x): return x + 1
        >>> def documented(x: int) -> int:
        ...     "Return the next number."
        ...     return (x + 1)  # a comment
        >>> list(code_text(plain.__code__)) == list(code_text(documented.__code__))
        True
    """
    if _is_library(code):  # whose versions change code without changing results
        yield f"library {code.co_qualname}"
    elif (node := _node(code)) is not None:
        yield _canonical(node)
    else:
        yield from _bytecode(code)


def has_source(code: CodeType) -> bool:
    """True if every version of Python describes this code object alike."""
    return _is_library(code) or _node(code) is not None


def _is_library(code: CodeType) -> bool:
    torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "")
    file = code.co_filename
    standard = file.startswith(_STANDARD) and not file.startswith((_STANDARD + "site-", _STANDARD + "dist-"))
    return standard or file.startswith("<frozen ") or bool(torch and file.startswith(torch + os.sep))


def _bytecode(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _bytecode(constant)
        else:
            yield _constant(constant)


def _constant(value: object) -> str:
    """Return a constant as text; the order within a set differs from process to process."""
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    return (
        f"({', '.join(map(_constant, value))})" if isinstance(value, tuple) else ascii(value)
    )  # what is printable differs


def _node(code: CodeType) -> _Function | None:
    """Return the syntax tree of ``code``, or None where none compiles to it."""
    for attempt in range(2):
        if attempt:
            linecache.checkcache(code.co_filename)  # reloaded since its lines were first read
        lines = linecache.getlines(code.co_filename)
        if lines and (found := _compiled("".join(lines), code)) is not None:
            return found
    return None


@lru_cache(maxsize=4096)
def _compiled(source: str, code: CodeType) -> _Function | None:
    line, statements = code.co_firstlineno, _parsed(source)
    for statement in statements:
        if _first_line(statement) <= line <= (statement.end_lineno or 0):
            # What a file imports decides how calls of it are compiled; other functions and classes decide nothing.
            body = [part for part in statements if part is statement or not isinstance(part, _Definition)]
            flags = code.co_flags & __future__.annotations.compiler_flag  # of a console, or of another cell
            if code in _inside(compile(ast.Module(body, []), code.co_filename, "exec", flags, dont_inherit=True)):
                return _found(statement, code)
    return None


@lru_cache(maxsize=64)
def _parsed(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):  # as edited meanwhile, or no Python
        return []


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


def _found(statement: ast.stmt, code: CodeType) -> _Function | None:
    """Return the function in ``statement`` that has this ``code``."""
    nodes = (node for node in ast.walk(statement) if isinstance(node, _Function))
    there = [node for node in nodes if _first_line(node) == code.co_firstlineno and _name(node) == code.co_name]
    if len(there) > 1:  # several in one line: the innermost that holds all instructions
        unnamed = [node for node in there if isinstance(node, ast.Lambda) and _holds(node.body, code)]
        return max(unnamed, key=lambda node: (node.body.lineno, node.body.col_offset), default=None)
    return there[0] if there else None


def _holds(node: ast.expr, code: CodeType) -> bool:
    """Whether ``code`` states the columns of its instructions, and all lie within ``node``."""
    columns = [
        ((line, column), (end, end_column))
        for line, end, column, end_column in code.co_positions()
        if line is not None and end is not None and column is not None and end_column
    ]
    first, last = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return bool(columns) and all(first <= start and stop <= last for start, stop in columns)


def _first_line(node: ast.stmt | ast.Lambda) -> int:
    return min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", ()))])


def _name(node: _Function) -> str:
    return getattr(node, "name", "<lambda>")


def _canonical(node: _Function) -> str:
    """Return a function as text, without its name, which says nothing of what it computes."""
    arguments = _written(node.args)
    body = _written(node.body) if isinstance(node, ast.Lambda) else _statements(node.body)
    if isinstance(node, ast.Lambda):
        return f"{arguments} [Return(value={body})]"
    return f"{arguments} {body} {_written(node.decorator_list)} {isinstance(node, ast.AsyncFunctionDef)}"


def _written(value: object) -> str:
    """Return a node, a list of nodes or a constant as text; fields that are empty or say nothing are left out."""
    if isinstance(value, list):
        parts = value
        if parts and isinstance(parts[0], ast.stmt):
            return _statements(parts)
        return f"[{', '.join(map(_written, parts))}]"
    if not isinstance(value, ast.AST):
        return _constant(value)
    if isinstance(value, ast.AnnAssign) and value.value is not None:
        return _written(ast.Assign(targets=[value.target], value=value.value))
    if isinstance(value, ast.JoinedStr):  # some versions of Python keep empty texts within
        value = ast.JoinedStr([part for part in value.values if getattr(part, "value", None) != ""])
    fields = {name: part for name, part in ast.iter_fields(value) if name not in _SAYS_NOTHING}
    if not isinstance(value, ast.Constant):
        fields = {name: part for name, part in fields.items() if part is not None and part != []}
    return f"{type(value).__name__}({', '.join(f'{name}={_written(fields[name])}' for name in sorted(fields))})"


def _statements(body: list[ast.stmt]) -> str:
    """Return statements as text, without those that do nothing: docstrings, ``pass``, annotations without value."""
    return f"[{', '.join(_written(part) for part in body if not _does_nothing(part))}]"


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.AnnAssign) and statement.value is None)
