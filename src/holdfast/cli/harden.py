"""``holdfast harden``: fine-tune an encoder for robustness, and measure gain and cost."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli import flags
from holdfast.cli.cluster import Slurm
from holdfast.cli.compare import show
from holdfast.cli.flags import flag, like, switch
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.options import MEASURED, OUTPUT, HardenOptions
from holdfast.core.settings import pairs

if TYPE_CHECKING:
    from holdfast.commands.harden import Hardened

STOPPED = flags.CONTINUES


@flags.options(HardenOptions, "harden")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str],
    out: Path = flag(..., "Write encoder and report here; trained:DIR loads the encoder.", OUTPUT, "DIR"),
    eps: str | None = like(
        flags.Eps, help="Train against perturbations up to R in linf, as in 8/255.", show_default="1/255"
    ),
    ball: flags.Ball = None,
    epochs: int | None = flag(None, "Train N epochs (default: 10; more below 1,000 images).", MEASURED, "N", min=1),
    rate: float | None = flag(
        None, "Set the largest learning rate (default: 3e-4 with batch norm, else 2e-5).", MEASURED, "RATE"
    ),
    certified: bool = switch("--certified", "Train with proved bounds, and measure the certified radius.", MEASURED),
    noise: float | None = flag(None, "Train under Gaussian noise of this std; certify by smoothing.", MEASURED, "STD"),
    agreement: float | None = flag(
        None, "Keep the mean cosine similarity to the original at A or above.", MEASURED, "A"
    ),
    edits: str | None = flag(None, "Train under the worst of these edits, as in jpeg,gamma:0.5.", MEASURED, "NAMES"),
    bank: flags.TrainingBank = None,
    settings: flags.RecipeSettings = None,
    *,
    options: HardenOptions,
) -> int:
    """Fine-tune an encoder for robustness, from images alone.

    The command measures the encoder before and after, on images that training does not use.

    holdfast harden timm:resnet50.a1_in1k --images photos/ --eps 4/255 --out hardened
    """
    given = flags.keywords(locals())
    given["settings"] = pairs(settings or [], "--set: expected setting=value, as in epochs=10")
    from holdfast.cli.terminal import announce

    announce(f"loading {encoder} and images")
    from holdfast.commands.harden import harden

    cluster = options["cluster"]
    if cluster is not None and cluster.partition(":")[0] == Slurm.name:
        raise HoldfastError(
            "--cluster: harden trains in one process, so it cannot be several Slurm jobs. Use a Ray cluster or --workers."
        )
    # This warning is for Python; the command prints the same facts below.
    warnings.filterwarnings("ignore", r"\d+ of \d+ cells ", HoldfastWarning)
    try:
        hardened = harden(**given)
    except KeyboardInterrupt:
        from holdfast.encoders.trained import CARD  # loaded here, because it needs torch

        if (out / CARD).exists():
            print(f"trained:{out} loads the encoder so far; rerun the same command to continue", file=sys.stderr)
        raise
    return _print(hardened, out)


def _print(hardened: Hardened, out: Path) -> int:
    from holdfast.commands.compare import compare
    from holdfast.commands.harden import FOLDER
    from holdfast.report.overview.alerts import SPENT, by_budget

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
    # A spent budget leaves fewer images, or evaluations, to compare.
    try:
        if hardened.run.results:
            show(compare([out / FOLDER]))
    except HoldfastError as error:
        if not (hardened.run.failures or hardened.run.partial):
            raise
        print(f"not compared: {error}", file=sys.stderr)
    broken = hardened.promise is not None and not hardened.promise.kept
    return int(bool(broken or hardened.unfinished or hardened.run.failures or hardened.run.partial))
