"""The container's recipe: what it copies is enough to build the library, and it installs as the Makefile does."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, prose

STEPS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]
INDEX = "https://download.pytorch.org/whl/cpu"


def of(kind: str) -> list[str]:
    return [rest for word, rest in STEPS if word == kind]


def copied() -> list[str]:
    return [source for step in of("COPY") for source in step.split()[:-1]]


def installed(text: str) -> list[list[str]]:
    """What each ``pip install`` in ``text`` is given, without what only hides or keeps files."""
    quiet = {"--quiet", "--disable-pip-version-check", "--no-cache-dir"}
    found = [re.split(r"&&|#", rest)[0] for rest in re.findall(r"pip install (.*)", text)]
    return [[word for word in shlex.split(rest) if word not in quiet] for rest in found]


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied()) == sent
    assert all((ROOT / source).exists() for source in sent)


def test_it_installs_as_the_makefile_does_torch_first() -> None:
    make = (ROOT / "Makefile").read_text()
    constrained = installed(make)[0]
    assert constrained == ["-c", "constraints-cpu.txt"], "vacuous: the Makefile installs otherwise"
    assert make.index("$(INSTALL) torch") < make.index("$(INSTALL) -e .")
    container = installed("\n".join(of("RUN")))
    assert container == [
        [*constrained, "torch", "torchvision", "--index-url", INDEX],
        [*constrained, ".${EXTRAS:+[$EXTRAS]}"],
    ]
    assert container == installed((ROOT / "action.yml").read_text()), "the action installs otherwise"
    assert INDEX in (ROOT / "docs" / "installing.md").read_text()


def test_the_command_runs_unprivileged_in_the_folder_that_is_mounted() -> None:
    kinds = [kind for kind, _ in STEPS]
    assert of("ENTRYPOINT") == ['["holdfast"]']
    assert of("USER") == ["1000"]
    assert "--uid 1000" in " ".join(of("RUN"))
    assert kinds.index("USER") > max(place for place, kind in enumerate(kinds) if kind == "RUN")
    assert of("WORKDIR")[-1] == "/data"
    assert "`/data`" in prose(ROOT / "docs" / "installing.md")
    assert all("--no-cache-dir" in step for step in of("RUN") if "pip install" in step)


@pytest.mark.slow
def test_what_is_copied_is_all_that_a_build_needs(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
    for source in copied():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / source)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "dist").glob("*.whl"))
