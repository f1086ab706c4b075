"""Measure encoders on images and return the results."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Unpack, cast
from weakref import finalize

from holdfast.commands.evaluated_run import SETS, EvaluatedRun, write_report, write_sets
from holdfast.core.balls import Ball
from holdfast.core.errors import HoldfastError, HoldfastWarning, check_given_once, explained
from holdfast.core.files import write_whole
from holdfast.core.options import EvaluateOptions, takes
from holdfast.core.settings import budget_start, listed, names_of, seconds
from holdfast.encoders.trained import every_epoch
from holdfast.measure.store import REQUEST, Store
from holdfast.report.contents import RunState
from holdfast.report.elsewhere import tracker_of
from holdfast.run.engines.ranks import RANKS, process_rank
from holdfast.run.engines.requested import check_cluster
from holdfast.run.inputs import (
    Loaded,
    NamedEncoder,
    NamedImages,
    encoders_by_reference,
    named_images,
    reference_of,
    reference_or_images,
)
from holdfast.run.request import Request
from holdfast.run.run import Run


class MissingResultsWarning(HoldfastWarning):
    """Some cells have no result, or only that of fewer samples than planned."""


@takes(EvaluateOptions)
def evaluate(
    encoders: NamedEncoder | Sequence[NamedEncoder] = (),
    images: NamedImages | Sequence[NamedImages] | None = None,
    *,
    bank: NamedImages | None = None,
    suite: str = "quick",
    only: str | Sequence[str] = (),
    eps: str | float | Sequence[str | float] = (),
    ball: str | Ball | Sequence[str | Ball] = (),
    baselines: str | Sequence[str] = (),
    bank_limit: int | None = None,
    attack_seed: int | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    arch: str | Sequence[str] = (),
    black_box: bool = False,
    rehash: bool = False,
    log: str | Sequence[str] = (),
    **options: Unpack[EvaluateOptions],
) -> EvaluatedRun:
    """Return what evaluations find of encoders on unlabelled images.

    Args:
        encoders: one or several, in memory or by name; by default the built-in ones.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1]; the built-in encoders have their own.
            A list names several data sets; the report then has their mean and ranks.
        bank: other images, usually labelled, that probes learn from and retrieval searches.
        suite: how much of each: ``quick``, ``standard``, ``full``, or a paper such as ``petrov2022``.
        only: names of evaluations; all by default.
        eps: radius of a linf ball, or several; by default, in ``quick``, radii at which the strongest encoder loses between
            .2 and .8 of the images, else the evaluations' own.
        ball: any ball, or several, as ``Linf(8 / 255)`` or ``"l2:0.5"``.
        baselines: what to measure beside the encoders: pixels, random.
        bank_limit: largest number of reference images, sampled by ``seed``.
        attack_seed: decides what is random inside attacks and sampling.
        settings: of evaluations by name, as in ``{"breakaway": {"samples": 500}}``.
        arch: ``package.module:factory``, which builds the module of a checkpoint; one for all, or one for each.
        black_box: use no gradients: the attack square everywhere.
        rehash: read all image files again, unchanged ones too.
        log: where the numbers, intervals, report and table are kept as well: ``mlflow``, ``wandb``, ``tensorboard`` or
            ``trackio``; a colon and an experiment, a project or a folder may follow, as in ``wandb:encoders``.

    Raises:
        HoldfastError: something that was named does not exist or does not fit.
    """
    check_cluster("evaluate", options["cluster"], options["out"])
    _check_tables(settings)
    trackers = names_of(log, "log")
    for tracker in trackers:
        tracker_of(tracker)  # a missing one is said before the work begins
    asked: dict[str, Any] = {
        **options,
        "suite": suite,
        "only": tuple(names_of(only, "only")),
        "eps": tuple(listed(eps)),
        "ball": tuple(listed(ball)),
        "baselines": tuple(names_of(baselines, "baselines")),
        "bank_limit": bank_limit,
        "attack_seed": attack_seed,
        "settings": settings or {},
        "arch": tuple(listed(arch)),
        "black_box": black_box,
        "rehash": rehash,
        "log": tuple(trackers),
    }

    of_epochs = [
        each for given in listed(encoders) for each in (every_epoch(given) if isinstance(given, str) else [given])
    ]

    def measured(data_set: NamedImages | None, **changes: Any) -> EvaluatedRun:
        return _measured(of_epochs, data_set, bank, {**asked, **changes})

    several = isinstance(images, (list, tuple))
    run = each_data_set(measured, listed(images), asked) if several else measured(cast(NamedImages | None, images))
    for sentence in _gaps(run):
        warnings.warn(sentence, MissingResultsWarning, stacklevel=3)
    return run


def _check_tables(settings: object) -> None:
    """Raise unless ``settings`` are tables of settings by the name of their evaluation."""
    tables = settings.items() if isinstance(settings, Mapping) else ()
    for name, values in (("settings", {} if settings is None else settings), *tables):
        if not isinstance(values, Mapping):
            form = '{"breakaway": {"samples": 500}}'
            raise HoldfastError(f"settings have the form {form}, got {values!r} for {name}")


def _gaps(run: EvaluatedRun) -> Iterator[str]:
    cells = len(run.results) + len(run.failures)
    if run.failures:
        first = run.failures[0]
        missing = f"{len(run.failures)} of {cells} cells have no result, see run.failures; the first"
        yield f"{missing}: {first.evaluation} of {first.encoder}: {first.reason}"
    if run.partial:
        why = "because the run ended before; the same call with out= goes on"
        yield f"{len(run.partial)} of {cells} cells are of fewer samples than planned, {why}"


def _measured(
    encoders: Sequence[NamedEncoder], images: NamedImages | None, bank: NamedImages | None, asked: Mapping[str, Any]
) -> EvaluatedRun:
    """Return the run on one data set; ``asked`` are the fields of a request and the options of ``evaluate``."""
    out = asked["out"]
    if out and (Path(out) / SETS).exists():
        raise HoldfastError(f"out: {out} holds a run of several data sets. Choose another folder for a run of one.")
    (images_name, loaded), (bank_name, loaded_bank) = named_images(images), named_images(bank)
    with ExitStack() as stack:
        folder = str(out or stack.enter_context(TemporaryDirectory(prefix="holdfast-")))
        asked = {**asked, "out": folder}
        request = Request.of(
            **{name: value for name, value in asked.items() if name != "progress"},
            encoders=tuple(map(reference_of, encoders)),
            images=images_name,
            bank=bank_name,
        )
        ready = Loaded(encoders_by_reference(encoders), loaded, loaded_bank)
        with ExitStack() as work:  # ends before the folder does
            run = work.enter_context(Run.open("evaluate", asked, mark=None))
            report = work.enter_context(FolderReport(Path(folder) if out and run.is_main else None))
            results, failures = run.answer(request, ready, report.write if out else None)
        answer = EvaluatedRun(tuple(results), tuple(failures), Path(folder), report.page)
        finalize(answer, stack.pop_all().close)  # a folder that the user did not name lives as long as the answer
    for tracker in asked["log"] if run.is_main else ():
        answer.log(tracker)
    return answer


def evaluate_one(encoder: NamedEncoder, images: NamedImages | None, **keywords: Any) -> EvaluatedRun:
    """Return the run of one encoder and one evaluation, for verbs that ask one question; ``keywords`` as for ``evaluate``.

    Raises:
        HoldfastError: there is no result, and why.
    """
    named_images(images)  # a list is refused: the answer is about one data set
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingResultsWarning)
        run = evaluate(encoder, images, **{**keywords, "arch": keywords["arch"] or ()})
    if not run.results:
        raise HoldfastError(run.failures[0].reason)
    return run


@dataclass
class FolderReport(AbstractContextManager["FolderReport"]):
    """Report in the folder ``out`` of a run: renewed while the run goes on, and final however it ends.

    A run that a mistake ends before anything was computed leaves none.
    """

    folder: Path | None
    """Folder ``out``; None without."""
    page: Path | None = None
    """The page, if one was written."""

    def write(self, state: RunState | None = None) -> None:
        """Write a report of what there is; ``state`` says how far a run is that goes on."""
        if self.folder is not None:
            self.page = write_report(Store(self.folder), self.folder, state)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stopped = kind is KeyboardInterrupt and self.folder is not None and Store(self.folder).results()
        if kind is None or self.page or stopped:
            self.write()


# Several data sets: a run for each in a folder of its own, and one report of their mean and ranks.

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
