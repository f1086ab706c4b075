"""The API reference lists every option of a verb, though its source has ``**options``."""

from __future__ import annotations

import inspect
import runpy
from typing import Any

import pytest

from holdfast.commands import drift
from tests.pages import ROOT

griffe: Any = pytest.importorskip("griffe", reason="griffe is not installed: pip install mkdocstrings[python]")


def test_options_are_shown_with_their_defaults_and_words() -> None:
    shown = runpy.run_path(str(ROOT / "scripts" / "site_options.py"))["Options"]()
    loader = griffe.GriffeLoader(extensions=griffe.load_extensions(shown), search_paths=[ROOT / "src"])
    found = loader.load("holdfast.commands.drift")["drift"]
    signature = inspect.signature(drift.drift).parameters
    assert [each.name for each in found.parameters] == list(signature)
    assert found.parameters["batch_size"].default == str(signature["batch_size"].default)
    assert found.parameters["batch_size"].annotation == "int"
    assert "device:" in found.docstring.value
    assert "**options" not in found.docstring.value
