"""``holdfast list``: everything there is."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    kind: Annotated[str | None, typer.Argument(help="encoders, images, evaluations, attacks ...; none: all.")] = None,
) -> None:
    """List encoders, images, evaluations, attacks, objectives, balls, divergences and suites."""
    from rich.console import Console

    from holdfast.catalog import everything
    from holdfast.errors import HoldfastError, nearest

    catalogue = everything()
    if kind is not None and kind not in catalogue:
        raise HoldfastError(f"cannot list {kind!r}; {nearest(kind, list(catalogue))}")
    console = Console(highlight=False)
    # Whoever asks for attacks wants those of the literature, too.
    titles = ["attacks", "presets"] if kind == "attacks" else [kind] if kind else list(catalogue)
    for title in titles:
        console.print(f"[bold]{title}[/bold]")
        width = max((len(name) for name in catalogue[title]), default=0)
        for name, meaning in catalogue[title].items():
            console.print(f"  {name:{width}}  {meaning}", markup=False, soft_wrap=True)
