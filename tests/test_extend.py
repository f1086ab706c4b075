"""The names for extensions: each exists, is the library's own, and is loaded only when used."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from holdfast import extend
from tests.pages import DOCS, ROOT
from tests.test_layers import loaded


@pytest.mark.parametrize("name", extend.__all__)
def test_a_name_is_what_its_module_defines(name: str):
    assert getattr(extend, name) is vars(import_module(f"holdfast.{extend._HOMES[name]}"))[name]


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(str(extend.__file__)).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"holdfast.{home}" for name, home in extend._HOMES.items()}


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
        _ = extend.Evaluatoin
