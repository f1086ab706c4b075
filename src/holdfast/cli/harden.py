"""``holdfast harden``: an encoder and images to a more robust encoder, and what that gained and cost."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import compare, flags
from holdfast.cli.cluster import Slurm
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.options import HardenOptions
from holdfast.core.settings import pairs

if TYPE_CHECKING:
    from holdfast.commands.evaluated_run import EvaluatedRun

STOPPED = flags.CONTINUES


@flags.options(HardenOptions, "harden")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str],
    out: Annotated[Path, typer.Option(help="Folder for the encoder and the report; trained:OUT then loads it.")],
    eps: Annotated[
        str | None, flags.like(flags.Eps, help="Radius of the linf ball to resist, as in 8/255.", show_default="1/255")
    ] = None,
    ball: flags.Ball = None,
    epochs: Annotated[
        int | None, typer.Option(help="How often training sees each image; more often where there are few.", min=1)
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="The largest learning rate; 1e-5 for large transformers, 1e-3 for a few layers."),
    ] = None,
    certified: Annotated[
        bool,
        typer.Option("--certified", help="Train against the worst codes that bounds allow; measure what is proved."),
    ] = False,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Hold codes still under noise of this deviation; measure what is certified of the smoothed one."
        ),
    ] = None,
    bank: flags.TrainingBank = None,
    set_: flags.RecipeSettings = None,
    *,
    options: HardenOptions,
) -> int:
    """Make an encoder more robust with images alone, and measure it before and after."""
    from holdfast.cli.terminal import announce

    announce(f"loading {encoder} and images")
    from holdfast.commands.harden import FOLDER, harden
    from holdfast.report.overview.alerts import SPENT, by_budget

    options["out"], cluster = out, options["cluster"]
    if cluster is not None and cluster.partition(":")[0] == Slurm.name:
        raise HoldfastError(
            "harden trains in one process, so it cannot be several jobs; name a Ray cluster or --workers"
        )
    # What this warning says in the words of Python is said below.
    warnings.filterwarnings("ignore", r"\d+ of \d+ cells ", HoldfastWarning)
    with _stopped_while_measuring(out):
        hardened = harden(
            encoder,
            images,
            ball=ball,
            eps=eps,
            epochs=epochs,
            rate=rate,
            certified=certified,
            noise=noise,
            bank=bank,
            settings=pairs(set_ or [], "--set takes setting=value, as in epochs=10"),
            **options,
        )
    kept = hardened.agreement
    print(
        f"On clean images the codes have a cosine similarity of {kept['agreement']:.3f} to what they were, and "
        f"{kept['neighbours_kept']:.1%} of the images have the same nearest neighbour."
    )
    print(f"Encoder: trained:{out}")
    print(f"Report: {hardened.run.report()}")
    spent, failed = by_budget(hardened.run.failures)
    if failed:
        print("not all was measured; the report says why", file=sys.stderr)
    if spent or hardened.run.partial:
        print(f"not all was measured yet: {SPENT}", file=sys.stderr)
    _compare(out / FOLDER, hardened.run)
    return int(bool(hardened.unfinished or hardened.run.failures or hardened.run.partial))


def _compare(folder: Path, run: EvaluatedRun) -> None:
    """Print what hardening gained, of all that was measured: a spent budget leaves fewer images, or evaluations."""
    try:
        if run.results:
            compare.command([folder])
    except HoldfastError as error:
        if not (run.failures or run.partial):
            raise
        print(f"not compared: {error}", file=sys.stderr)


@contextmanager
def _stopped_while_measuring(out: Path) -> Iterator[None]:
    """Say which encoder there is if the command is stopped."""
    try:
        yield
    except KeyboardInterrupt:
        from holdfast.encoders.trained import CARD  # loaded here, because it needs torch

        if (out / CARD).exists():
            print(f"trained:{out} loads the encoder so far; the same command goes on", file=sys.stderr)
        raise
