"""``holdfast train``: train an encoder from a recipe and images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.core.errors import HoldfastError
from holdfast.core.options import ADVANCED, COMPUTE, INPUT, OUTPUT, TrainOptions
from holdfast.core.settings import pairs

STOPPED = flags.CHECKPOINTED


@flags.options(TrainOptions, "train")
def command(
    recipe: Annotated[
        str, typer.Argument(help="TOML file, or name of a recipe (holdfast list recipes).", metavar="RECIPE")
    ],
    images: flags.Images[str | None] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the encoder here; trained:DIR loads it.", metavar="DIR", rich_help_panel=OUTPUT),
    ] = None,
    bank: flags.TrainingBank = None,
    set_: flags.RecipeSettings = None,
    moco: Annotated[
        Path | None,
        typer.Option(
            help="Continue a MoCo v1 or v2 checkpoint (.pth.tar) of its authors' program.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="Transform images once before training, as in fog-c:3.", metavar="TRANSFORM", rich_help_panel=INPUT
        ),
    ] = None,
    channels: flags.Channels[int | None] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Compute on cpu, cuda or cuda:1; torchrun assigns devices itself.",
            metavar="DEVICE",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    keep_epochs: Annotated[
        int | None,
        typer.Option(help="Keep the weights of every Nth epoch.", metavar="N", min=0, rich_help_panel=OUTPUT),
    ] = None,
    *,
    options: TrainOptions,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue from a checkpoint; fail if there is none.", rich_help_panel=ADVANCED),
    ] = False,
) -> None:
    """Train an encoder from a recipe.

    holdfast train RECIPE --images photos/ --out runs/mine
    """
    from holdfast.commands.train import train
    from holdfast.training.processes import rank
    from holdfast.training.recipe import read_settings

    options["out"] = out or read_settings(recipe).get("out")
    if options["out"] is None:
        raise HoldfastError('--out: no folder for the encoder. Pass --out DIR, or set out = "..." in the recipe file.')
    encoder = train(
        recipe,
        images,
        bank=bank,
        moco=moco,
        transform=transform,
        channels=channels,
        device=device,
        keep_epochs=keep_epochs,
        resume=resume,
        settings=pairs(set_ or [], "--set: expected setting=value, as in epochs=10"),
        **options,
    )
    if rank() == 0:
        print(f"Encoder: {encoder.source}")
