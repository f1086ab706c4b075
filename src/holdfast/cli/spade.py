"""``holdfast spade``: SPADE scores of a map, from arrays of its inputs and outputs."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli import flags
from holdfast.cli.flags import flag
from holdfast.cli.terminal import show_result
from holdfast.core.options import ADVANCED, INPUT, MEASURED, OUTPUT, Seeding


@flags.options(Seeding, "spade")
def command(
    inputs: Path = flag(..., "Read inputs from .npy or .npz, one row per sample.", INPUT, "FILE"),
    outputs: Path = flag(..., "Read the embeddings of the same samples, in order.", INPUT, "FILE"),
    labels: Path | None = flag(None, "Read one integer per sample, for scores by label.", INPUT, "FILE"),
    k: int = flag(10, "Connect each sample to K neighbours in both graphs.", MEASURED, "K", name="--k"),
    graph: str = flag("knn", "Build a knn, pca:components=50, cknn or sparsified graph.", MEASURED, "GRAPH"),
    repair: str = flag("none", "Repair a disconnected graph by none, increase_k, largest or mst.", MEASURED, "NAME"),
    subsets: int = flag(8, "Draw N random subsets for intervals; 0: no intervals.", ADVANCED, "N", min=0),
    certify: bool = flag(True, "Prove an upper bound of the score (default: yes).", MEASURED),
    *,
    options: Seeding,
    out: Path | None = flag(None, "Write report and scores.npz here (default: nothing).", OUTPUT, "DIR"),
) -> int:
    """Compute SPADE scores from two arrays.

    holdfast spade --inputs X.npy --outputs Y.npy
    """
    given = flags.keywords(locals())
    from holdfast.commands.spade import spade  # loaded here, because it needs torch

    stretch = spade(**given)
    show_result(stretch.result)
    if stretch.report:
        print(f"Report: {stretch.report}")
    return 0
