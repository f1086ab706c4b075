"""``holdfast attack``: attack images and save what the attack found."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.cli.flags import flag, like
from holdfast.core.options import MEASURED, OUTPUT, RunOptions

if TYPE_CHECKING:
    from holdfast.attacks.adversarial import AttackRecord

STOPPED = flags.CONTINUES


@flags.options(RunOptions, "attack")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str],
    out: Path = flag(..., "Write the adversarial examples here; rerun to continue.", OUTPUT, "DIR"),
    preset: str = flag("adaptive", "Use a published attack (holdfast list presets).", MEASURED, "NAME"),
    eps: str | None = like(flags.Eps, show_default="the preset's"),
    ball: flags.Ball = None,
    attack: str | None = flag(None, "Replace the preset's search, as in pgd:steps=40.", MEASURED, "ATTACK"),
    objective: str | None = flag(None, "Replace the preset's objective, as in away or toward.", MEASURED, "OBJECTIVE"),
    divergence: str | None = flag(None, "Measure the objective by this distance, as in cosine.", MEASURED, "DISTANCE"),
    *,
    options: RunOptions,
) -> int:
    """Attack images and save the adversarial examples.

    holdfast attack builtin:digits-random --images builtin:digits --out attacked
    """
    given = flags.keywords(locals())
    from holdfast.commands.attack import attack as run  # loaded here, because it needs torch

    adversarial = run(**{**given, "cluster": cluster_of(options["cluster"], options["workers"], out)})
    if (record := adversarial.record) is None:  # another rank writes it
        return 0
    how = "{objective} by {attack} in {ball}".format_map(record.settings)
    moved, cosine = (median(getattr(image, name) for image in record.moved) for name in ("l2", "cosine"))
    apart = record.clean_distance
    beside = f" ({moved / apart:.0%} of the distance of two clean embeddings)" if apart > 0 else ""
    print(f"{how}: embeddings moved by {moved:.3g} in l2{beside} and {cosine:.3g} in cosine, at the median")
    print(f"Attacked images: {out / ('sheet.png' if record.moved[0].png else 'attack.safetensors')}")
    if rounding := _rounding(record):
        print(f"{rounding}; {out / 'attack.safetensors'} holds the exact pixels", file=sys.stderr)
    return int(record.missing > 0 or not record.replay.passed)


def _rounding(record: AttackRecord) -> str:
    """Return in a sentence how many PNG files show other attacks than those measured; nothing if none does."""
    outside = [image for image in record.moved if image.png_in_ball is False]
    undone = sum(image.png_is_clean is True for image in record.moved)
    of, ball = f"of {len(record.moved)} PNG files", record.settings["ball"]
    largest = max((image.norm_of_png or 0.0 for image in outside), default=0.0)
    size = f"{255 * largest:.3g}/255" if "/255" in ball else f"{largest:.3g}"
    parts = [
        *([f"{len(outside)} {of} leave {ball} (up to {size})"] if outside else []),
        *([f"{undone} {of} are the clean image again"] if undone else []),
    ]
    return f"rounded to 8 bits, {' and '.join(parts)}" if parts else ""
