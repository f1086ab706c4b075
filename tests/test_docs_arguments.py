"""``Args:`` of a docstring names arguments that exist, in the order in which the function takes them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator

import pytest

from holdfast.core import options
from holdfast.core.options import declared
from tests.pages import ROOT

NAMED = re.compile(r"([\w*]+(?:, [\w*]+)*): ")
Described = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def documented(node: Described) -> list[str]:
    """The names under ``Args:``, in their order: of ``Args:`` each line that is indented once begins with one."""
    lines = (ast.get_docstring(node) or "").splitlines()
    if "Args:" not in lines:
        return []
    below = lines[lines.index("Args:") + 1 :]
    end = next((k for k, line in enumerate(below) if line and not line.startswith(" ")), len(below))
    starts = [line.strip() for line in below[:end] if re.match(r" {4}\S", line)]
    matches = [NAMED.match(line) for line in starts]
    assert all(matches), f"no argument begins {[line for line, name in zip(starts, matches, strict=True) if not name]}"
    return [name.lstrip("*") for match in matches if match for name in match[1].split(", ")]


def taken(node: Described) -> list[str]:
    """The parameters of a function, or of a class: those of its ``__init__`` or the fields of a dataclass."""
    if isinstance(node, ast.ClassDef):
        makers = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        if makers:
            return taken(makers[0])[1:]
        return [
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs]
    named = [argument.arg for argument in every if argument is not None]
    return [*named, *(options_of(arguments.kwarg) if arguments.kwarg else ())]


def options_of(keywords: ast.arg) -> list[str]:
    """The options that ``**options: Unpack[Kind]`` stands for, and then its own name."""
    kind = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(keywords.annotation) if keywords.annotation else "")
    return [*(declared(getattr(options, kind[1]), "") if kind else ()), keywords.arg]


def described(source: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Everything with an ``Args:``: its name, the arguments it documents and those it takes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Described) and (names := documented(node)):
            yield node.name, names, taken(node)


def wrong(described: Iterable[tuple[str, list[str], list[str]]]) -> list[str]:
    """What is documented under ``Args:`` and not taken, or in another order."""
    return [
        f"{name}: Args: names {', '.join(names)}; it takes {', '.join(parameters)}"
        for name, names, parameters in described
        if names != [parameter for parameter in parameters if parameter in names]
    ]


@pytest.mark.parametrize(("names", "fits"), [("seed, out", True), ("out, seed", False), ("seed, negatives", False)])
def test_options_of_verbs_count_as_arguments(names: str, fits: bool) -> None:
    program = (
        f'def drift(**options: Unpack[RunOptions]):\n    """Return it.\n\n    Args:\n        {names}: a thing\n    """'
    )
    assert wrong(described(program)) == [] if fits else wrong(described(program))


def test_documented_arguments_exist_in_their_order() -> None:
    sources = ((path, path.read_text(encoding="utf-8")) for path in (ROOT / "src" / "holdfast").rglob("*.py"))
    explained = {path: [*described(source)] for path, source in sources if "Args:\n" in source}
    assert {path: sentences for path, parts in explained.items() if (sentences := wrong(parts))} == {}
    assert sum(map(len, explained.values())) > 50


@pytest.mark.parametrize("names", ["image", "steps, image", "images, steps", "images, images"])
def test_the_law_is_awake(names: str) -> None:
    program = '''
        def attack(steps, images):
            """Return images.

            Args:
                {}: each of them a thing
                    that is explained on two lines: as here.

            Raises:
                HoldfastError: never.
            """
    '''
    assert wrong(described(inspect.cleandoc(program).format(names)))
    assert not wrong(described(inspect.cleandoc(program).format("steps, images")))
    assert not wrong(described(inspect.cleandoc(program).format("images")))
