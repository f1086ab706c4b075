"""Flags that several commands share, each declared once: ``Flag[type]`` where types differ, ``like`` where words do."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.models import ParameterInfo

from holdfast.core.settings import seconds

T = TypeVar("T")

CONTINUES = "everything finished is kept, and the same command continues from there"
CHECKPOINTED = "a checkpoint was written; run the same command again to go on from it"
"""What a command that was stopped leaves behind, for its ``STOPPED``."""

COMPUTES = "How it is computed"
"""The panel of ``--help`` with flags that change no result, or only its rounding."""


def like(flag: Any, **changes: Any) -> ParameterInfo:
    """Return how ``flag`` is declared, with ``changes``: other words of help, another panel, a default in words.

    Example:
        >>> like(Seed, show_default="0").help
        'Decides every random choice.'
    """
    declared = copy(flag.__metadata__[0])
    assert set(changes) <= set(vars(declared)), f"options have no {sorted(set(changes) - set(vars(declared)))}"
    vars(declared).update(changes)
    return declared


# What is looked at.
Encoder = Annotated[str, typer.Argument(help="source:name, as in timm:resnet50.")]
Images = Annotated[T, typer.Option(help="A folder, an array file, tar shards, an address or source:name.")]
Limit = Annotated[T, typer.Option(help="At most so many images, chosen by the seed.", min=1)]
Seed = Annotated[int, typer.Option(help="Decides every random choice.")]
Arch = Annotated[str | None, typer.Option(help="package.module:factory, for checkpoints.")]
Size = Annotated[int | None, typer.Option(help="Input height and width, instead of the encoder's own.")]
Channels = Annotated[T, typer.Option(help="3, or 1 for gray images.")]
TrustRemoteCode = Annotated[T, typer.Option("--trust-remote-code", help="Let a model repository run its own code.")]

# What is asked.
Eps = Annotated[str | None, typer.Option(help="Radius of a linf ball, as in 8/255.")]
Ball = Annotated[str | None, typer.Option(help="Any ball instead, as in l2:0.5.")]
BlackBox = Annotated[
    T, typer.Option("--black-box", help="Attack without gradients, by square: quantised networks have none.")
]

# How it is computed.
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.", rich_help_panel=COMPUTES)]
Precision = Annotated[str, typer.Option(help="float32, float64, bfloat16, float16.", rich_help_panel=COMPUTES)]
BatchSize = Annotated[int, typer.Option(help="At most so many images at a time.", min=1, rich_help_panel=COMPUTES)]
Budget = Annotated[
    float | None,
    typer.Option(parser=seconds, help="Seconds after which no new work begins.", rich_help_panel=COMPUTES),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Compute on a Ray cluster (auto, local or its address) or as Slurm jobs (slurm:ranks=8).",
        rich_help_panel=COMPUTES,
    ),
]


def _workers(text: str) -> int | str:
    """Return a number of processes, or ``auto``."""
    if text == "auto":
        return text
    if text.isdigit() and int(text) >= 1:
        return int(text)
    raise typer.BadParameter(f"--workers is a number of processes, at least 1, or auto; got {text!r}")


Workers = Annotated[
    Any,
    typer.Option(
        parser=_workers,
        metavar="N|auto",
        help="Compute in so many processes of this machine, or on so many of its GPUs; auto: as many as pay.",
        rich_help_panel=COMPUTES,
    ),
]

# Of training.
TrainingBudget = Annotated[
    float | None,
    like(Budget, help="Seconds after which training stops with a checkpoint; the same command goes on."),
]
TrainingBank = Annotated[
    str | None, typer.Option(help="Labelled images whose nearest neighbours are checked after each epoch.")
]
RecipeSettings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the recipe, as in epochs=10; repeat it.")
]

# Of stored runs.
RunFolder = Annotated[
    Path | None, typer.Option(help="Folder of the run and its report, for check; running again continues it.")
]
StoredRun = Annotated[Path, typer.Argument(help="Folder of a run, as given to evaluate --out.")]
StoredRuns = Annotated[list[Path], typer.Argument(help="Folders of runs, as given to evaluate --out.")]
Only = Annotated[str | None, typer.Option(help="These evaluations alone, separated by commas.")]
Where = Annotated[
    list[str] | None,
    typer.Option(help="These conditions alone, as in attack=adaptive or linf:8/255; repeatable."),
]


def chosen(**flags: object) -> dict[str, Any]:
    """Return the ``flags`` that somebody gave: what was left out has the default of the function that is called.

    Example:
        >>> chosen(seed=0, limit=None, eps=[])
        {'seed': 0}
    """
    return {name: value for name, value in flags.items() if value is not None and value not in ([], {})}
