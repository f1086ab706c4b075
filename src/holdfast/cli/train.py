"""``holdfast train``: a recipe and images to an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.core.errors import HoldfastError
from holdfast.core.options import COMPUTES, TrainOptions
from holdfast.core.settings import pairs

STOPPED = flags.CHECKPOINTED


@flags.options(TrainOptions, "train")
def command(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or a name (holdfast list recipes).")],
    images: flags.Images[str | None] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the encoder; trained:OUT then loads it.")] = None,
    bank: flags.TrainingBank = None,
    set_: flags.RecipeSettings = None,
    transform: Annotated[
        str | None, typer.Option(help="Change the images first, the same way in every epoch, as in fog-c:3.")
    ] = None,
    channels: flags.Channels[int | None] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or cuda:1; torchrun gives each process its own.", rich_help_panel=COMPUTES),
    ] = None,
    keep_epochs: Annotated[int | None, typer.Option(help="Keep the weights after every so many epochs.", min=0)] = None,
    *,
    options: TrainOptions,
    resume: Annotated[bool, typer.Option("--resume", help="Refuse to begin anew: go on from the checkpoint.")] = False,
) -> None:
    """Train an encoder, or train one further, with or without labels and adversaries."""
    from holdfast.commands.train import train
    from holdfast.training.processes import rank
    from holdfast.training.recipe import read_settings

    options["out"] = out or read_settings(recipe).get("out")
    if options["out"] is None:
        raise HoldfastError('where is the encoder to go? name a folder with --out, or as out = "..." in the file')
    encoder = train(
        recipe,
        images,
        bank=bank,
        transform=transform,
        channels=channels,
        device=device,
        keep_epochs=keep_epochs,
        resume=resume,
        settings=pairs(set_ or [], "--set takes setting=value, as in epochs=10"),
        **options,
    )
    if rank() == 0:
        print(f"Encoder: {encoder.source}")
