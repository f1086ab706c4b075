"""Stored results as the evaluation-result files of a model repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.commands.evaluated_run import StoredRun, folder_of
from holdfast.commands.runs import read
from holdfast.core.errors import HoldfastError, check_no_blanks, explained
from holdfast.core.files import write_whole
from holdfast.core.settings import listed, names_of
from holdfast.report.contents import select_results
from holdfast.report.elsewhere import check_repository, files, of_encoder, yaml


@dataclass(frozen=True)
class Published:
    """What was written, and where it was proposed."""

    numbers: Mapping[Path, int]
    """How many numbers each file holds."""
    proposal: str | None
    """The address of the pull request, if one was asked for."""


def publish(
    run: StoredRun,
    dataset: str,
    out: str | Path,
    *,
    encoder: str | None = None,
    only: str | Sequence[str] = (),
    where: str | Sequence[str] = (),
    push: str | None = None,
) -> Published:
    """Write an encoder's main numbers as evaluation results of its Hugging Face model page.

    Args:
        run: a run, or the folder of one.
        dataset: the benchmark these results are of, as OWNER/NAME on the hub.
        out: folder to write ``.eval_results/`` into, such as a clone of the model's.
        encoder: which one, if the run has several.
        only: names of evaluations; all by default.
        where: conditions, as in ``"attack=adaptive"`` or ``"linf:8/255"``, that all must hold.
        push: propose the files to this model, OWNER/NAME on the hub, as a pull request.

    Raises:
        HoldfastError: there is nothing to publish, or the hub refuses the proposal.
    """
    check_no_blanks(locals())
    for flag, repository in (("dataset", dataset), ("push", push)):
        if repository is not None:
            check_repository(repository, flag)
    folder, evaluations = folder_of(run), names_of(only, "only")
    results, _ = read([folder])
    if not results:
        raise HoldfastError(f"{folder}: no results to publish; repeat the run's holdfast evaluate")
    entries = files(select_results(of_encoder(results, encoder), evaluations, listed(where)), dataset)
    if not entries:
        raise HoldfastError(f"{folder}: none of the main numbers chosen is defined, so there is nothing to publish")
    contents = {path: yaml(entries_of_file) for path, entries_of_file in entries.items()}
    for path, content in contents.items():
        write_whole(Path(out) / path, content.encode())
    numbers = {Path(out) / path: len(entries_of_file) for path, entries_of_file in entries.items()}
    return Published(numbers, _propose(push, contents) if push else None)


def _propose(model: str, contents: Mapping[str, str]) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [CommitOperationAdd(path, content.encode()) for path, content in contents.items()]
    problem = f"the files are written, but cannot be proposed to {model!r}"
    with explained(problem, "check the name and hf auth login"):
        proposed = HfApi().create_commit(
            model, operations, commit_message="Add robustness results by Holdfast", create_pr=True
        )
    return str(proposed.pr_url)
