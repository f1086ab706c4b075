"""Flags that several commands share, declared once: ``Flag[type]`` if types differ, ``like`` if texts differ.

``core/options.py`` declares options that functions have too; ``options`` turns these into flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.models import ParameterInfo

from holdfast.core.options import INPUT, MEASURED, Option, declared
from holdfast.core.settings import seconds

T = TypeVar("T")

CONTINUES = "everything finished is kept, and the same command continues from there"
CHECKPOINTED = "a checkpoint was written; run the same command again to go on from it"
"""Texts for ``STOPPED``: what a stopped command leaves on disk."""


def flag(default: Any, text: str, panel: str, metavar: str | None = None, name: str = "", **more: Any) -> Any:
    """Return the declaration of a flag; without a ``name``, it has that of its parameter. ``...``: it must be given."""
    names = [name] if name else []
    return typer.Option(default, *names, help=text, rich_help_panel=panel, metavar=metavar, **more)


def switch(name: str, text: str, panel: str | None = None, default: Any = False) -> Any:
    """Return the declaration of a flag without a value, which has no ``--no-``."""
    return typer.Option(default, name, help=text, rich_help_panel=panel)


def like(flag: Any, default: Any = None, **changes: Any) -> Any:
    """Return the declaration of ``flag`` with a ``default`` and ``changes`` of help or panel.

    Example:
        >>> like(Eps, show_default="1/255").help
        'Bound perturbations by R in linf, as in 8/255.'
    """
    known = flag.__metadata__[0]
    info = _info(known) if isinstance(known, Option) else copy(known)
    assert set(changes) <= set(vars(info)), f"options have no {sorted(set(changes) - set(vars(info)))}"
    vars(info).update(changes, default=default)
    return info


def _info(option: Option, *names: str) -> ParameterInfo:
    info: ParameterInfo = typer.Option(
        *names, help=option.help, rich_help_panel=option.panel, metavar=option.metavar, min=option.least
    )
    return info


# Input.
Encoder = Annotated[str, typer.Argument(help="Encoder as source:name, such as timm:resnet50.", metavar="ENCODER")]
Images = Annotated[T, flag(..., "Read a folder, array file, tar shards, URL or source:name.", INPUT, "DIR")]
Channels = Annotated[T, flag(..., "Read N channels: 3, or 1 for grey images.", INPUT, "N")]

# What to measure.
Eps = Annotated[str | None, flag(..., "Bound perturbations by R in linf, as in 8/255.", MEASURED, "R")]
Ball = Annotated[str | None, flag(..., "Bound perturbations in another norm, as in l2:0.5.", MEASURED, "NORM:R")]
BlackBox = Annotated[
    T, switch("--black-box", "Attack without gradients (for quantised models).", MEASURED, default=...)
]

# Training.
TrainingBank = Annotated[
    str | None, flag(..., "Check nearest neighbours in these labelled images after each epoch.", INPUT, "DIR")
]
RecipeSettings = Annotated[
    list[str] | None,
    flag(..., "Override a setting of the recipe, as in epochs=10; repeatable.", MEASURED, "KEY=V", name="--set"),
]

# Stored runs.
StoredRun = Annotated[Path, typer.Argument(help="Folder of a run, as given to evaluate --out.", metavar="RUN")]
StoredRuns = Annotated[
    list[Path], typer.Argument(help="Folders of runs, as given to evaluate --out.", metavar="RUNS...")
]
Only = Annotated[
    str | None, flag(..., "Use only these evaluations, comma-separated (default: all).", MEASURED, "NAMES")
]
Where = Annotated[
    list[str] | None,
    flag(..., "Use only these settings, as in attack=adaptive or linf:8/255; repeatable.", MEASURED, "KEY=V"),
]


def _workers(text: str) -> int | str:
    if text == "auto":
        return text
    if text.isdigit() and int(text) >= 1:
        return int(text)
    raise typer.BadParameter(f"--workers: expected a number of processes, at least 1, or auto; got {text!r}")


SHELL: dict[str, dict[str, Any]] = {"budget": {"parser": seconds}, "workers": {"parser": _workers}}
READ: dict[str, Any] = {"out": Path | None, "workers": Any}
"""Parsers and types of options that typer does not know."""


def options(kind: type, verb: str, optional: bool = False) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command one flag per option of ``kind``, and pass their values as its ``options``.

    A flag that the command declares itself takes precedence. Commands always show progress.

    Args:
        kind: a TypedDict of ``core/options.py``.
        verb: name of the function whose defaults and help texts the flags have.
        optional: if true, flags have no defaults, and the command receives only values that the user gave.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        own = signature(command, eval_str=True)
        flags = [
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, **_flag(name, of, option, optional))
            for name, (of, option) in declared(kind, verb).items()
            if name not in own.parameters and name != "progress"
        ]
        shown = own.replace(
            parameters=[
                each for ours in own.parameters.values() for each in (flags if ours.name == "options" else [ours])
            ]
        )

        shows = {"progress": True} if "progress" in declared(kind, verb) else {}

        @wraps(command)
        def called(**given: Any) -> T:
            values = {flag.name: given.pop(flag.name) for flag in flags}
            return command(**given, options=chosen(**values) if optional else {**values, **shows})

        called.__signature__ = shown  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in shown.parameters.values()}
        return called

    return decorate


def _flag(name: str, of: Any, option: Option, optional: bool) -> dict[str, Any]:
    spelled = [f"--{name.replace('_', '-')}"] if of is bool else []  # no --no-...
    how = _info(option, *spelled)
    vars(how).update(SHELL.get(name, {}))
    if optional and option.default is not None and name not in SHELL and of is not bool:
        how.show_default = str(option.default)
    kind = READ.get(name, of)
    return {
        "default": None if optional else option.default,
        "annotation": Annotated[kind | None if optional else kind, how],
    }


def keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the user gave, of the ``locals()`` with which a command begins: each flag names a keyword of the verb."""
    return chosen(**{name: value for name, value in values.items() if name != "options"}, **values["options"])


def chosen(**flags: object) -> dict[str, Any]:
    """Return the ``flags`` that the user gave; the called function has defaults for the others.

    Example:
        >>> chosen(seed=0, limit=None, eps=[])
        {'seed': 0}
    """
    return {name: value for name, value in flags.items() if value is not None and value not in ([], {})}
