"""One evaluation of several data sets: a run for each in a folder of its own, and one report of their mean and ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any
from weakref import finalize

from holdfast.commands.evaluated_run import SETS, EvaluatedRun, write_sets
from holdfast.core.clock import budget_start
from holdfast.core.errors import HoldfastError, check_given_once, explained
from holdfast.core.files import write_whole
from holdfast.core.settings import seconds
from holdfast.measure.store import REQUEST
from holdfast.run.engines.ranks import RANKS, process_rank
from holdfast.run.inputs import reference_of, reference_or_images

SPENT = 1e-3
"""Seconds for a data set that begins after the budget ended: its run then says what is missing."""


def each_data_set(
    measured: Callable[..., EvaluatedRun], images: Sequence[Any], asked: Mapping[str, Any]
) -> EvaluatedRun:
    """Return one run of all ``images``, or the run of the only ones.

    Args:
        measured: Returns the run of one data set, for other values of ``out`` and ``budget``.
        images: Data sets, in memory or by name.
        asked: What is asked of all data sets together.
    """
    if not images:
        raise HoldfastError("images: the list is empty. Name one or more data sets, or leave images out.")
    if len(images) == 1:
        return measured(images[0])
    named = [reference_or_images(each) for each in images]
    in_memory = [each.name for each in named if not isinstance(each, str)]
    if len(set(in_memory)) < len(in_memory):
        raise HoldfastError(
            f"images: two data sets in memory share a name, got {', '.join(in_memory)}. Name each, as in "
            "Images(pixels, name='cats')."
        )
    runs = dict[str, EvaluatedRun]()
    names = folder_names([each if isinstance(each, str) else reference_of(each) for each in named])
    ends = None if asked["budget"] is None else budget_start() + seconds(asked["budget"])
    leads = asked["cluster"] != RANKS or process_rank()[0] == 0
    with ExitStack() as stack:
        folder = Path(asked["out"] or stack.enter_context(TemporaryDirectory(prefix="holdfast-")))
        with _listed(names, folder, leads):
            for place, (name, one) in enumerate(zip(names, named, strict=True)):
                # Every set gets the same part of the time that is left.
                budget = None if ends is None else max((ends - monotonic()) / (len(names) - place), SPENT)
                runs[name] = measured(one, out=str(folder / name), budget=budget)
        whole = EvaluatedRun(
            tuple(result for run in runs.values() for result in run.results),
            tuple(failure for run in runs.values() for failure in run.failures),
            folder,
            write_sets(runs, folder, asked["suite"]) if leads and asked["out"] else None,
            runs,
        )
        finalize(whole, stack.pop_all().close)  # a folder that the user did not name lives as long as the run
    return whole


@contextmanager
def _listed(names: Sequence[str], folder: Path, leads: bool) -> Iterator[None]:
    """Keep the names of the data sets, by which other commands know the folder, unless a mistake ends all at once."""
    if (folder / REQUEST).exists():
        raise HoldfastError(f"out: {folder} holds a run of one data set. Choose another folder for a run of several.")
    new = leads and not (folder / SETS).exists()
    with explained(f"out: cannot write to {folder}", "choose another folder", OSError):
        if leads:
            write_whole(folder / SETS, json.dumps(names).encode())
    try:
        yield
    finally:
        if new and not any((folder / name / REQUEST).exists() for name in names):
            (folder / SETS).unlink(missing_ok=True)


def folder_names(references: Sequence[str]) -> list[str]:
    """Return a folder name for each data set: its last word, or all of its reference where two share that.

    Raises:
        HoldfastError: One data set is named twice.

    Example:
        >>> folder_names(["a/val/?labels=folders", "b/val", "builtin:digits"])
        ['a_val_labels_folders', 'b_val', 'digits']
    """
    paths = [path.resolve() if (path := Path(each)).exists() else each for each in references]
    check_given_once("images", [str(path) for path in paths])
    words = [_word(re.split("[/:]", each.partition("?")[0].rstrip("/"))[-1]) for each in references]
    if len(words) > 1:
        shared = {word for word in words if words.count(word) > 1 or not word.strip(".")}
        words = [
            _word(each).lstrip("._") if word in shared else word for word, each in zip(words, references, strict=True)
        ]
        check_given_once("images", words)
    return words


def _word(text: str) -> str:
    return re.sub(r"[^\w.]+", "_", text) or "images"
