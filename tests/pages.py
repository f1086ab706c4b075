"""The pages of the documentation, taken apart for its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
FENCE = re.compile(r"(<!-- not run: .+? -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page that are meant to run."""
    return [code for skipped, found, code in FENCE.findall(page.read_text()) if found == language and not skipped]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Each heading of a page with what follows it, up to the next heading."""
    parts = re.split(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return zip(parts[1::2], parts[2::2], strict=True)


@cache  # hundreds of tests look into one page, which none of them changes
def section(page: Path, title: str) -> str:
    return next(body for heading, body in sections(page) if heading == title)


def rows(body: str) -> dict[str, list[str]]:
    """The rows of the first table in ``body`` by their first cell, without the marks of code."""
    table = re.search(r"(^\|.*\n)+", f"{body}\n", re.MULTILINE)
    lines = table[0].splitlines()[2:] if table else []
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def slug(heading: str) -> str:
    """The anchor that the site gives a heading."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())
