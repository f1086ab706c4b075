"""Phrases of an old dialect die out, and so do assertions that pin sentences: their counts only go down.

After a rewrite, ``python -m tests.test_prose`` lowers the stored counts; it never raises one.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).with_name("prose.json")
PHRASES = (
    "so many",
    "nobody",
    "whoever",
    "somebody",
    "kept apart",
    "than which",
    "foresee",
    "foretell",
    "foretold",
    "at hand",
    "is told",
    "are told",
    "anew",
    "learned nothing",
)
"""Phrases that are nearly always bad; "of which" and "but for" are good English half of the time, so they are left out."""


def texts() -> Iterator[str]:
    """Yield the text of the library's modules and of the pages."""
    for path in (ROOT / "README.md", *ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md")):
        yield path.read_text(encoding="utf-8")


def counted(text: str) -> dict[str, int]:
    """Return the number of uses of each phrase, also where a line ends within it."""
    return {
        phrase: len(re.findall(rf"\b{phrase}\b".replace(" ", r"[\s\"]+(?:f?\")?"), text, re.IGNORECASE))
        for phrase in PHRASES
    }


def pinned(source: str) -> int:
    """Return how many texts of four or more words in a row the assertions of a module pin, messages of errors included."""
    found = list[ast.expr]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            found += [keyword.value for keyword in node.keywords if keyword.arg == "match"]
        elif isinstance(node, ast.Assert):
            compared = [each for each in ast.walk(node.test) if isinstance(each, ast.Compare)]
            found += [side for each in compared for side in (each.left, *each.comparators)]
    texts = [each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return sum(bool(re.search(r"(?:[a-z]+ ){3}[a-z]+", text)) for text in texts)


PINNED = "pinned sentences"


@cache  # and not while tests are collected, which each process does
def everywhere() -> dict[str, int]:
    """Return the number of uses of each phrase, and of pinned sentences, in the whole tree."""
    tests = sum(pinned(path.read_text(encoding="utf-8")) for path in ROOT.glob("tests/**/*.py"))
    return {**counted("\n".join(texts())), PINNED: tests}


@pytest.mark.parametrize("phrase", [*PHRASES, PINNED])
def test_no_phrase_is_used_more_often_than_before(phrase: str) -> None:
    most = json.loads(STORED.read_text())[phrase]
    found = everywhere()[phrase]
    assert found <= most, f"{phrase!r} is used {found} times, before {most}: write it plainly"


def test_the_count_is_awake() -> None:
    assert counted('"so many " in whoever so\n    many, "so "\n f"many" but not so manyfold')["so many"] == 3
    assert sum(1 for _ in texts()) > 300
    assert pinned('assert "four words in a" in said\nassert said == "three words only"') == 1
    assert pinned('with raises(Error, match="all of them are wrong"):\n    assert said != 4') == 1
    assert set(json.loads(STORED.read_text())) == {*PHRASES, PINNED}


if __name__ == "__main__":
    old = json.loads(STORED.read_text()) if STORED.exists() else {}
    STORED.write_text(json.dumps({key: min(n, old.get(key, n)) for key, n in everywhere().items()}, indent=2) + "\n")
