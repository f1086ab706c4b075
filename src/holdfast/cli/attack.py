"""``holdfast attack``: attack images and save what the attack found."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.core.options import MEASURED, OUTPUT, RunOptions

if TYPE_CHECKING:
    from holdfast.attacks.adversarial import AttackRecord

STOPPED = flags.CONTINUES


@flags.options(RunOptions, "attack")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str],
    out: Annotated[
        Path,
        typer.Option(
            help="Write the adversarial examples here; rerun to continue.", metavar="DIR", rich_help_panel=OUTPUT
        ),
    ],
    preset: Annotated[
        str,
        typer.Option(help="Use a published attack (holdfast list presets).", metavar="NAME", rich_help_panel=MEASURED),
    ] = "adaptive",
    eps: Annotated[str | None, flags.like(flags.Eps, show_default="the preset's")] = None,
    ball: Annotated[str | None, flags.like(flags.Ball)] = None,
    attack: Annotated[
        str | None,
        typer.Option(
            help="Replace the preset's search, as in pgd:steps=40.", metavar="ATTACK", rich_help_panel=MEASURED
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Replace the preset's objective, as in away or toward.", metavar="OBJECTIVE", rich_help_panel=MEASURED
        ),
    ] = None,
    divergence: Annotated[
        str | None,
        typer.Option(
            help="Measure the objective by this distance, as in cosine.", metavar="DISTANCE", rich_help_panel=MEASURED
        ),
    ] = None,
    *,
    options: RunOptions,
) -> int:
    """Attack images and save the adversarial examples.

    holdfast attack builtin:digits-random --images builtin:digits --out attacked
    """
    from holdfast.commands.attack import attack as run  # loaded here, because it needs torch

    options["out"], options["cluster"] = out, cluster_of(options["cluster"], options["workers"], out)
    adversarial = run(
        encoder,
        images,
        ball,
        eps=eps,
        preset=preset,
        attack=attack,
        objective=objective,
        divergence=divergence,
        **options,
    )
    return 0 if adversarial.record is None else _print(adversarial.record, out)  # None: another rank writes it


def _print(record: AttackRecord, out: Path) -> int:
    """Print what came of the attack and return the exit status."""
    how = "{objective} by {attack} in {ball}".format_map(record.settings)
    print(f"{how}: {_summary(record)}")
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


def _summary(record: AttackRecord) -> str:
    moved, cosine = (median(getattr(image, name) for image in record.moved) for name in ("l2", "cosine"))
    apart = record.clean_distance
    beside = f" ({moved / apart:.0%} of the distance of two clean embeddings)" if apart > 0 else ""
    return f"embeddings moved by {moved:.3g} in l2{beside} and {cosine:.3g} in cosine, at the median"
