"""Sentences of errors and warnings are short and use the glossary's words, wherever the library raises them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from holdfast.core.errors import LONGEST

SRC = Path(__file__).parents[1] / "src" / "holdfast"
KINDS = {"CannotBound", "Conflict", "NotMeasured", "OutOfRange", "UnknownName", "Unreadable"}
DEMAND = re.compile(r"\bmust (be|have shape|lie in|return|give)\b(?! proved)")
"""What ``OutOfRange`` says from its facts."""
OLD = re.compile(r"\b(nobody|somebody|whoever|anew|at hand|codes|so many|kept apart)\b", re.IGNORECASE)
"""What the glossary replaces."""


def written(node: ast.AST) -> str:
    """Return the text of ``node`` with a short stand-in for each value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return ""


def sentences(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield place, class and text of each error that a module makes and of each warning that it gives."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "warn" or name.endswith("Error") or name in KINDS:
            text = " ".join(filter(None, map(written, [*node.args, *(key.value for key in node.keywords)])))
            if text:
                yield f"{path.relative_to(SRC)}:{node.lineno}", name, text


@cache  # and not while tests are collected, which each process does
def everywhere() -> list[tuple[str, str, str]]:
    return [found for path in sorted(SRC.rglob("*.py")) for found in sentences(path)]


def test_the_search_finds_them() -> None:
    assert len(everywhere()) > 800


def test_no_sentence_is_longer_than_a_reader_reads() -> None:
    assert [(place, len(text)) for place, _, text in everywhere() if len(text) > LONGEST] == []


def test_a_value_out_of_range_is_an_error_with_its_facts() -> None:
    """A program reads argument, value and demand from ``OutOfRange``; of a plain error it has the sentence alone."""
    plain = [(place, text) for place, name, text in everywhere() if name == "HoldfastError"]
    assert len(plain) > 500, "vacuous: plain errors are not found"
    assert [(place, text) for place, text in plain if DEMAND.search(text)] == []


@pytest.mark.parametrize("folder", sorted(path.name for path in SRC.iterdir() if path.is_dir()))
def test_no_sentence_has_a_word_that_the_glossary_replaces(folder: str) -> None:
    found = [(place, text) for place, _, text in everywhere() if place.startswith(f"{folder}/") and OLD.search(text)]
    assert found == []
