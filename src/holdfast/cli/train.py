"""``holdfast train``: train an encoder from a recipe and images."""

from __future__ import annotations

from pathlib import Path

import typer

from holdfast.cli import flags
from holdfast.cli.flags import flag, switch
from holdfast.core.errors import HoldfastError
from holdfast.core.options import ADVANCED, COMPUTE, INPUT, OUTPUT, TrainOptions
from holdfast.core.settings import pairs

STOPPED = flags.CHECKPOINTED


@flags.options(TrainOptions, "train")
def command(
    recipe: str = typer.Argument(..., help="TOML file, or name of a recipe (holdfast list recipes).", metavar="RECIPE"),
    images: flags.Images[str | None] = None,
    out: Path | None = flag(None, "Write the encoder here; trained:DIR loads it.", OUTPUT, "DIR"),
    bank: flags.TrainingBank = None,
    settings: flags.RecipeSettings = None,
    moco: Path | None = flag(
        None, "Continue a MoCo v1 or v2 checkpoint (.pth.tar) of its authors' program.", INPUT, "FILE"
    ),
    transform: str | None = flag(None, "Transform images once before training, as in fog-c:3.", INPUT, "TRANSFORM"),
    channels: flags.Channels[int | None] = None,
    device: str | None = flag(
        None, "Compute on cpu, cuda or cuda:1; torchrun assigns devices itself.", COMPUTE, "DEVICE"
    ),
    keep_epochs: int | None = flag(None, "Keep the weights of every Nth epoch.", OUTPUT, "N", min=0),
    *,
    options: TrainOptions,
    resume: bool = switch("--resume", "Continue from a checkpoint; fail if there is none.", ADVANCED),
) -> None:
    """Train an encoder from a recipe.

    holdfast train RECIPE --images photos/ --out runs/mine
    """
    given = flags.keywords(locals())
    from holdfast.commands.train import train
    from holdfast.training.processes import rank
    from holdfast.training.recipe import read_settings

    given["out"] = out or read_settings(recipe).get("out")
    if given["out"] is None:
        raise HoldfastError('--out: no folder for the encoder. Pass --out DIR, or set out = "..." in the recipe file.')
    given["settings"] = pairs(settings or [], "--set: expected setting=value, as in epochs=10")
    encoder = train(**given)
    if rank() == 0:
        print(f"Encoder: {encoder.source}")
