"""Options that verbs share: declared once, shown in signatures and docstrings, refused where there is none of the name."""

from __future__ import annotations

import ast
import subprocess
import sys
from inspect import getdoc, signature
from pathlib import Path
from typing import Any, Unpack

import pytest

import holdfast as hf
from holdfast import commands
from holdfast.cli.app import application
from holdfast.core import options
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.options import OWN, EvaluateOptions, LocalOptions, Picking, RunOptions, declared, takes
from holdfast.run.request import Request
from tests.facts import refused


@takes(LocalOptions)
def measure(images: str, *, rate: float = 0.5, **options: Unpack[LocalOptions]) -> dict[str, object]:
    """Measure.

    Args:
        images: what to look at.
        rate: a number.
        limit: a few of them,
            on two lines.
        **options: as other verbs take them.

    Raises:
        HoldfastError: never.
    """
    return {"images": images, "rate": rate, **options}


def test_a_verb_is_given_every_option_with_its_default() -> None:
    known = {name: option.default for name, (_, option) in declared(LocalOptions, "measure").items()}
    assert measure("a") == {"images": "a", "rate": 0.5, **known}
    assert measure("a", rate=1.0, seed=3) == {"images": "a", "rate": 1.0, **known, "seed": 3}
    assert known["device"] == "cpu"


def test_all_are_in_the_signature_and_explained_in_its_order() -> None:
    shown = list(signature(measure).parameters)
    assert shown == ["images", "rate", *LocalOptions.__annotations__]
    text = getdoc(measure) or ""
    explained = [line.split(":")[0].strip() for line in text.splitlines() if line.startswith("    ") and line[4] != " "]
    assert explained == [*shown, "HoldfastError"]
    assert text.count("limit:") == 1
    assert "on two lines" in text


@pytest.mark.parametrize(("wrong", "meant"), [("sed", "seed"), ("worker", "workers"), ("rates", "rate")])
def test_a_keyword_that_does_not_exist_is_refused_with_the_nearest(wrong: str, meant: str) -> None:
    keywords: dict[str, Any] = {wrong: 1}
    with refused(UnknownName, repr(meant), argument="argument of measure", got=wrong):
        measure("a", **keywords)
    with refused(UnknownName, argument="argument of attack", got=wrong):
        hf.attack("builtin:digits-random", "builtin:digits", **keywords)


def test_empty_texts_are_refused_and_what_is_missing_is_named() -> None:
    with pytest.raises(HoldfastError, match="device is empty"):
        measure("a", device=" ")
    with pytest.raises(TypeError, match="images"):
        measure(rate=1.0)  # type: ignore[call-arg]


def test_type_checkers_know_names_and_types() -> None:
    """Each of these would be an unused comment, which mypy refuses, if it were not an error."""
    with pytest.raises(HoldfastError):
        measure("a", worker=2)  # type: ignore[call-arg]
    measure("a", seed="3")  # type: ignore[arg-type]
    with pytest.raises(HoldfastError):
        hf.attack("builtin:digits-random", "builtin:digits", worker=2)  # type: ignore[call-overload]


@pytest.mark.parametrize("verb", sorted(OWN))
def test_what_a_verb_has_of_its_own_is_said_of_what_it_takes(verb: str) -> None:
    taken, flags = (
        signature(getattr(hf, verb)).parameters,
        {flag.name: flag for flag in application().commands[verb].params},
    )
    for name, changes in OWN[verb].items():
        base = declared(RunOptions, "")[name][1]
        assert changes, "says nothing"
        assert all(getattr(base, field) != value for field, value in changes.items()), "says what is said already"
        if "default" in changes:
            assert taken[name].default == changes["default"]
        assert vars(flags[name])["help"] == changes.get("help", base.help)


def test_an_option_has_one_type_and_one_declaration_in_all_kinds() -> None:
    kinds = [kind for kind in vars(options).values() if hasattr(kind, "__total__")]
    assert len(kinds) > 5
    first = dict(declared(RunOptions, ""))
    for kind in kinds:
        for name, (of, option) in declared(kind, "").items():
            assert (of, option) == first.setdefault(name, (of, option))
    assert set(declared(Picking, "")) < set(declared(RunOptions, ""))


def test_a_request_takes_the_options_of_evaluate() -> None:
    asked = Request.model_fields
    for name, (_, option) in declared(EvaluateOptions, "evaluate").items():
        assert name == "progress" or asked[name].default == option.default
    for name, value in {"batch_size": "8", "seed": 0.5, "device": 1, "trust_remote_code": 2}.items():
        with pytest.raises(HoldfastError, match=name):
            Request.of(**{name: [value]})


def test_declarations_load_no_torch() -> None:
    code = "import sys, holdfast.core.options; assert not {'torch', 'typer', 'pydantic', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_warnings_point_at_who_called_the_verb() -> None:
    """Every decorator is one more call between a verb and its caller."""
    warned = {}
    for path in Path(str(commands.__path__[0])).glob("*.py"):
        for verb in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(verb, ast.FunctionDef) and any("takes" in ast.unparse(each) for each in verb.decorator_list):
                for call in ast.walk(verb):
                    said = isinstance(call, ast.Call) and ast.unparse(call.func)
                    if isinstance(call, ast.Call) and said == "warnings.warn":
                        (level,) = [ast.literal_eval(each.value) for each in call.keywords if each.arg == "stacklevel"]
                    elif isinstance(call, ast.Call) and said == "warn":  # which counts from the caller's caller
                        level = 1 + (ast.literal_eval(call.args[1]) if len(call.args) > 1 else 1)
                    else:
                        continue
                    assert level == 2 + len(verb.decorator_list), f"{path.name}:{call.lineno}"
                    warned[verb.name] = level
    assert {"attack": 4, "evaluate": 3}.items() <= warned.items()
