"""The names for extensions: each exists, is the library's own, and is loaded only when used."""

from __future__ import annotations

import ast
import re

import pytest

from holdfast import extend
from tests.pages import DOCS, ROOT
from tests.test_layers import loaded


@pytest.mark.parametrize("name", extend.__all__)
def test_a_name_exists(name: str):
    assert getattr(extend, name) is not None


def test_the_page_asks_for_nothing_else():
    shown = re.findall(r"^```python\n(.*?)^```$", (DOCS / "extending.md").read_text(), re.M | re.S)
    code = "\n".join([*shown, *(path.read_text() for path in (ROOT / "examples" / "extending").rglob("*.py"))])
    imports = ast.walk(ast.parse(re.sub(r"(?m)^from __future__.*$", "", code)))
    named = {
        alias.name
        for node in imports
        if isinstance(node, ast.ImportFrom) and node.module == "holdfast.extend"
        for alias in node.names
    }
    assert named == set(extend.__all__)


def test_nothing_is_loaded_before_it_is_used():
    assert "torch" not in loaded("import holdfast.extend; dir(holdfast.extend)")


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="Evaluatoin"):
        _ = extend.Evaluatoin  # type: ignore[attr-defined]
