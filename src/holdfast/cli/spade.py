"""``holdfast spade``: spectral scores of a map given by its inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.flags import Seed

if TYPE_CHECKING:
    from holdfast.core.records import Result
    from holdfast.evaluations.spectral.spade import Spectral
    from holdfast.store.store import Key


def command(
    inputs: Annotated[Path, typer.Option(help="A .npy or .npz file with one row per sample.")],
    outputs: Annotated[Path, typer.Option(help="The representations of the same samples, in the same order.")],
    labels: Annotated[Path | None, typer.Option(help="One integer per sample, for scores by label.")] = None,
    k: Annotated[int, typer.Option("--k", help="Neighbours of each sample in both graphs.")] = 10,
    graph: Annotated[str, typer.Option(help="knn, pca:components=50, cknn or sparsified.")] = "knn",
    repair: Annotated[
        str, typer.Option(help="What to do about an infinite score: none, increase_k, largest or mst.")
    ] = "none",
    subsets: Annotated[int, typer.Option(help="Random subsets that the intervals come from; 0: none.", min=0)] = 8,
    certify: Annotated[bool, typer.Option(help="Prove an upper bound of the score by a factorisation.")] = True,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report and for scores.npz.")] = None,
) -> int:
    """Score how a map stretches neighbourhoods, from arrays of its inputs and outputs alone."""
    # Loaded here, because these need torch.
    from holdfast.commands.output_folder import claim, require_free
    from holdfast.evaluations.spectral.features import measure, packed, read
    from holdfast.evaluations.spectral.spade import Spectral
    from holdfast.execution.request import build
    from holdfast.report import write
    from holdfast.store.store import Store

    evaluation = build(Spectral, {"k": k, "graph": graph, "repair": repair, "subsets": subsets, "certify": certify})
    assert isinstance(evaluation, Spectral)
    if out:
        require_free(out)
    arrays = read(inputs), read(outputs), None if labels is None else read(labels)
    key, store = _key(evaluation, seed, arrays, outputs.name), Store(out) if out else None
    if store:
        claim(store, "spade", key)
    result = store.result(key) if store else None
    if result is None:
        result, scores = measure(arrays[0], arrays[1], evaluation, seed, (inputs.name, outputs.name), arrays[2])
        if store:
            store.export("scores.npz", packed(scores))
            store.finish(key, result)  # last, for it says that the scores are there
    _show(result)
    if out:
        print(f"Report: {write([result], [], out)['report.html']}")
    return 0


def _key(evaluation: Spectral, seed: int, arrays: tuple[Any, Any, Any], name: str) -> Key:
    """Return what identifies the scores of ``arrays``: inputs, outputs, and labels or None."""
    from holdfast.evaluations.spectral.features import mark
    from holdfast.protocol.evaluation import settings
    from holdfast.store.store import Key

    inputs, outputs, labels = arrays
    return Key(
        kind=evaluation.name,
        version=evaluation.version,
        settings={**settings(evaluation), "labels": None if labels is None else mark(labels)},
        encoder=mark(outputs),
        images=mark(inputs),
        seed=seed,
        precision=str(outputs.dtype),
        name=name,
    )


def _show(result: Result) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.console import console, show
    from holdfast.report.text import condition, interval, number, words

    screen = console()
    grid = Table(box=box.SIMPLE_HEAD)
    for head in ("", "value", "interval", "method"):
        grid.add_column(head, overflow="fold")
    for estimate in result.estimates:
        conditions = " · ".join(condition(key, value) for key, value in estimate.conditions.items())
        cells = (
            f"{words(estimate.quantity)} ({conditions})",
            number(estimate.value),
            interval(estimate),
            estimate.method,
        )
        grid.add_row(*map(Text, cells))
    show(grid)
    for verdict in result.findings.verdicts:
        screen.print(Text(f"{verdict.question} {verdict.status}: {verdict.reason}"))
        for key, value in verdict.witness.items():
            screen.print(Text(f"  {key}: {value}"))
    for warning in result.findings.warnings:
        screen.print(Text(f"warning: {warning}"))
