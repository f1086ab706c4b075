"""``holdfast harden``: fine-tune an encoder for robustness, and measure gain and cost."""

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
from holdfast.core.options import MEASURED, OUTPUT, HardenOptions
from holdfast.core.settings import pairs

if TYPE_CHECKING:
    from holdfast.commands.evaluated_run import EvaluatedRun

STOPPED = flags.CONTINUES


@flags.options(HardenOptions, "harden")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str],
    out: Annotated[
        Path,
        typer.Option(
            help="Write encoder and report here; trained:DIR loads the encoder.", metavar="DIR", rich_help_panel=OUTPUT
        ),
    ],
    eps: Annotated[
        str | None,
        flags.like(flags.Eps, help="Train against perturbations up to R in linf, as in 8/255.", show_default="1/255"),
    ] = None,
    ball: flags.Ball = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Train N epochs (default: 10; more below 1,000 images).", metavar="N", min=1, rich_help_panel=MEASURED
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Set the largest learning rate (default: 3e-4 with batch norm, else 2e-5).",
            metavar="RATE",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    certified: Annotated[
        bool,
        typer.Option(
            "--certified", help="Train with proved bounds, and measure the certified radius.", rich_help_panel=MEASURED
        ),
    ] = False,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Train under Gaussian noise of this std; certify by smoothing.",
            metavar="STD",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    agreement: Annotated[
        float | None,
        typer.Option(
            help="Keep the mean cosine similarity to the original at A or above.",
            metavar="A",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    edits: Annotated[
        str | None,
        typer.Option(
            help="Train under the worst of these edits, as in jpeg,gamma:0.5.",
            metavar="NAMES",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    bank: flags.TrainingBank = None,
    set_: flags.RecipeSettings = None,
    *,
    options: HardenOptions,
) -> int:
    """Fine-tune an encoder for robustness, from images alone.

    The command measures the encoder before and after, on images that training does not use.

    holdfast harden timm:resnet50.a1_in1k --images photos/ --eps 4/255 --out hardened
    """
    from holdfast.cli.terminal import announce

    announce(f"loading {encoder} and images")
    from holdfast.commands.harden import FOLDER, harden
    from holdfast.report.overview.alerts import SPENT, by_budget

    options["out"], cluster = out, options["cluster"]
    if cluster is not None and cluster.partition(":")[0] == Slurm.name:
        raise HoldfastError(
            "--cluster: harden trains in one process, so it cannot be several Slurm jobs. Use a Ray cluster or --workers."
        )
    # This warning is for Python; the command prints the same facts below.
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
            agreement=agreement,
            edits=edits or (),
            bank=bank,
            settings=pairs(set_ or [], "--set: expected setting=value, as in epochs=10"),
            **options,
        )
    kept = hardened.agreement
    print(
        f"Clean images: cosine similarity {kept['agreement']:.3f} between embeddings before and after; "
        f"{kept['neighbours_kept']:.1%} of the images keep their nearest neighbour."
    )
    if hardened.promise is not None:
        print(hardened.promise.line)
    print(f"Encoder: trained:{out}")
    print(f"Report: {hardened.run.report()}")
    spent, failed = by_budget(hardened.run.failures)
    if failed:
        print("some measurements failed; the report gives the reasons", file=sys.stderr)
    if spent or hardened.run.partial:
        print(f"some measurements are missing: {SPENT}", file=sys.stderr)
    _compare(out / FOLDER, hardened.run)
    broken = hardened.promise is not None and not hardened.promise.kept
    return int(bool(broken or hardened.unfinished or hardened.run.failures or hardened.run.partial))


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
            print(f"trained:{out} loads the encoder so far; rerun the same command to continue", file=sys.stderr)
        raise
