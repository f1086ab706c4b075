"""Flags that several commands share, each declared once: ``Flag[type]`` where types differ, ``like`` where words do.

Those of options that functions take too are declared in ``core/options.py``; ``options`` makes flags of them.
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

from holdfast.core.options import Option, declared
from holdfast.core.settings import seconds

T = TypeVar("T")

CONTINUES = "everything finished is kept, and the same command continues from there"
CHECKPOINTED = "a checkpoint was written; run the same command again to go on from it"
"""What a command that was stopped leaves behind, for its ``STOPPED``."""


def like(flag: Any, **changes: Any) -> ParameterInfo:
    """Return how ``flag`` is declared, here or as an option, with ``changes``: other words, another panel or default.

    Example:
        >>> like(Eps, show_default="1/255").help
        'Radius of a linf ball, as in 8/255.'
    """
    known = flag.__metadata__[0]
    info = _info(known) if isinstance(known, Option) else copy(known)
    assert set(changes) <= set(vars(info)), f"options have no {sorted(set(changes) - set(vars(info)))}"
    vars(info).update(changes)
    return info


def _info(option: Option, *names: str) -> ParameterInfo:
    info: ParameterInfo = typer.Option(*names, help=option.help, rich_help_panel=option.panel, min=option.least)
    return info


# What is looked at.
Encoder = Annotated[str, typer.Argument(help="source:name, as in timm:resnet50.")]
Images = Annotated[T, typer.Option(help="A folder, an array file, tar shards, an address or source:name.")]
Channels = Annotated[T, typer.Option(help="3, or 1 for gray images.")]

# What is asked.
Eps = Annotated[str | None, typer.Option(help="Radius of a linf ball, as in 8/255.")]
Ball = Annotated[str | None, typer.Option(help="Any ball instead, as in l2:0.5.")]
BlackBox = Annotated[
    T, typer.Option("--black-box", help="Attack without gradients, by square: quantised networks have none.")
]

# Of training.
TrainingBank = Annotated[
    str | None, typer.Option(help="Labelled images whose nearest neighbours are checked after each epoch.")
]
RecipeSettings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the recipe, as in epochs=10; repeat it.")
]

# Of stored runs.
StoredRun = Annotated[Path, typer.Argument(help="Folder of a run, as given to evaluate --out.")]
StoredRuns = Annotated[list[Path], typer.Argument(help="Folders of runs, as given to evaluate --out.")]
Only = Annotated[str | None, typer.Option(help="These evaluations alone, separated by commas.")]
Where = Annotated[
    list[str] | None,
    typer.Option(help="These conditions alone, as in attack=adaptive or linf:8/255; repeatable."),
]


def _workers(text: str) -> int | str:
    """Return a number of processes, or ``auto``."""
    if text == "auto":
        return text
    if text.isdigit() and int(text) >= 1:
        return int(text)
    raise typer.BadParameter(f"--workers is a number of processes, at least 1, or auto; got {text!r}")


SHELL: dict[str, dict[str, Any]] = {
    "budget": {"parser": seconds},
    "workers": {"parser": _workers, "metavar": "N|auto"},
}
READ: dict[str, Any] = {"out": Path | None, "workers": Any}
"""How the command line reads options whose types it does not know, and what it makes of them."""


def options(kind: type, verb: str, optional: bool = False) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Let a command of ``verb`` have a flag for each option of ``kind``, and be given all of them as its ``options``.

    A flag that the command declares itself is its own. What the command line shows is not asked: it always shows progress.

    Args:
        kind: a TypedDict of ``core/options.py``.
        verb: whose defaults and words the flags have.
        optional: flags have no defaults, and the command is given only what somebody chose.
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
    """Return the ``flags`` that somebody gave: what was left out has the default of the function that is called.

    Example:
        >>> chosen(seed=0, limit=None, eps=[])
        {'seed': 0}
    """
    return {name: value for name, value in flags.items() if value is not None and value not in ([], {})}
