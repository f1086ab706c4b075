"""How many epochs of hardening a budget allows, so that the learning rate falls to its end within it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import torch
from torch import nn

from holdfast.commands.train import train
from holdfast.core.encoder import Encoder
from holdfast.core.images import Images
from holdfast.encoders.trained import ASKED, CHECKPOINT
from holdfast.training.loop.training import WATCHED
from holdfast.training.recipe import Recipe

MARGIN = 0.8
"""Fraction of the time that epochs are planned for: later steps may take longer than the timed one."""


def begun_epochs(out: str | Path | None) -> int | None:
    """Return the epochs of the training that ``out`` holds; none if there is none, or its checkpoint cannot be read."""
    if out is None or not (path := Path(out) / CHECKPOINT).exists():
        return None
    try:
        return int(json.loads(torch.load(path, map_location="cpu", weights_only=True)[ASKED])["epochs"])
    except Exception:  # training says what is wrong with it
        return None


def epochs_within(
    seconds: float,
    recipe: Recipe,
    images: Images,
    held_out: int,
    start: Encoder,
    device: str,
    watch: Callable[[nn.Module], dict[str, float]],
) -> int:
    """Return how many epochs of ``recipe`` take about ``seconds``, at least 1, by the time of one step.

    Args:
        seconds: for training.
        recipe, images: as ``train`` takes them.
        held_out: number of images that ``watch`` looks at.
        start, device: as ``train`` takes them.
        watch: is called after each epoch.
    """
    moments: list[float] = []

    def note(module: nn.Module) -> dict[str, float]:
        began = monotonic()
        watch(module)
        moments.extend((began, monotonic()))
        return {}  # what a step of a trial loses is no reason to stop

    # The first step also sets up what later steps use again, so the second one counts.
    trial = replace(recipe, epochs=2)
    train(trial, images[: recipe.batch], start=start, device=device, watch=note, progress=False)
    *_, ended, began, watched_at = moments
    watching = watched_at - began
    looked = 1 + min(WATCHED, len(images)) / held_out  # health looks at training images beside those held out
    epoch = (began - ended) * (len(images) // recipe.batch) + looked * watching
    return max(1, int(MARGIN * seconds / epoch))
