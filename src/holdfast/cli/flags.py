"""Flags that several commands share, declared once: ``Flag[type]`` if types differ, ``like`` if texts differ.

``core/options.py`` declares options that functions have too; ``options`` turns these into flags.
"""

from __future__ import annotations

from collections.abc import Callable
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


def like(flag: Any, **changes: Any) -> ParameterInfo:
    """Return the declaration of ``flag`` with ``changes`` of help, panel or default.

    Example:
        >>> like(Eps, show_default="1/255").help
        'Bound perturbations by R in linf, as in 8/255.'
    """
    known = flag.__metadata__[0]
    info = _info(known) if isinstance(known, Option) else copy(known)
    assert set(changes) <= set(vars(info)), f"options have no {sorted(set(changes) - set(vars(info)))}"
    vars(info).update(changes)
    return info


def _info(option: Option, *names: str) -> ParameterInfo:
    info: ParameterInfo = typer.Option(
        *names, help=option.help, rich_help_panel=option.panel, metavar=option.metavar, min=option.least
    )
    return info


# Input.
Encoder = Annotated[str, typer.Argument(help="Encoder as source:name, such as timm:resnet50.", metavar="ENCODER")]
Images = Annotated[
    T,
    typer.Option(
        help="Read a folder, array file, tar shards, URL or source:name.", metavar="DIR", rich_help_panel=INPUT
    ),
]
Channels = Annotated[
    T, typer.Option(help="Read N channels: 3, or 1 for grey images.", metavar="N", rich_help_panel=INPUT)
]

# What to measure.
Eps = Annotated[
    str | None,
    typer.Option(help="Bound perturbations by R in linf, as in 8/255.", metavar="R", rich_help_panel=MEASURED),
]
Ball = Annotated[
    str | None,
    typer.Option(help="Bound perturbations in another norm, as in l2:0.5.", metavar="NORM:R", rich_help_panel=MEASURED),
]
BlackBox = Annotated[
    T,
    typer.Option("--black-box", help="Attack without gradients (for quantised models).", rich_help_panel=MEASURED),
]

# Training.
TrainingBank = Annotated[
    str | None,
    typer.Option(
        help="Check nearest neighbours in these labelled images after each epoch.", metavar="DIR", rich_help_panel=INPUT
    ),
]
RecipeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a setting of the recipe, as in epochs=10; repeatable.",
        metavar="KEY=V",
        rich_help_panel=MEASURED,
    ),
]

# Stored runs.
StoredRun = Annotated[Path, typer.Argument(help="Folder of a run, as given to evaluate --out.", metavar="RUN")]
StoredRuns = Annotated[
    list[Path], typer.Argument(help="Folders of runs, as given to evaluate --out.", metavar="RUNS...")
]
Only = Annotated[
    str | None,
    typer.Option(
        help="Use only these evaluations, comma-separated (default: all).", metavar="NAMES", rich_help_panel=MEASURED
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        help="Use only these settings, as in attack=adaptive or linf:8/255; repeatable.",
        metavar="KEY=V",
        rich_help_panel=MEASURED,
    ),
]


def _workers(text: str) -> int | str:
    """Return a number of processes, or ``auto``."""
    if text == "auto":
        return text
    if text.isdigit() and int(text) >= 1:
        return int(text)
    raise typer.BadParameter(f"--workers: expected a number of processes, at least 1, or auto; got {text!r}")


SHELL: dict[str, dict[str, Any]] = {
    "budget": {"parser": seconds},
    "workers": {"parser": _workers},
}
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
    """Return default and annotation of the flag of an option."""
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


def chosen(**flags: object) -> dict[str, Any]:
    """Return the ``flags`` that the user gave; the called function has defaults for the others.

    Example:
        >>> chosen(seed=0, limit=None, eps=[])
        {'seed': 0}
    """
    return {name: value for name, value in flags.items() if value is not None and value not in ([], {})}
