"""The API reference lists every option of a verb, though its source has ``**options``."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from holdfast.commands import drift
from tests.pages import ROOT

griffe: Any = pytest.importorskip("griffe", reason="griffe is not installed: pip install mkdocstrings[python]")


def test_options_are_shown_with_their_defaults_and_words(tmp_path: Path) -> None:
    for name in ("__init__.py", "commands/__init__.py", "commands/drift.py"):  # reading all of the package takes long
        (tmp_path / "holdfast" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / "src" / "holdfast" / name, tmp_path / "holdfast" / name)
    shown = runpy.run_path(str(ROOT / "scripts" / "site_options.py"))["Options"]()
    loader = griffe.GriffeLoader(extensions=griffe.load_extensions(shown), search_paths=[tmp_path])
    found = loader.load("holdfast.commands.drift")["drift"]
    signature = inspect.signature(drift.drift).parameters
    assert [each.name for each in found.parameters] == list(signature)
    assert found.parameters["batch_size"].default == str(signature["batch_size"].default)
    assert found.parameters["batch_size"].annotation == "int"
    assert "device:" in found.docstring.value
    assert "**options" not in found.docstring.value
