"""Generated parts of the documentation are those that the code gives now."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from scripts import site_reference
from scripts.site_reference import MARKED, PARTS, defaults, families, rows_of, written

from holdfast.cli.app import application
from holdfast.cli.terminal import meaning, signature
from holdfast.run import catalog
from holdfast.run.catalog import SUITES
from tests.pages import DOCS, section

COMMANDS = application().commands
GENERATED = [path for path in sorted(DOCS.rglob("*.md")) if "<!-- generated: " in path.read_text()]
FLAGS = [(name, parameter) for name, command in COMMANDS.items() for parameter in command.params]


@pytest.fixture(scope="module", autouse=True)
def _made_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, part in PARTS.items():
            patch.setitem(PARTS, name, cache(part))
        patch.setattr(site_reference, "meanings", cache(site_reference.meanings))
        yield


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.stem)
def test_generated_parts_are_up_to_date(page: Any) -> None:
    assert written(page.read_text()) == page.read_text(), "run make reference"


def test_every_part_has_one_place() -> None:
    text = "".join(page.read_text() for page in GENERATED)
    assert Counter(name for _, name, _ in MARKED.findall(text)) == Counter(list(PARTS))
    assert text.count("<!-- generated: ") == len(PARTS), "a part has no end"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_out_of_date_is_found(name: str) -> None:
    page = next(page.read_text() for page in GENERATED if f"<!-- generated: {name} -->" in page.read_text())
    stale = re.sub(rf"(<!-- generated: {name} -->\n).*(<!-- end: {name} -->)", r"\1old\n\2", page, flags=re.DOTALL)
    assert stale != page
    assert written(stale) == page


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_is_in_its_table(name: str) -> None:
    body = section(DOCS / "command-line.md", name)
    for parameter in COMMANDS[name].params:
        assert parameter.name == "help" or signature(parameter).replace("|", " or ") in body


def test_every_suite_is_in_its_table() -> None:
    body = section(DOCS / "guides" / "measure.md", "Suites")
    assert all(f"`{name}`" in body for name in SUITES)


KINDS = [("Evaluations", name, kind) for name, kind in catalog.evaluations().items()]
KINDS += [(title, name, kind) for title, kinds in families().items() for name, kind in kinds.items()]


@pytest.mark.parametrize(("title", "name", "kind"), KINDS, ids=[f"{title}-{name}" for title, name, _ in KINDS])
def test_every_setting_has_a_row_with_a_meaning(title: str, name: str, kind: Any) -> None:
    body = section(DOCS / "settings.md", name if title == "Evaluations" else title)
    rows = rows_of(kind, defaults(kind))
    assert all(f"| {setting} | {form} |" in body for setting, form, _, _ in rows)
    assert all(meaning.endswith(".") for *_, meaning in rows), "a setting has no docstring below its line"


@pytest.mark.parametrize(("command", "parameter"), FLAGS, ids=lambda part: getattr(part, "name", part))
def test_the_help_of_a_flag_states_its_own_default(command: str, parameter: Any) -> None:
    default = parameter.default
    if isinstance(default, (bool, list, tuple)) or default is None or callable(default):
        return
    stated = parameter.show_default if isinstance(parameter.show_default, str) else default
    text = f"{stated:,}" if isinstance(stated, int) else str(stated)
    assert f"(default: {text})" in meaning(parameter) or f"default: {text}" in meaning(parameter), command
