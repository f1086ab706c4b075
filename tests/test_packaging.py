"""What is installed is what is here: the wheel holds the whole library, and runs away from the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from holdfast.cli.app import main
from tests.pages import DOCS, ROOT, rows, section

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution, and the wheel that is made of nothing else."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run([*build, "--target", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    subprocess.run([*build, "--target", "wheel"], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return {"source": unpacked, "wheel": wheel, "installed": folder / "installed"}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_library(built: dict[str, Path]) -> None:
    here = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    assert {Path(name).suffix for name in here} >= {".py", ".safetensors", ".toml", ".html", ".css"}, "vacuous"
    with ZipFile(built["wheel"]) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == here
    assert "holdfast/py.typed" in held
    assert built["wheel"].stat().st_size < 2e6, "something large came along"


@pytest.mark.slow
def test_the_wheel_says_what_it_is(built: dict[str, Path]) -> None:
    (folder,) = built["installed"].glob("*.dist-info")
    found = PathDistribution(folder)
    assert (found.metadata["Name"], found.version) == (PROJECT["name"], PROJECT["version"])
    assert found.metadata["License-Expression"] == "Apache-2.0"
    assert (folder / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert set(found.metadata.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])
    (script,) = found.entry_points
    assert (script.group, script.name, script.load()) == ("console_scripts", "holdfast", main)


@pytest.mark.slow
def test_the_source_distribution_holds_what_its_commands_need(built: dict[str, Path]) -> None:
    for name in ("LICENSE", "README.md", "Makefile", "constraints-cpu.txt", "docs/index.md", "tests/conftest.py"):
        assert (built["source"] / name).is_file()


@pytest.mark.slow
def test_the_wheel_measures_and_reports_away_from_the_repository(built: dict[str, Path], tmp_path: Path) -> None:
    """Built-in encoders and images, an evaluation, the report's templates and a recipe, all from the wheel's files."""
    elsewhere = {**os.environ, "PYTHONPATH": str(built["installed"])}

    def called(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=elsewhere, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    home = called("-c", "import holdfast; print(holdfast.__file__)")
    assert Path(home.strip()).is_relative_to(built["installed"])
    measured = ("--only", "displacement", "--eps", "0.1", "--limit", "8", "--out", "run")
    assert "run/report.html" in called("-m", "holdfast", "evaluate", "builtin:digits-robust", *measured)
    assert "digits-robust" in (tmp_path / "run" / "report.html").read_text()
    assert "simclr-cifar10" in called("-m", "holdfast", "list", "recipes")


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_extras_ask_for_packages_and_for_extras_that_exist(extra: str) -> None:
    for line in PROJECT["optional-dependencies"][extra]:
        wanted = Requirement(line)
        assert wanted.name != PROJECT["name"] or wanted.extras <= set(PROJECT["optional-dependencies"])


def test_every_extra_is_documented() -> None:
    assert set(rows(section(DOCS / "installing.md", "Installing"))) == set(PROJECT["optional-dependencies"])


OURS = r"holdfast(?!-encoders|[\w./:-])"
ANOTHER_PROJECT = re.compile(
    rf"holdfast\[|(?:pipx?|uv(?: pip| tool)?|conda)3? (?:install|add|inject|run)(?: +(?!\()[^\s;&|)]+)*? +['\"`]?{OURS}"
)


@pytest.mark.parametrize(
    ("text", "wrong"),
    {
        "pip install holdfast": True,
        "pip install -c constraints.txt 'holdfast'": True,
        "pipx install 'holdfast==1'": True,
        "pip install '" + "holdfast[train]'": True,
        "uv tool install holdfast": True,
        "pip install 'holdfast-encoders[train]'": False,
        "pip install ray (in a clone of holdfast: pip install '.[cluster]')": False,
        "pip install . && holdfast evaluate": False,
        "docker build --tag holdfast .": False,
    }.items(),
)
def test_the_search_for_the_other_project_finds_it(text: str, wrong: bool) -> None:
    assert bool(ANOTHER_PROJECT.search(text)) == wrong


def test_no_text_installs_the_project_that_has_our_import_name_on_the_package_index() -> None:
    """``holdfast`` on the package index is somebody else's; ours is distributed under another name."""
    assert PROJECT["name"] == "holdfast-encoders"
    assert set(PROJECT["scripts"]) == {"holdfast"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    files = [ROOT / name for name in listed if name and not name.startswith("tests/")] or [
        file for folder in ("src", "docs") for file in (ROOT / folder).rglob("*") if file.is_file()
    ]
    texts = {file: file.read_bytes().decode(errors="ignore") for file in files if file.suffix != ".safetensors"}
    assert len(texts) > 300, "vacuous"
    assert [str(file.relative_to(ROOT)) for file, text in texts.items() if ANOTHER_PROJECT.search(text)] == []
