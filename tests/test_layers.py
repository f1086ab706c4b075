"""Imports point downward, and importing the library is cheap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.facts import says

ROOT = Path(__file__).parents[1]
HERE = {**os.environ, "PYTHONPATH": str(ROOT / "src")}  # this source, wherever another copy may be installed
HEAVY = ("scipy", "sklearn", "matplotlib", "jinja2", "timm", "torchvision", "transformers", "datasets", "onnx", "ray")


def lint(config: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter as its command does."""
    command = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    arguments = [sys.executable, "-c", command, "--no-cache", "--config", str(config)]
    return subprocess.run(arguments, cwd=ROOT, env=HERE, capture_output=True, text=True)


def loaded(statement: str) -> set[str]:
    """Return the top-level packages that a fresh process holds after ``statement``."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=HERE, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_the_layers_hold():
    done = lint(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def test_the_law_of_layers_is_awake(tmp_path: Path):
    upside_down = tmp_path / "upside_down.toml"
    upside_down.write_text(
        """
        [tool.importlinter]
        root_package = "holdfast"
        [[tool.importlinter.contracts]]
        name = "Upside down"
        type = "layers"
        layers = ["holdfast.core", "holdfast.measure", "holdfast.cli"]
        """
    )
    done = lint(upside_down)
    assert done.returncode == 1
    assert says(done.stdout, "holdfast.measure", "holdfast.core", "allowed")
    assert says(done.stdout, "holdfast.cli", "holdfast.core", "allowed")


def test_importing_the_library_loads_no_torch():
    found = loaded("import holdfast")
    assert "holdfast" in found
    assert not found & {*HEAVY, "torch", "numpy", "pydantic", "jaxtyping", "typer", "rich"}


@pytest.mark.parametrize(
    ("names", "torch"), [("Result", False), ("Encoder, Images, Linf, RunSettings, Evaluation", True)]
)
def test_the_types_load_torch_at_most(names: str, torch: bool):
    found = loaded(f"from holdfast import {names}")
    assert not found & {*HEAVY, "typer", "rich"}
    assert ("torch" in found) == torch


def test_every_public_name_exists():
    import holdfast

    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert {*dir(holdfast), "__version__"} == set(holdfast.__all__)
    with pytest.raises(AttributeError, match="encoder_"):
        _ = holdfast.encoder_  # type: ignore[attr-defined]
