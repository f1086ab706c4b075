"""Empty texts, values that mean nothing and lists in two parts are refused, whichever flag or argument it is."""

from __future__ import annotations

import inspect

import pytest
import torch
from typer.core import TyperOption

import holdfast as hf
from holdfast.cli.app import application, run
from holdfast.core.errors import HoldfastError
from tests import samples
from tests.facts import says

COMMANDS = application().commands
FLAGS = [
    (name, max(option.opts, key=len))
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, TyperOption) and not option.is_flag
]
ARGUMENTS = [(name, part) for name in COMMANDS for part in COMMANDS[name].params if part.param_type_name == "argument"]
FUNCTIONS = [
    (name, parameter)
    for name in sorted(hf.__all__)
    if inspect.isfunction(inspect.unwrap(function := getattr(hf, name)))
    for parameter, details in inspect.signature(function).parameters.items()
    if any(text in str(details.annotation) for text in ("str", "NamedEncoder", "NamedImages", "StoredRun"))
    and not any(other in str(details.annotation) for other in ("Mapping", "Callable"))
]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("command", "flag"), FLAGS)
def test_no_flag_of_any_command_may_be_empty(command, flag, capsys, tmp_path):
    for empty in ("", "  "):
        assert run([command, flag, empty]) == 2
        assert f"{flag} is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "something was written"


OPTIONS = [
    (name, max(option.opts, key=len), option)
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, TyperOption) and not option.is_flag
]


@pytest.mark.parametrize(("command", "flag", "option"), OPTIONS)
def test_no_option_with_one_value_is_taken_twice(command, flag, option, capsys, tmp_path):
    """The last one would win in silence, whichever command and option it is."""
    status = run([command, flag, "1", flag, "1", "--no-such-option"][: 5 + option.multiple])
    said = capsys.readouterr().err
    assert (f"{flag} is given 2 times" in said) == (not option.multiple)
    if not option.multiple:
        assert status == 2
        assert said.count("\n") == 1
        assert (says(said, "separate", "values")) == ("comma-separated" in (option.help or ""))
        assert not list(tmp_path.iterdir()), "something was written"
        assert run([command, f"{flag}=1", flag, "2"]) == 2
        assert "is given 2 times" in capsys.readouterr().err


def test_a_switch_may_be_repeated_but_not_contradicted(capsys):
    assert run(["check", "nowhere", "--strict", "--strict", "--require", "a<=1"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert run(["spade", "nowhere", "--certify", "--no-certify"]) == 2
    assert "is given 2 times" in capsys.readouterr().err


def test_the_law_on_options_looks_at_every_kind():
    assert {option.multiple for _, _, option in OPTIONS} == {True, False}
    assert {("evaluate", "--images"), ("certify", "--eps"), ("threshold", "--edits")} <= {each[:2] for each in OPTIONS}


@pytest.mark.parametrize("command", sorted({name for name, _ in ARGUMENTS}))
def test_no_argument_of_any_command_may_be_empty(command, capsys):
    assert run([command, ""]) == 2
    assert says(capsys.readouterr().err, "empty", "variable")


def test_the_laws_look_at_what_there_is():
    assert {("evaluate", "--images"), ("evaluate", "--config"), ("check", "--require"), ("train", "--set")} <= {*FLAGS}
    assert {
        ("evaluate", "images"),
        ("harden", "out"),
        ("certify", "precision"),
        ("check", "require"),
        ("compare", "runs"),
    } <= {*FUNCTIONS}


@pytest.mark.parametrize(("function", "parameter"), FUNCTIONS)
def test_no_argument_of_any_function_may_be_empty(function, parameter):
    called = getattr(hf, function)
    needed = {
        name: details.kind is inspect.Parameter.KEYWORD_ONLY
        for name, details in inspect.signature(called).parameters.items()
        if details.default is inspect.Parameter.empty and details.kind is not inspect.Parameter.VAR_KEYWORD
    }
    at_hand = {"encoder": samples.builtin("digits-robust"), "images": hf.Images(torch.zeros(2, 1, 8, 8))}
    given = {name: at_hand.get(name, "linf:0.1") for name in needed} | {parameter: ""}
    positional = [given.pop(name) for name, keyword_only in needed.items() if not keyword_only]
    with pytest.raises(HoldfastError, match=f"{parameter} is empty"):
        called(*positional, **given)


def test_an_empty_text_in_a_file_is_refused_as_well(tmp_path, capsys):
    (tmp_path / "run.toml").write_text('images = ""')
    assert run(["evaluate", "--config", "run.toml"]) == 2
    assert "images is empty" in capsys.readouterr().err


CERTIFY = ["certify", "builtin:digits-robust", "--images", "builtin:digits", "--out", "out"]
ATTACK = ["attack", "builtin:digits-robust", "--images", "builtin:digits", "--out", "out"]
EVALUATE = ["evaluate", "builtin:digits-robust", "--images", "builtin:digits", "--out", "out", "--only", "displacement"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*CERTIFY, "--eps", "0.1", "--budget", "nan"], "a positive number of seconds"),
        ([*ATTACK, "--budget", "-5"], "a positive number of seconds"),
        ([*EVALUATE, "--budget", "inf"], "a positive number of seconds"),
        (["train", "digits-robust", "--out", "out", "--budget", "0"], "a positive number of seconds"),
        ([*ATTACK, "--objective", "instance:temperature=0"], "temperature must be positive"),
        ([*ATTACK, "--attack", "pgd:restarts=0"], "restarts must be positive"),
        ([*CERTIFY, "--eps", "0.1", "--method", "branch:seconds=-1"], "seconds must be 0 or more"),
        ([*CERTIFY, "--eps", "1e-320"], "must be at least 1."),
        ([*EVALUATE, "--eps", "0.1", "--eps", "1/10"], "twice; keep one"),
        ([*EVALUATE, "--eps", "1/255,4/255"], "repeat the flag"),
        ([*EVALUATE, "--ball", "linf:1/255,l2:1"], "repeat the flag"),
        ([*EVALUATE[:-1], "overlap,overlap"], "only has overlap twice"),
        ([*EVALUATE, "--arch", "tests.cli.modules:linear"], "--arch tests.cli.modules:linear changes nothing"),
        ([*ATTACK, "--arch", "tests.cli.modules:linear"], "--arch tests.cli.modules:linear changes nothing"),
    ],
)
def test_nonsense_is_refused_before_anything_is_computed(arguments, sentence, capsys, tmp_path):
    assert run(arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out" / "results").exists()


@pytest.mark.parametrize("dataset", ["nope", "a/b/c", "../secret", "a/..", "a/b..c", "a /b"])
def test_a_dataset_is_called_as_on_the_hub(dataset, capsys):
    assert run(["publish", "run", "--out", "model", "--dataset", dataset]) == 2
    assert "takes OWNER/NAME" in capsys.readouterr().err
