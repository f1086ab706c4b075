"""Help texts: short, in panels of one order, with every default once and no types of Python."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.cli.app import application, run
from holdfast.cli.terminal import GROUPS
from holdfast.core.options import PANELS

COMMANDS: dict[str, Any] = dict(application().commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_flags_is_short_and_in_panels(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for parameter in COMMANDS[name].params:
        assert 0 < len(parameter.help.split()) <= 12, parameter.name
        assert parameter.help.endswith("."), parameter.name
        takes_value = parameter.param_type_name == "argument" or not parameter.is_flag
        assert bool(parameter.metavar) == takes_value, parameter.name
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    titles = [line for line in shown.splitlines() if line in PANELS]
    assert titles == [title for title in PANELS if title in titles]
    assert not re.search(r"<(str|int|float|bool|list|path)|x>=|\(default: \(", shown)
    assert all(text.count("(default") <= 1 for text in re.split(r"\n  (?=\S)", shown))
    assert all(max(parameter.opts, key=len).upper().lstrip("-") in shown.upper() for parameter in COMMANDS[name].params)


def test_commands_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{title}\n") for title in GROUPS]
    assert places == sorted(places)
    assert {name for names in GROUPS.values() for name in names} == set(COMMANDS)
    for name, command in COMMANDS.items():
        assert command.help.splitlines()[0] in re.sub(r"\s+", " ", shown), name
