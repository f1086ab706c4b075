"""One verb, one function: every flag is a keyword of the function that its command calls, and every keyword is a flag."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import Parameter, getdoc, signature
from itertools import chain
from pkgutil import iter_modules
from typing import Any

import pytest

from holdfast import commands
from holdfast.cli.app import application, run
from holdfast.core.errors import HoldfastError

RENAMED = {"set": "settings"}
"""Flags that are repeated and keywords that hold all of them at once."""
NO_FUNCTION = {"list": "prints the catalogue, whose parts are public names of holdfast already"}
FLAGS_ALONE = {
    "evaluate --config": "a file of flags; Python has keywords",
    "certify --recheck": "checks the proofs in a folder, as holdfast.recheck does",
    "certify --vnnlib": "answers a benchmark, as holdfast.verify does",
    "compare --html": "prints what the comparison returned writes with its page()",
    "compare --format": "prints the comparison that Python has as an object",
    "compare --full": "prints more of the comparison that Python has as an object",
    "runs --json": "prints the inventories that Python has as objects",
}
VALUES_ALONE = {"--cluster": "slurm:ranks=2"}
"""Slurm jobs carry out the command line again, which a function called from a program has none of."""
MEMORY = {"attack": "out", "certify": "out", "harden": "out"}
"""What a command needs, and a function not: it returns what it does, whether or not that is kept."""
LEFT_OUT = {"certify": {"encoder", "images", "out"}}
"""What a command needs unless a flag of its own asks for something else: it says so itself."""
KEYWORDS_ALONE = {
    "progress": "the command line always shows it",
    "start": "an encoder at hand; the command line names one in the recipe",
    "watch": "a function of the module in training",
}
COMMANDS = application().commands
MODULES = {module.name for module in iter_modules(commands.__path__)}
VERBS = sorted(
    name for name in COMMANDS if name in MODULES and hasattr(import_module(f"holdfast.commands.{name}"), name)
)


def function(verb: str) -> Any:
    return getattr(import_module(f"holdfast.commands.{verb}"), verb)


def flags(verb: str) -> dict[str, Any]:
    """Return the flags and arguments of a command by the keyword that each should be."""
    called = {
        spelled(flag).lstrip("-").replace("-", "_").lower(): flag
        for flag in COMMANDS[verb].params
        if f"{verb} {spelled(flag)}" not in FLAGS_ALONE
    }
    return {RENAMED.get(name, name): flag for name, flag in called.items()}


def spelled(flag: Any) -> str:
    return str(max(flag.opts, key=len))


def keywords(verb: str) -> dict[str, Parameter]:
    return {name: of for name, of in signature(function(verb)).parameters.items() if name not in KEYWORDS_ALONE}


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_a_keyword_and_every_keyword_a_flag(verb: str) -> None:
    assert set(flags(verb)) == set(keywords(verb))


@pytest.mark.parametrize("verb", VERBS)
def test_flags_and_keywords_have_the_same_default(verb: str) -> None:
    for name, flag in flags(verb).items():
        keyword = keywords(verb)[name]
        needed = keyword.default is Parameter.empty or MEMORY.get(verb) == name
        assert flag.required == (needed and name not in LEFT_OUT.get(verb, set())), name
        if not flag.required and flag.default is not None:  # what is not given is left to the function
            assert flag.default == keyword.default, name


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_not_given_has_the_default_of_the_function(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that is left out is not passed as None over another default."""
    passed: dict[str, Any] = {}
    called, defaults = function(verb), {name: of.default for name, of in keywords(verb).items()}

    def record(*values: Any, **named: Any) -> None:
        passed.update(signature(called).bind(*values, **named).arguments)
        raise HoldfastError("recorded")

    wanted = {"out"} | LEFT_OUT.get(verb, set())  # a command makes up a folder, or asks for one
    needed = [flag for name, flag in flags(verb).items() if flag.required or name in wanted]
    text = "digits-robust" if verb == "train" else "1"  # recipes are read before the function is called
    given = [[spelled(flag), text] if spelled(flag).startswith("--") else [text] for flag in needed]
    monkeypatch.setattr(import_module(f"holdfast.commands.{verb}"), verb, record)
    assert run([verb, *chain.from_iterable(given)]) == 2
    assert passed, "the command called something else"
    left_out = set(passed) - {str(flag.name) for flag in needed} - set(KEYWORDS_ALONE)
    for name in left_out:
        assert passed[name] == defaults[name] or not (passed[name] or defaults[name]), name


def test_the_law_is_awake_and_its_exceptions_are_needed() -> None:
    assert set(VERBS) == set(COMMANDS) - set(NO_FUNCTION)
    assert all(signature(function(verb)).parameters[name].default is None for verb, name in MEMORY.items())
    assert not set(NO_FUNCTION) & set(VERBS)
    assert set(FLAGS_ALONE) <= {
        f"{verb} {spelled(flag)}" for verb, command in COMMANDS.items() for flag in command.params
    }
    assert all(any(name in signature(function(verb)).parameters for verb in VERBS) for name in KEYWORDS_ALONE)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if "cluster" in flags(verb)])
def test_what_only_a_command_can_do_is_refused_in_python(verb: str) -> None:
    sensible = {"eps": 0.01, "transform": "gamma:0.5"}
    given = {
        name: sensible.get(name, "?")
        for name, of in keywords(verb).items()
        if of.default is Parameter.empty or name == "eps"
    }
    with pytest.raises(HoldfastError, match=f"write it as holdfast {verb} --cluster slurm:ranks=2"):
        function(verb)(**given, cluster=VALUES_ALONE["--cluster"])


@pytest.mark.parametrize("verb", VERBS)
def test_every_keyword_is_explained(verb: str) -> None:
    arguments = (getdoc(function(verb)) or "").partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == list(signature(function(verb)).parameters)
