"""``holdfast threshold``: recommend a similarity threshold for matching."""

from __future__ import annotations

from math import isnan

from holdfast.cli import flags
from holdfast.cli.flags import flag, like
from holdfast.cli.terminal import show_result
from holdfast.core.options import MEASURED, LocalOptions


@flags.options(LocalOptions, "threshold")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str | None] = None,
    rate: float = flag(0.001, "Allow this fraction of pairs of different images to match.", MEASURED, "RATE"),
    rates: list[float] | None = flag(
        None, "Also report this rate (default: 0.01, 0.001, 0.0001); repeatable.", MEASURED, "RATE"
    ),
    edits: str | None = flag(
        None, "Make copies by these edits, comma-separated (holdfast list transforms).", MEASURED, "NAMES"
    ),
    eps: str | None = like(flags.Eps, help="Bound the attacker by R in linf, as in 8/255.", show_default="from data"),
    ball: flags.Ball = None,
    attack: str = flag("adaptive", "Search by this attack, as in pgd:steps=40.", MEASURED, "ATTACK"),
    samples: int = flag(200, "Edit and attack N images.", MEASURED, "N", min=1),
    *,
    options: LocalOptions,
) -> int:
    """Recommend a similarity threshold for matching.

    The result includes edited copies that the threshold misses, and matches that an attacker can force or break.
    """
    given = flags.keywords(locals())
    from holdfast.commands.threshold import threshold  # loaded here, because it needs torch

    thresholds = threshold(**given)
    show_result(thresholds.result)
    recommended = thresholds.recommended
    print(f"Recommended threshold: {'none (see above)' if isnan(recommended) else f'{recommended:.4f}'}")
    if options["out"]:
        print(f"Report: {thresholds.run.report()}")
    return int(thresholds.result.planned is not None)  # a spent budget left out edited or attacked copies
