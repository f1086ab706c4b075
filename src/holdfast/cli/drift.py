"""``holdfast drift``: test whether new images differ from reference images."""

from __future__ import annotations

import typer

from holdfast.cli import flags
from holdfast.cli.flags import flag, switch
from holdfast.cli.terminal import show_result
from holdfast.core.options import ADVANCED, INPUT, MEASURED, LocalOptions


@flags.options(LocalOptions, "drift")
def command(
    before: str = typer.Argument(..., help="Reference images: a folder or source:name.", metavar="BEFORE"),
    after: str = typer.Argument(..., help="New images to test: a folder or source:name.", metavar="AFTER"),
    encoder: str | None = flag(
        None, "Embed images by source:name (default: both sets are embeddings).", INPUT, "ENCODER"
    ),
    alpha: float = flag(0.05, "Set the false-alarm rate (significance level), from 0 to 1.", MEASURED, "RATE"),
    sequential: bool = switch("--sequential", "Use the test that stays valid after every image.", MEASURED),
    divergence: str = flag(
        "l2", "Measure distances by l2, unit_l2, cosine, rank, wasserstein or tokens.", MEASURED, "DISTANCE"
    ),
    permutations: int = flag(1000, "Draw at least N random splits into two sets.", ADVANCED, "N", min=1),
    edits: str | None = flag(
        None, "Try these edits as explanations, comma-separated (holdfast list transforms).", MEASURED, "NAMES"
    ),
    *,
    options: LocalOptions,
) -> int:
    """Test whether new images differ from reference images; exit 1 if so.

    holdfast drift photos/may photos/june --encoder timm:resnet50
    """
    given = flags.keywords(locals())
    from holdfast.commands.drift import drift  # loaded here, because it needs torch

    drifted = drift(**given)
    show_result(drifted.result)
    if options["out"]:
        print(f"Report: {drifted.run.report()}")
    return int(drifted.moved)
