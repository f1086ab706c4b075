"""``holdfast publish``: stored results as the evaluation-result files of a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.flags import words
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_whole


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, as given to evaluate --out.")],
    dataset: Annotated[str, typer.Option(help="The benchmark these results are of, as OWNER/NAME on the hub.")],
    out: Annotated[Path, typer.Option(help="Folder to write .eval_results/ into, such as a clone of the model's.")],
    encoder: Annotated[str | None, typer.Option(help="Which encoder, if the run has several.")] = None,
    only: Annotated[str | None, typer.Option(help="Write these evaluations alone, separated by commas.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Write these conditions alone, as in attack=adaptive or linf:8/255; repeatable."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(help="Propose the files to this model, OWNER/NAME on the hub, as a pull request.")
    ] = None,
) -> None:
    """Write an encoder's main numbers as evaluation results of its Hugging Face model page."""
    # Loaded here, because these need torch.
    from holdfast.commands.stored_runs import read
    from holdfast.report.hub import files, of_encoder, require_repository, yaml
    from holdfast.report.select import select_results
    from holdfast.report.text import counted

    wanted = words(only, "only") or []
    for flag, repository in (("dataset", dataset), ("push", push)):
        if repository is not None:
            require_repository(repository, flag)
    results, _ = read([run])
    if not results:
        raise HoldfastError(f"{run}: no results to publish; repeat the run's holdfast evaluate")
    files_of_hub = files(select_results(of_encoder(results, encoder), wanted, where or ()), dataset)
    if not files_of_hub:
        raise HoldfastError(f"{run}: none of the main numbers chosen is defined, so there is nothing to publish")
    contents = {path: yaml(entries) for path, entries in files_of_hub.items()}
    for path, content in contents.items():
        write_whole(out / path, content.encode())
        print(f"{out / path}: {counted(len(files_of_hub[path]), 'number')}")
    if push:
        print(f"Proposed: {_propose(push, contents)}")


def _propose(model: str, contents: dict[str, str]) -> str:
    """Open a pull request with the files on the model's repository and return its address."""
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [CommitOperationAdd(path, content.encode()) for path, content in contents.items()]
    try:
        proposed = HfApi().create_commit(
            model, operations, commit_message="Add robustness results by Holdfast", create_pr=True
        )
    except Exception as error:  # the hub's clients raise errors of many libraries
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise HoldfastError(
            f"the files are written, but cannot be proposed to {model!r} ({reason}); check the name and hf auth login"
        ) from error
    return str(proposed.pr_url)
