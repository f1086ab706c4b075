"""Generated parts of the documentation: flags of commands, suites, and settings with their defaults.

    python scripts/site_reference.py

writes them between the marks ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->`` of the pages in ``docs``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from textwrap import dedent
from types import NoneType
from typing import Any, get_origin

from holdfast.bounds.methods.base import methods
from holdfast.cli.app import application
from holdfast.cli.terminal import GROUPS, OTHER, meaning, signature
from holdfast.core.balls import BALLS
from holdfast.core.discovery import named_classes
from holdfast.core.divergences import DIVERGENCES
from holdfast.core.options import INPUT, PANELS
from holdfast.core.settings import fields_of, members, number, types_of
from holdfast.encoders.architectures.base import architectures
from holdfast.probes.base import probes
from holdfast.run import catalog
from holdfast.run.catalog import SUITES, summary
from holdfast.training import optimisers
from holdfast.training.adversaries.base import adversaries
from holdfast.training.learner import training_objectives
from holdfast.training.recipe import Recipe
from holdfast.transforms.base import transforms

DOCS = Path(__file__).parent.parent / "docs"
MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def written(page: str) -> str:
    """Return the text of ``page`` with every generated part as the code has it now."""
    return MARKED.sub(lambda found: found[1] + PARTS[found[2]]() + found[3], page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    for cells in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cell.replace("|", " or ") for cell in cells) + " |"
    yield ""


def commands() -> str:
    """Return a section for each group of commands, with a table of flags for each command."""
    known = application().commands
    others = [name for name in known if not any(name in group for group in GROUPS.values())]
    lines = []
    for title, names in {**GROUPS, OTHER: others}.items():
        shown = [name for name in names if name in known]
        lines += [f"## {title}", ""] if shown else []
        for name in shown:
            lines += [f"### {name}", "", *_description(known[name].help or ""), *_flags(known[name])]
    return "\n".join(lines)


def _description(text: str) -> Iterator[str]:
    """Yield the paragraphs of a command's help; those that show a command become a block."""
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("holdfast "):
            yield from ("```", paragraph.strip(), "```", "")
        else:
            yield from (" ".join(paragraph.split()), "")


def _flags(command: Any) -> Iterator[str]:
    panels: dict[str, list[tuple[str, str]]] = {title: [] for title in PANELS}
    for parameter in command.params:
        if parameter.name == "help":
            continue
        panel = INPUT if parameter.param_type_name == "argument" else parameter.rich_help_panel or PANELS[-1]
        panels.setdefault(panel, []).append((f"`{signature(parameter)}`", meaning(parameter)))
    rows = [row for title, flags in panels.items() if flags for row in [(f"**{title}**", ""), *flags]]
    return table(("Flag", "Meaning"), rows)


def suites() -> str:
    """Return the table of suites."""
    return "\n".join(table(("Suite", "Meaning"), [(f"`{name}`", suite.meaning) for name, suite in SUITES.items()]))


def families() -> dict[str, Mapping[str, type[Any]]]:
    """Return the classes with settings, by the heading of their table and by name."""
    return {
        "Attacks": catalog.attacks(),
        "Objectives of attacks": catalog.objectives(),
        "Balls": BALLS,
        "Divergences": DIVERGENCES,
        "Bounding methods": methods(),
        "Probes": probes(),
        "Transforms": transforms(),
        "Recipes": {"a recipe": Recipe},
        "Training objectives": training_objectives(),
        "Adversaries": adversaries(),
        "Optimisers": named_classes(optimisers, optimisers.Optimiser),
        "Schedules": named_classes(optimisers, optimisers.Schedule),
        "Architectures": architectures(),
    }


def settings() -> str:
    """Return a table of settings for each evaluation, and one for each other family of things with settings."""
    lines = ["## Evaluations", ""]
    for name, kind in sorted(catalog.evaluations().items()):
        rows = rows_of(kind, defaults(kind))
        lines += [f"### {name}", "", plain(summary(kind)), "", *table(("Setting", "Type", "Default", "Meaning"), rows)]
    for title, kinds in families().items():
        owners: dict[tuple[tuple[str, ...], ...], list[str]] = {}
        for name, kind in sorted(kinds.items()):
            owners.setdefault(tuple(rows_of(kind, defaults(kind))), []).append(f"`{name}`")
        rows = [
            (", ".join(names) if first else "", *row)
            for settings, names in owners.items()
            for first, row in zip((True, *[False] * len(settings)), settings, strict=False)
        ]
        lines += [f"## {title}", "", *table(("Name", "Setting", "Type", "Default", "Meaning"), rows)]
    return "\n".join(lines)


def rows_of(kind: type[Any], defaults: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return name, type, default and meaning of each setting of a dataclass."""
    types, known = types_of(kind), meanings(kind)
    return [(f"`{name}`", form(types[name]), default, known[name]) for name, default in defaults.items()]


def meanings(kind: type[Any]) -> dict[str, str]:
    """Return the attribute docstrings of a dataclass by field; a field without one has that of the base class."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ == "builtins":
            continue
        (definition,) = ast.parse(dedent(inspect.getsource(base))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                told = (
                    after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
                )
                if told or node.target.id not in found:
                    found[node.target.id] = plain(str(told))
    return found


def plain(text: str) -> str:
    """Return a docstring as Markdown on one line."""
    return " ".join(text.replace("``", "`").split())


FORMS = {bool: "true or false", int: "integer", float: "number", str: "text", NoneType: "none"}


def form(kind: Any) -> str:
    """Return a type as a reader of the table calls it."""
    names = [FORMS.get(member, getattr(member, "__name__", str(member)).lower()) for member in members(kind)]
    names = ["objective" if name == "trainingobjective" else name for name in names]
    return ("list: " if get_origin(kind) is tuple else "") + " or ".join(names)


def defaults(kind: type[Any]) -> dict[str, str]:
    """Return the settings of a dataclass and their defaults as a table shows them."""
    fields = fields_of(kind).items()
    return {name: "required" if field.default is MISSING else said(field.default) for name, field in fields}


def said(value: Any) -> str:
    """Return a default as a table shows it; of a long list, its ends."""
    if value in (None, "", [], ()):
        return "none"
    if isinstance(value, (list, tuple)):
        texts = [said(part) for part in value]
        return ", ".join(texts) if len(texts) <= 9 else f"{texts[0]}, {texts[1]} .. {texts[-1]} ({len(texts)} values)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        text = number(value)
        return f"`{text if len(text) < 10 else format(value, '.4g')}`"
    return f"`{value}`"


def modules() -> str:
    """Return a table of the modules of evaluations, by package."""
    places: dict[str, list[str]] = {}
    for kind in catalog.evaluations().values():
        package, module = kind.__module__.rsplit(".", 1)
        places.setdefault(f"`{package}`", []).append(f"`{module}.{kind.__name__}`")
    return "\n".join(table(("In", "Evaluations"), [(name, ", ".join(sorted(places[name]))) for name in sorted(places)]))


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "modules": modules,
    "settings": settings,
    "suites": suites,
}


def main() -> None:
    """Write the generated parts of all pages."""
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := written(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
