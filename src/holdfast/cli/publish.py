"""``holdfast publish``: write stored results for a Hugging Face model page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.core.options import INPUT, MEASURED, OUTPUT
from holdfast.core.settings import names_of


def command(
    run: flags.StoredRun,
    dataset: Annotated[
        str, typer.Option(help="Name the benchmark dataset on the hub.", metavar="OWNER/NAME", rich_help_panel=INPUT)
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Write .eval_results/ into this folder, such as a clone.", metavar="DIR", rich_help_panel=OUTPUT
        ),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(help="Publish this encoder (default: the only one).", metavar="NAME", rich_help_panel=MEASURED),
    ] = None,
    only: flags.Only = None,
    where: flags.Where = None,
    push: Annotated[
        str | None,
        typer.Option(
            help="Open a pull request at this model on the hub.", metavar="OWNER/NAME", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> None:
    """Write metrics for a Hugging Face model page."""
    # Loaded here, because these need torch.
    from holdfast.commands.publish import publish
    from holdfast.report.text import counted

    chosen = names_of(only or (), "--only")
    published = publish(run, dataset, out, encoder=encoder, only=chosen, where=where or (), push=push)
    for path, count in published.numbers.items():
        print(f"{path}: {counted(count, 'number')}")
    if published.proposal:
        print(f"Proposed: {published.proposal}")
