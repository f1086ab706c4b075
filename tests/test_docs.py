"""The documentation cannot lag: everything there is appears in it, its tables equal the code, its programs run."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main

import holdfast
from holdfast import catalog, data, encoders
from holdfast.attacks.presets import PRESETS, read_attack
from holdfast.balls import Linf
from holdfast.cli import application
from holdfast.config import build, planned, request
from holdfast.divergences import DIVERGENCES
from holdfast.encoder import Domain
from holdfast.evaluation import settings
from holdfast.objective import Scene
from holdfast.report.gate import parse
from holdfast.run import Run
from holdfast.spelling import number
from holdfast.suites import SUITES
from tests.samples import builtin, digits

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"(<!-- not run: .+? -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page that are meant to run."""
    return [code for skipped, found, code in FENCE.findall(page.read_text()) if found == language and not skipped]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Each heading of a page with what follows it, up to the next heading."""
    parts = re.split(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return zip(parts[1::2], parts[2::2], strict=True)


def section(page: Path, title: str) -> str:
    return next(body for heading, body in sections(page) if heading == title)


def rows(body: str) -> dict[str, list[str]]:
    """The rows of the first table in ``body`` by their first cell, without the marks of code."""
    table = re.search(r"(^\|.*\n)+", f"{body}\n", re.MULTILINE)
    lines = table[0].splitlines()[2:] if table else []
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def said(value: Any) -> str:
    """How a settings table spells a default."""
    if value in (None, ""):
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(said, value))
    return str(value).lower() if isinstance(value, bool) else number(value) if isinstance(value, float) else str(value)


def defaults(kind: type[Any]) -> dict[str, str]:
    """The settings of a dataclass and their defaults, as a table spells them."""
    return {field.name: said(field.default) for field in fields(kind) if field.default is not MISSING}


def configurable() -> dict[str, dict[str, str]]:
    """Everything that has settings, and so must have a table of them."""
    found = {name: {k: said(v) for k, v in settings(kind()).items()} for name, kind in catalog.evaluations().items()}
    found |= {name: defaults(kind) for name, kind in catalog.attacks().items()}
    for name, source in encoders.sources().items():
        found[name] = defaults(vars(source)["Settings"]) if "Settings" in vars(source) else {}
    return {name: own for name, own in found.items() if own}


TABLES = {
    found[1]: rows(body)
    for page in PAGES
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
def test_every_evaluation_has_a_page_with_its_quantities(name: str) -> None:
    page = next(page for page in PAGES if f"Settings of `{name}`" in page.read_text())
    text = page.read_text()
    assert page.parent == DOCS / "evaluations"
    assert all(f"`{quantity}`" in text for quantity in catalog.evaluations()[name].headline)
    assert {"## Undefined", "## Known limits"} <= set(text.splitlines())
    assert f"`{name}`" in (DOCS / "evaluations" / "index.md").read_text()


@pytest.mark.parametrize(
    ("page", "title", "names"),
    [
        ("attacks.md", "The attacks", catalog.attacks()),
        ("attacks.md", "Balls", catalog.everything()["balls"]),
        ("attacks.md", "Objectives", catalog.objectives()),
        ("attacks.md", "Divergences", DIVERGENCES),
        ("attacks.md", "Presets", PRESETS),
        ("images.md", "Images", data.loaders()),
        ("command-line.md", "Suites", SUITES),
    ],
)
def test_tables_hold_everything_there_is(page: str, title: str, names: dict[str, Any]) -> None:
    assert set(rows(section(DOCS / page, title))) == set(names)


def test_encoder_sources_are_documented() -> None:
    table = rows(section(DOCS / "encoders.md", "References"))
    assert {re.sub(r"\[(\w+)\].*", r"\1", name) for name in table} == set(encoders.sources())


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_documented_as_they_are(name: str) -> None:
    preset = PRESETS[name]
    expected = [str(preset.goal), str(preset.attack), str(preset.ball), preset.source]
    assert rows(section(DOCS / "attacks.md", "Presets"))[name] == expected


@pytest.mark.parametrize(("title", "kinds"), [("Objectives", catalog.objectives()), ("Divergences", DIVERGENCES)])
def test_settings_within_a_table_are_documented(title: str, kinds: dict[str, type[Any]]) -> None:
    table = rows(section(DOCS / "attacks.md", title))
    for name, kind in kinds.items():
        assert table[name][1] == ", ".join(f"{key}={value}" for key, value in defaults(kind).items())


def test_suites_are_documented_in_their_own_words() -> None:
    table = rows(section(DOCS / "command-line.md", "Suites"))
    assert SUITES["quick"].meaning == table["quick"][0]
    assert SUITES["full"].meaning == table["full"][0]


def test_run_is_documented() -> None:
    assert {name: cells[0] for name, cells in rows(section(DOCS / "python.md", "One measure")).items()} == defaults(Run)


COMMANDS = vars(typer.main.get_command(application()))["commands"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_is_documented(name: str) -> None:
    table = rows(section(DOCS / "command-line.md", name))
    flags = {
        parameter.name.upper().rstrip("_") if parameter.param_type_name == "argument" else parameter.opts[0]
        for parameter in COMMANDS[name].params
        if parameter.name != "help"
    }
    assert set(table) == flags
    assert all(cells[0] for cells in table.values())


def test_global_flags_are_documented() -> None:
    assert set(rows(section(DOCS / "command-line.md", "Command line"))) == {"--version", "--debug"}


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
            if option == "--set":
                evaluation, _, setting = value.partition("=")[0].partition(".")
                assert evaluation == "neighbours_kept" or setting in configurable()[evaluation], line
            if option == "--require":
                parse(value)


def command_lines(page: Path) -> list[str]:
    """The lines of a page's unnamed blocks that begin with the command, continued ones joined."""
    joined = "\n".join(blocks(page, "")).replace("\\\n", " ")
    return [line.replace("...", "") for line in joined.splitlines() if line.startswith("holdfast ")]


@every_page
def test_programs_in_the_documentation_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of a page, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "__main__"}
    for code in blocks(page, "python"):
        exec(compile(code, f"a block of {page.name}", "exec", dont_inherit=True), space)


@every_page
def test_configurations_in_the_documentation_are_understood(page: Path, tmp_path: Path) -> None:
    for code in blocks(page, "toml"):
        content = tomllib.loads(code)
        if "project" not in content:
            (tmp_path / "run.toml").write_text(code)
            assert planned(request({}, tmp_path / "run.toml"))


def test_the_readme_shows_the_example_of_ten_lines() -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    assert code == (ROOT / "examples" / "ten_lines.py").read_text()


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_examples_run(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


# ---- one new file ----

FILES = re.findall(
    r"^`src/holdfast/(\w+)/(\w+)\.py`:\n\n```python\n(.*?)^```$",
    (DOCS / "extending.md").read_text(),
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture
def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every file of the page on extension, put where it says it belongs."""
    for package, name, code in FILES:
        home = import_module(f"holdfast.{package}")
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / f"{name}.py").write_text(code)
        monkeypatch.setattr(home, "__path__", [*home.__path__, str(tmp_path / package)])
    encoders.sources.cache_clear()
    data.loaders.cache_clear()
    yield
    encoders.sources.cache_clear()
    data.loaders.cache_clear()
    for package, name, _ in FILES:
        sys.modules.pop(f"holdfast.{package}.{name}", None)
        vars(import_module(f"holdfast.{package}")).pop(name, None)


def test_one_file_is_enough(dropped: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = catalog.everything()
    assert "neighbours_kept" in found["evaluations"]
    assert "grow" in found["objectives"]
    assert "guess" in found["attacks"]
    assert "linear" in found["encoders"]
    assert "noise" in found["images"]
    assert str(read_attack("guess:tries=3")) == "guess:tries=3"
    np.save(tmp_path / "weights.npy", np.ones((5, 64), dtype=np.float32))
    encoder = encoders.load(f"linear:{tmp_path}/weights.npy?shape=1x8x8")
    images = data.load("noise:4", encoder.domain)
    assert encoder(images.pixels([0, 1])).shape == (2, 5)


def test_the_new_measure_runs(dropped: None) -> None:
    asked = {"neighbours_kept": {"k": 3, "attacked": 8, "attack": "guess:tries=5", "ball": "linf:0.2"}}
    (measure,) = planned(request({"only": ["neighbours_kept"], "settings": asked}))
    result = measure(builtin(), digits(20))
    (kept,) = result.estimates
    assert (kept.quantity, kept.n, kept.better) == ("neighbours_kept", 8, "higher")
    assert 0 < kept.value < 1
    harmless = build(catalog.evaluations()["neighbours_kept"], {**asked["neighbours_kept"], "ball": "linf:1e-6"})
    assert harmless(builtin(), digits(20)).estimates[0].value == 1, "nothing moved, yet neighbours were lost"
    assert measure(builtin(), digits(20)) == result


def test_the_page_shows_the_example_of_a_measure() -> None:
    (code,) = [code for _, name, code in FILES if name == "neighbours_kept"]
    assert code == (ROOT / "examples" / "new_measure.py").read_text()


def test_the_new_objective_and_attack_do_what_they_say(dropped: None) -> None:
    grow, guess = catalog.objectives()["grow"], catalog.attacks()["guess"]
    encoder, images = builtin(), digits(4)
    noise = Run().noise(images.ids)
    scene = Scene(encoder, images.pixels(range(4)), noise)
    attacked = guess()(encoder, scene.pixels, grow()(scene), Linf(0.1), noise)
    longer = encoder(attacked).norm(dim=1) / scene.codes.norm(dim=1)
    assert longer.min() >= 1
    assert longer.max() > 1.01


# ---- links and the site ----


def slug(heading: str) -> str:
    """The anchor that the site gives a heading."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())


@every_page
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), f"{target} does not exist"
        if anchor:
            assert anchor in {slug(heading) for heading, _ in sections(linked)}, f"{target}: no such heading"
        if DOCS in page.parents:
            assert DOCS in linked.parents, f"{target} leaves the site"


@every_page
def test_blocks_that_do_not_run_say_why(page: Path) -> None:
    text = page.read_text()
    assert text.count("<!-- not run: ") == sum(bool(skipped) for skipped, _, _ in FENCE.findall(text))
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text)), "a fence is not closed"


def test_the_module_map_is_complete() -> None:
    home = Path(holdfast.__file__).parent
    table = " ".join(rows(section(DOCS / "architecture.md", "Module map")))
    for path in home.iterdir():
        name = f"{path.name}/" if (path / "__init__.py").is_file() else path.name
        if not name.startswith("__") and name.endswith((".py", "/")):
            assert name in table.replace(",", " ").split(), f"{name} is not in the module map"


def test_the_layers_are_those_that_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    enforced = [set(layer.replace("|", " ").split()) for layer in contracts[0]["layers"]]
    (shown,) = [code for code in blocks(DOCS / "architecture.md", "") if code.startswith("errors <")]
    assert [set(layer.split()) for layer in shown.split("<")] == [
        layer for layer in enforced[::-1] if "__main__" not in layer
    ]


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


def test_defaults_of_the_command_line_are_those_it_states() -> None:
    """What `quick` measures is what the overview says: the built-in encoders on the built-in digits."""
    asked = request({})
    assert (asked.suite, asked.seed, asked.device, asked.precision, asked.batch_size) == (
        "quick",
        0,
        "cpu",
        "float32",
        256,
    )
    assert data.load("builtin:digits", Domain((1, 8, 8))).pixels([0]).dtype == torch.float32
