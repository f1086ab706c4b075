"""The API reference has every public name, and every public name has something to say there."""

from __future__ import annotations

import inspect
import re

import holdfast
from tests.pages import DOCS

LISTED = re.findall(r"^::: holdfast\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)


def test_every_public_name_is_listed_once() -> None:
    assert sorted(LISTED) == sorted(name for name in holdfast.__all__ if not name.startswith("__"))


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in LISTED if not inspect.getdoc(getattr(holdfast, name))] == []
