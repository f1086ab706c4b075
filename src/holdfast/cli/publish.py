"""``holdfast publish``: stored results as the evaluation-result files of a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.core.settings import names_of


def command(
    run: flags.StoredRun,
    dataset: Annotated[str, typer.Option(help="The benchmark these results are of, as OWNER/NAME on the hub.")],
    out: Annotated[Path, typer.Option(help="Folder to write .eval_results/ into, such as a clone of the model's.")],
    encoder: Annotated[str | None, typer.Option(help="Which encoder, if the run has several.")] = None,
    only: flags.Only = None,
    where: flags.Where = None,
    push: Annotated[
        str | None, typer.Option(help="Propose the files to this model, OWNER/NAME on the hub, as a pull request.")
    ] = None,
) -> None:
    """Write an encoder's main numbers as evaluation results of its Hugging Face model page."""
    # Loaded here, because these need torch.
    from holdfast.commands.publish import publish
    from holdfast.report.text import counted

    chosen = names_of(only or (), "--only")
    published = publish(run, dataset, out, encoder=encoder, only=chosen, where=where or (), push=push)
    for path, count in published.numbers.items():
        print(f"{path}: {counted(count, 'number')}")
    if published.proposal:
        print(f"Proposed: {published.proposal}")
