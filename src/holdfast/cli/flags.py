"""Flags that mean the same in several commands, in the same words; ``Flag[type]`` where the types differ."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import typer

from holdfast.core.settings import seconds

T = TypeVar("T")

Images = Annotated[T, typer.Option(help="A folder, an array file, tar shards, an address or source:name.")]
Seed = Annotated[int, typer.Option(help="Decides every random choice.")]
Arch = Annotated[str | None, typer.Option(help="package.module:factory, for checkpoints.")]
Size = Annotated[int | None, typer.Option(help="Input height and width, instead of the encoder's own.")]
TrustRemoteCode = Annotated[T, typer.Option("--trust-remote-code", help="Let a model repository run its own code.")]
Budget = Annotated[
    float | None,
    typer.Option(parser=seconds, help="Seconds after which no new work begins.", rich_help_panel="How it is computed"),
]
TrainingBudget = Annotated[
    float | None,
    typer.Option(
        parser=seconds, help="Seconds after which training stops with a checkpoint; the same command goes on."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Compute on a Ray cluster (auto, local or its address) or as Slurm jobs (slurm:ranks=8).",
        rich_help_panel="How it is computed",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Compute in so many processes of this machine, or on so many of its GPUs.",
        min=1,
        rich_help_panel="How it is computed",
    ),
]


def given(**flags: object) -> dict[str, Any]:
    """Return the ``flags`` that somebody gave: what was left out has the default of the function that is called.

    Example:
        >>> given(seed=0, limit=None, eps=[])
        {'seed': 0}
    """
    return {name: value for name, value in flags.items() if value is not None and value not in ([], {})}
