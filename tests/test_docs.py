"""The documentation cannot lag: everything there is appears in it, its tables equal the code, its links resolve."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast import data, encoders
from holdfast.attacks.presets import PRESETS
from holdfast.bounds.methods.base import methods
from holdfast.cli.app import application
from holdfast.core.divergences import DIVERGENCES
from holdfast.core.encoder import Domain
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import convert, number, types_of
from holdfast.encoders.architectures.base import LOADED, Architecture, architectures
from holdfast.measure.evaluation import plain
from holdfast.report.gate import parse
from holdfast.report.overview.first_rows import KINDS
from holdfast.run import catalog
from holdfast.training.adversaries.base import adversaries
from holdfast.training.recipe import Recipe
from tests.pages import DOCS, PAGES, ROOT, blocks, every_page, prose, rows, section, sections, slug


def said(value: Any) -> str:
    """How a settings table spells a default."""
    if value in (None, "", [], ()):
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(said, value))
    return str(value).lower() if isinstance(value, bool) else number(value) if isinstance(value, float) else str(value)


def defaults(kind: type[Any]) -> dict[str, str]:
    """The settings of a dataclass and their defaults, as a table spells them."""
    return {field.name: said(field.default) for field in fields(kind) if field.default is not MISSING}


def configurable() -> dict[str, dict[str, str]]:
    """Sources of encoders with settings: each has a table of them on the page of encoders."""
    kinds = {name: vars(source).get("Settings") for name, source in encoders.sources().items()}
    return {name: defaults(kind) for name, kind in kinds.items() if kind and defaults(kind)}


def evaluated() -> dict[str, Any]:
    """The settings of each evaluation, by its name."""
    return {
        name: {field.name: plain(getattr(kind(), field.name)) for field in fields(kind)}
        for name, kind in catalog.evaluations().items()
    }


TABLES = {
    found[1]: rows(body)
    for page in (DOCS / "encoders.md", DOCS / "images.md")
    for heading, body in sections(page)
    if (found := re.fullmatch(r"Settings of `(.+)`", heading))
}


@pytest.mark.parametrize("name", configurable())
def test_every_setting_is_documented_with_its_default(name: str) -> None:
    assert name in TABLES, f"no heading 'Settings of `{name}`' in the documentation"
    assert {setting: cells[0] for setting, cells in TABLES[name].items()} == configurable()[name]
    assert all(cells[1] for cells in TABLES[name].values()), "a setting has no meaning"


def test_no_table_describes_what_is_not_there() -> None:
    assert set(TABLES) == set(configurable())


@pytest.mark.parametrize("name", catalog.evaluations())
def test_every_evaluation_has_a_section_with_its_quantities(name: str) -> None:
    pages = [page for page in (DOCS / "evaluations").glob("*.md") if f"settings.md#{name})" in page.read_text()]
    assert pages, f"no page in docs/evaluations names {name} and links its settings"
    text = "".join(page.read_text() for page in pages)
    kind = catalog.evaluations()[name]
    assert all(f"`{quantity}`" in text for quantity in kind.headline)
    titles = [row.title for row in KINDS if name in (row.evaluation, row.attack[0])]
    assert any(f"*{title}*" in text for title in titles or [kind.title]), "its row in the report is not named"
    assert f"`{name}`" in (DOCS / "evaluations" / "index.md").read_text()


@pytest.mark.parametrize(
    ("page", "title", "names"),
    [
        ("attacks.md", "The attacks", catalog.attacks()),
        ("attacks.md", "Balls", catalog.everything()["balls"]),
        ("attacks.md", "Objectives", catalog.objectives()),
        ("attacks.md", "Divergences", DIVERGENCES),
        ("attacks.md", "Presets", PRESETS),
        ("bounds.md", "Methods", methods()),
        ("training/objectives.md", "The adversaries", adversaries()),
        ("images.md", "Images", data.loaders()),
        ("probes.md", "The probes", catalog.everything()["probes"]),
        ("encoders.md", "Architectures", {name: kind for name, kind in architectures().items() if name != LOADED}),
    ],
)
def test_tables_hold_everything_there_is(page: str, title: str, names: dict[str, Any]) -> None:
    assert set(rows(section(DOCS / page, title))) == set(names)


def test_encoder_sources_are_documented() -> None:
    table = rows(section(DOCS / "encoders.md", "References"))
    assert {re.sub(r"\[(\w+)\].*", r"\1", name) for name in table} == set(encoders.sources())


@pytest.mark.parametrize("name", [name for name in architectures() if name != LOADED])
def test_architectures_are_documented_as_they_are(name: str) -> None:
    settings, features, weights, _ = rows(section(DOCS / "encoders.md", "Architectures"))[name]
    assert settings == ", ".join(f"{key}={value}" for key, value in defaults(architectures()[name]).items())
    module = Architecture.read(name).build(Domain((3, 32, 32))).eval()
    assert features == str(module(torch.rand(1, 3, 32, 32)).shape[1])
    assert weights == f"{sum(weight.numel() for weight in module.parameters()):,}"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_documented_as_they_are(name: str) -> None:
    preset = PRESETS[name]
    expected = [str(preset.objective), str(preset.attack), str(preset.ball), preset.source]
    assert rows(section(DOCS / "attacks.md", "Presets"))[name] == expected


@pytest.mark.parametrize(("title", "kinds"), [("Objectives", catalog.objectives()), ("Divergences", DIVERGENCES)])
def test_settings_within_a_table_are_documented(title: str, kinds: dict[str, type[Any]]) -> None:
    table = rows(section(DOCS / "attacks.md", title))
    for name, kind in kinds.items():
        assert table[name][1] == ", ".join(f"{key}={value}" for key, value in defaults(kind).items())


def test_run_is_documented() -> None:
    assert {name: cells[0] for name, cells in rows(section(DOCS / "reference.md", "One measure")).items()} == defaults(
        RunSettings
    )


COMMANDS = application().commands


def test_every_command_in_the_documentation_is_understood() -> None:
    """Names of commands and flags, settings, gates: all but the models and folders, which are examples."""
    shown = [line for page in PAGES for line in command_lines(page)]
    assert len(shown) > 15, "vacuous: the commands are not found"
    for line in shown:
        name, *arguments = shlex.split(line, comments=True)[1:] or ["--help"]
        command = COMMANDS[name]
        known = {option: parameter for parameter in command.params for option in parameter.opts}
        for option, value in zip(arguments, [*arguments[1:], ""], strict=False):
            if option.startswith("--"):
                assert option in known, line
            if option == "--set" and name in ("train", "harden"):
                setting, _, text = value.partition("=")
                convert(text, types_of(Recipe)[setting], line)
            elif option == "--set":
                evaluation, _, setting = value.partition("=")[0].partition(".")
                assert evaluation == "neighbours-kept" or setting in evaluated()[evaluation], line
            if option == "--require":
                parse(value)


def command_lines(page: Path) -> list[str]:
    """The lines of a page's unnamed blocks that begin with the command, continued ones joined."""
    joined = "\n".join(blocks(page, "")).replace("\\\n", " ")
    return [line.replace("...", "") for line in joined.splitlines() if line.startswith("holdfast ")]


@every_page
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if linked.parent == DOCS / "reports":  # the site makes these pages of the records of a run
            linked = linked.with_suffix(".tar.xz")
        assert linked.is_file(), f"{target} does not exist"
        if anchor:
            assert anchor in {slug(heading) for heading, _ in sections(linked)}, f"{target}: no such heading"
        if DOCS in page.parents:
            assert DOCS in linked.parents, f"{target} leaves the site"


def test_the_map_of_folders_is_complete() -> None:
    home = Path(holdfast.__file__).parent
    table = " ".join(rows(section(DOCS / "architecture.md", "The folders")))
    folders = [path.parent.relative_to(home).as_posix() for path in home.rglob("__init__.py") if path.parent != home]
    files = [path.name for path in home.glob("*.py") if not path.name.startswith("__")]
    for name in [*(f"{folder}/" for folder in folders), *files]:
        assert name in table.replace(",", " ").split(), f"{name} is not among the folders"


def test_the_map_names_every_file() -> None:
    home = Path(holdfast.__file__).parent
    table = rows(section(DOCS / "architecture.md", "The folders"))
    for path in home.rglob("*/*.py"):
        folder = f"{path.parent.relative_to(home).as_posix()}/"
        if path.stem != "__init__":
            assert path.stem in re.findall(r"\w+", "".join(table[folder])), f"{path} is not in the row of {folder}"


def test_the_layers_are_those_that_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    enforced = [set(layer.replace("|", " ").split()) for layer in contracts[0]["layers"]]
    (shown,) = [code for code in blocks(DOCS / "architecture.md", "") if code.startswith("core ")]
    assert [set(layer.split()) for layer in shown.split("<")] == [
        layer for layer in enforced[::-1] if "__main__" not in layer
    ]


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', (tmp_path / "index.html").read_text())
    assert not loaded, "the site loads something from the network"


def test_the_picture_is_small() -> None:
    assert (DOCS / "images" / "report.png").stat().st_size < 300_000


def test_python_page_says_where_every_evaluation_lives() -> None:
    table = rows(section(DOCS / "reference.md", "Where evaluations live"))
    for kind in catalog.evaluations().values():
        package, module = kind.__module__.rsplit(".", 1)
        row = table.get(package, [""])[0]
        place = f"{module}.{kind.__name__}"
        assert place in row, f"docs/reference.md, 'Where evaluations live', needs {place} in the row of {package}"
