"""``holdfast train``: a recipe and images to an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import flags
from holdfast.core.errors import HoldfastError
from holdfast.core.settings import pairs

STOPPED = flags.CHECKPOINTED


def command(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or a name (holdfast list recipes).")],
    images: flags.Images[str | None] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the encoder; trained:OUT then loads it.")] = None,
    bank: flags.TrainingBank = None,
    set_: flags.RecipeSettings = None,
    transform: Annotated[
        str | None, typer.Option(help="Change the images first, the same way in every epoch, as in fog-c:3.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Height and width of the inputs.", min=1)] = None,
    channels: flags.Channels[int | None] = None,
    limit: flags.Limit[int | None] = None,
    device: Annotated[
        str | None, flags.like(flags.Device, help="cpu, cuda or cuda:1; torchrun gives each process its own.")
    ] = None,
    keep_epochs: Annotated[int | None, typer.Option(help="Keep the weights after every so many epochs.", min=0)] = None,
    budget: flags.TrainingBudget = None,
    resume: Annotated[bool, typer.Option("--resume", help="Refuse to begin anew: go on from the checkpoint.")] = False,
) -> None:
    """Train an encoder, or train one further, with or without labels and adversaries."""
    from holdfast.commands.train import train
    from holdfast.training.processes import rank
    from holdfast.training.recipe import read_settings

    folder = out or read_settings(recipe).get("out")
    if folder is None:
        raise HoldfastError('where is the encoder to go? name a folder with --out, or as out = "..." in the file')
    encoder = train(
        recipe,
        images,
        bank=bank,
        transform=transform,
        limit=limit,
        size=size,
        channels=channels,
        device=device,
        keep_epochs=keep_epochs,
        budget=budget,
        resume=resume,
        settings=pairs(set_ or [], "--set takes setting=value, as in epochs=10"),
        out=folder,
        progress=True,
    )
    if rank() == 0:
        print(f"Encoder: {encoder.source}")
