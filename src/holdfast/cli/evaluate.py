"""``holdfast evaluate``: encoders and images in, one report out."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.cli.flags import flag, like, switch
from holdfast.cli.terminal import may_warn
from holdfast.core.errors import HoldfastError
from holdfast.core.options import ADVANCED, INPUT, MEASURED, OUTPUT, Arch, EvaluateOptions, Limit, Out
from holdfast.core.settings import listed, names_of
from holdfast.run.engines.ranks import RANKS, process_rank

if TYPE_CHECKING:
    from holdfast.commands.evaluated_run import EvaluatedRun

STOPPED = flags.CONTINUES


@flags.options(EvaluateOptions, "evaluate", optional=True)
def command(
    encoders: list[str] | None = typer.Argument(
        None, help="One or more as source:name (default: four built-in encoders).", metavar="ENCODERS..."
    ),
    images: list[str] | None = like(
        flags.Images, help="Read a folder, array file, tar shards, URL or source:name; repeatable."
    ),
    bank: str | None = flag(None, "Reference set: retrieval searches it, probes train on its labels.", INPUT, "DIR"),
    suite: str | None = flag(
        None, "Run quick (minutes), standard, full, or a paper: wang2022 ...", MEASURED, "NAME", show_default="quick"
    ),
    only: str | None = like(
        flags.Only, help="Run only these evaluations, comma-separated (holdfast list evaluations)."
    ),
    eps: list[str] | None = like(
        flags.Eps, help="Bound perturbations by R in linf, as in 8/255; repeatable.", show_default="from data"
    ),
    ball: list[str] | None = like(flags.Ball, help="Bound perturbations in another norm, as in l2:0.5; repeatable."),
    baselines: str | None = flag(None, "Add reference encoders, comma-separated: pixels, random.", MEASURED, "NAMES"),
    bank_limit: int | None = like(
        Limit, help="Use at most N reference images, sampled with --seed (default: all).", rich_help_panel=ADVANCED
    ),
    attack_seed: int | None = flag(None, "Seed attacks with N; images stay the same (default: --seed).", ADVANCED, "N"),
    settings: list[str] | None = flag(
        None,
        "Override a setting, as in breakaway.samples=500; repeat for a list.",
        MEASURED,
        "NAME.KEY=V",
        name="--set",
    ),
    arch: list[str] | None = like(Arch, help="Build checkpoint modules by one factory, or one each; repeatable."),
    black_box: bool | None = like(flags.BlackBox),
    *,
    options: EvaluateOptions,
    rehash: bool | None = switch(
        "--rehash", "Read all image files again, even unchanged ones.", ADVANCED, default=None
    ),
    config: Path | None = flag(None, "Read flags as keys and a table per evaluation from TOML.", ADVANCED, "FILE"),
    out: Path | None = like(Out, show_default="runs/IMAGES-SUITE"),
    log: list[str] | None = flag(
        None, "Also log to mlflow, wandb, tensorboard or trackio; repeatable.", OUTPUT, "TRACKER"
    ),
) -> int:
    """Measure encoders on images and write a report.

    Images need no labels. Without arguments, the command measures built-in encoders on built-in images.

    holdfast evaluate timm:resnet50.a1_in1k --images photos/ --eps 8/255 --out runs/photos
    """
    given = flags.keywords(locals())
    for name in ("only", "baselines"):
        if name in given:
            given[name] = names_of(given[name], f"--{name}")
    if settings:
        given["settings"] = _settings(settings, given.get("only"))
    if out:
        given["out"] = str(out)
    given.pop("config", None)
    return _evaluate(given, config)


def _evaluate(chosen: dict[str, Any], config: Path | None) -> int:
    # Loaded here, because these need torch.
    from holdfast.commands.evaluate import MissingResultsWarning, evaluate
    from holdfast.commands.runs import data_sets
    from holdfast.measure.store import Store
    from holdfast.run.request import keywords

    merged = keywords(chosen, config)
    merged["cluster"] = cluster_of(merged.get("cluster"), merged.get("workers"), Path(merged.get("out") or "runs"))
    merged.setdefault(
        "out", _folder(merged.get("images") or _codes(merged.get("encoders", ())), merged.get("suite", "quick"))
    )
    follows = merged["cluster"] == RANKS and process_rank()[0] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingResultsWarning)  # what is missing is said below, one by one
        try:
            run = evaluate(**merged, progress=not follows)
        except KeyboardInterrupt:
            if not follows:
                for folder in data_sets(Path(merged["out"])):
                    results = Store(folder).results()
                    if (folder / "report.html").exists() and results:
                        partial = sum(result.planned is not None for result in results)
                        print(f"{folder} holds {len(results)} results, {partial} of them partial", file=sys.stderr)
                        print(f"Report: {folder / 'report.html'}")
            raise
    return 0 if follows else _print(run, merged.get("suite", "quick"))


def _print(run: EvaluatedRun, suite: str) -> int:
    from holdfast.report.comparison.comparable import groups, with_relative_errors
    from holdfast.report.contents import Contents
    from holdfast.report.overview.advice import gate_command
    from holdfast.report.overview.alerts import SPENT, alerts, by_budget, counted_states, missing_sentences
    from holdfast.report.overview.first_screen import lines
    from holdfast.report.papers import paper_table
    from holdfast.report.text import counted, listed

    page = run.report()
    spent, failed = by_budget(run.failures)
    sentences = [*missing_sentences(failed)]
    if spent or run.partial or failed:
        finished = len(run.results) - len(run.partial)
        sentences.append(f"cells: {counted_states(finished, len(run.partial), len(spent), len(failed))}")
    if spent or run.partial:
        sentences.append(SPENT)
    if failed:
        sentences.append("fix the cause and rerun the same command; it computes only what is missing")
    contents = Contents(with_relative_errors(run.results), run.failures)
    screens = () if run.data_sets else contents.first_screens  # each is of one data set
    notes = alerts(groups(run.results))
    # Duplicates spoil every number and can be removed now; other warnings are notes of the report.
    for alert in [note for note in notes if not contents.first_screens or note.kind == "duplicates"]:
        if may_warn(alert.warning):
            sentences.append(f"warning about {listed(alert.encoders)} ({alert.where}): {alert.warning}")
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    for line in lines(screens[0]) if screens else ():
        print(line)
    if run.data_sets:
        print((page.parent / "sets.md").read_text())
    elif table := paper_table(run.results, suite):
        print(f"\n{table}")
    if contents.first_screens and notes:
        print(f"Notes: {counted(len(notes), 'note')}, in the report")
    folders = [str(page.parent)]
    if screens:
        name, command = gate_command(contents.tables[0], contents.groups, contents.failures, folders, contents.screen)
        if command:
            print(f"Next, to notice when {name} gets worse: {command}")
    print(f"Report: {page}")
    return 1 if run.failures or run.partial else 0


def _folder(images: str | Sequence[str] | None, suite: str) -> str:
    """Return the folder of a run for which none was named.

    Example:
        >>> _folder("/data/my photos/?labels=folders", "quick"), _folder(["builtin:digits", "photos/"], "full")
        ('runs/my_photos-quick', 'runs/digits+photos-full')
    """
    from holdfast.commands.evaluate import folder_names
    from holdfast.run.inputs import TOUR

    return str(Path("runs") / f"{'+'.join(folder_names(listed(images or TOUR)))}-{suite}")


def _codes(encoders: Sequence[str]) -> str | None:
    """Return the first file of codes, if these are measured without images.

    Example:
        >>> _codes(["embeddings:runs/codes.npy?ids=ids.txt"])
        'embeddings:runs/codes.npy?ids=ids.txt'
    """
    from holdfast.encoders.by_name import named
    from holdfast.encoders.embeddings import SOURCE

    files = [reference for _, reference in map(named, encoders) if reference.startswith(f"{SOURCE}:")]
    return files[0] if len(files) == len(encoders) and files else None


def _settings(texts: list[str], only: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return ``evaluation.field=value`` texts as settings; a field given several times becomes a list."""
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        where, equals, value = text.partition("=")
        evaluation, dot, name = where.partition(".")
        if not (equals and dot and name):
            raise HoldfastError(f"--set: expected evaluation.setting=value, as in breakaway.samples=500; got {text!r}")
        values = settings.setdefault(evaluation, {})
        before = values.get(name)
        values[name] = value if before is None else [*(before if isinstance(before, list) else [before]), value]
    if idle := sorted(set(settings) - set(only or settings)):
        raise HoldfastError(
            f"--set {idle[0]}...: has no effect, because --only excludes {idle[0]}. Add it to --only, or leave --set out."
        )
    return settings
