"""Every program and configuration that the documentation shows runs."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.commands.train import read_recipe
from holdfast.run.request import Request, keywords, planned
from tests.marks import rest_slow
from tests.pages import FENCE, ROOT, blocks, every_page

# That of a real encoder needs packages and minutes, and has a test of its own.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "real_encoder.py")
LONG = [script for script in EXAMPLES if script.name in ("notebook.py", "synbench_probing.py")]
SHORT = [script for script in EXAMPLES if script not in LONG]


@pytest.mark.slow
@every_page
def test_programs_in_the_documentation_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of a page, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "__main__"}
    for code in blocks(page, "python"):
        exec(compile(code, f"a block of {page.name}", "exec", dont_inherit=True), space)


@every_page
def test_names_that_programs_in_the_documentation_import_are_there(page: Path) -> None:
    trees = [ast.parse(code) for code in blocks(page, "python")]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for one in (node for node in imports if (node.module or "").startswith("holdfast")):
        assert [name.name for name in one.names if not hasattr(import_module(str(one.module)), name.name)] == []


@every_page
def test_configurations_in_the_documentation_are_understood(page: Path, tmp_path: Path) -> None:
    for code in blocks(page, "toml"):
        content = tomllib.loads(code)
        if "objective" in content:
            assert read_recipe(content, {}, {})
        elif "project" not in content:
            (tmp_path / "run.toml").write_text(code)
            assert planned(Request.of(**keywords({}, tmp_path / "run.toml")))


def test_the_readme_shows_the_example_of_ten_lines() -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    assert code == (ROOT / "examples" / "ten_lines.py").read_text()


@pytest.mark.parametrize("script", rest_slow([*SHORT, *LONG], len(SHORT)), ids=lambda script: script.name)
def test_examples_run(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")


@every_page
def test_blocks_that_do_not_run_say_why(page: Path) -> None:
    text = page.read_text()
    assert text.count("<!-- not run: ") == sum(bool(skipped) for skipped, _, _ in FENCE.findall(text))
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text)), "a fence is not closed"
