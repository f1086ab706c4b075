"""Make any encoder more robust with images alone, and show what that gained and what it cost.

    min over f of the mean of max { |f0(x) - f(x')|^2 : x' in the ball around x },   f0 the encoder as it was

FARE (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336), with its authors' attack and optimiser: ten steps of
a quarter of the radius, AdamW, a cosine after a short warm-up. A part of the images is kept from training. On them the
new codes are held against the old ones after each epoch, and both encoders are attacked in the end.

OUT/
  ...             what ``holdfast train`` writes; ``trained:OUT`` is the hardened encoder
  before-after/   a run with both encoders, as ``holdfast evaluate`` writes it, and its report
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast import data
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Codes, Encoder
from holdfast.core.errors import HoldfastError, refuse_blanks
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.data.remembered import FILE, Remembered
from holdfast.encoders import load
from holdfast.encoders.architectures.loaded import LoadedEncoder
from holdfast.execution.api import evaluate
from holdfast.execution.engines.ray import Ray
from holdfast.execution.evaluated import EvaluatedRun
from holdfast.execution.given import NamedEncoder, NamedImages, at_hand, read_ball
from holdfast.execution.session import engine
from holdfast.execution.training import deadline, train
from holdfast.execution.training_folder import require_free
from holdfast.training.adversaries.loss import OnLoss
from holdfast.training.health import eval_codes
from holdfast.training.objectives.distillation import Distillation
from holdfast.training.optimisers import AdamW, Cosine
from holdfast.training.recipe import Recipe

BALL = Linf(4 / 255)
HELD_OUT, SHARE = 1000, 5
"""Kept from training: one in five images, at most a thousand."""
FEWEST = 20
BATCH = 128
WARMUP = 0.07
"""Share of the epochs in which the rate rises."""
PART = 128
EVALUATIONS = ("breakaway", "displacement")
FOLDER = "before-after"


@dataclass(frozen=True, eq=False)
class Hardened:
    """A hardened encoder and what became of it."""

    encoder: Encoder
    agreement: dict[str, float]
    """How far its codes of clean images that it was not trained on are still those of the original."""
    run: EvaluatedRun
    """Original and hardened encoder under attack."""


def harden(
    encoder: NamedEncoder,
    images: NamedImages,
    *,
    ball: str | Ball = BALL,
    epochs: int = 10,
    rate: float = 1e-4,
    bank: NamedImages | None = None,
    settings: Mapping[str, Any] | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    budget: float | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Hardened:
    """Return ``encoder`` trained to keep its codes inside ``ball``, as ``holdfast harden`` does.

    Args:
        encoder: one, or the reference of one; it is not changed.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1]; no labels are needed.
        ball: the changes to resist, as ``Linf(4 / 255)`` or ``"l2:0.5"``.
        epochs: how often training sees each image.
        rate: the largest learning rate; 1e-5 is common for large transformers.
        bank: other images, labelled, whose nearest neighbours are checked after each epoch.
        settings: of the recipe by name, as in ``{"objective": "distillation:clean=1", "batch": 64}``.
        limit: at most so many images, chosen by ``seed``.
        seed: decides every random choice.
        device: where torch computes.
        budget: seconds for everything; what is left of them after training is for the measurement.
        cluster: measure on a Ray cluster: auto, local or its address. Training stays in this process.
        workers: measure in so many processes of this machine.
        out: folder for encoder and report; with the same folder an interrupted training goes on.
        progress: show it on stderr; by default in terminals and notebooks.

    Raises:
        HoldfastError: the encoder passes no gradient or has no weights, there are too few images, or something that was
            named does not exist or does not fit.
        BudgetSpentError: the budget ended before training did; the same call goes on.
    """
    refuse_blanks(locals())
    until = deadline(budget, monotonic())
    place: dict[str, Any] = {"device": device, "cluster": cluster, "workers": workers}

    def left() -> float | None:
        return None if until == inf else max(until - monotonic(), 1e-3)

    _require_one_process()
    where = engine(**place, folder=Path())  # refused before hours of training instead of after them
    if isinstance(where, Ray):
        where.connected()
    remembered = Remembered()
    if out is not None:
        require_free(Path(out))
        remembered = Remembered.at(Path(out) / FILE)
    original = (load(encoder) if isinstance(encoder, str) else encoder).to("cpu", torch.float32)
    wanted = ball if isinstance(ball, Ball) else read_ball(ball)
    wanted.check(original.domain)
    named = at_hand(images)
    if isinstance(named, str):
        named = data.load(named, original.domain, original.geometry, remembered=remembered)
    taught, held = parted(named, limit, seed)
    _require_gradients(original, taught)
    watch = agreement_of(original, held, device)
    recipe = recipe_of(wanted, epochs, rate, min(BATCH, len(taught)), seed, settings)
    hardened = train(
        recipe,
        taught,
        bank=None if bank is None else at_hand(bank),
        start=original,
        device=device,
        budget=left(),
        out=out,
        progress=progress,
        watch=watch,
    )
    if hardened.name == original.name:
        hardened.name = f"{original.name}-hardened"
    run = evaluate(
        [original, hardened],
        held,
        only=EVALUATIONS,
        ball=wanted,
        seed=seed,
        budget=left(),
        out=None if out is None else Path(out) / FOLDER,
        progress=progress,
        **place,
    )
    return Hardened(hardened, watch(hardened.to(device, torch.float32).module), run)


def recipe_of(
    ball: Ball, epochs: int, rate: float, batch: int, seed: int, settings: Mapping[str, Any] | None = None
) -> Recipe:
    """Return how an encoder is hardened, with ``settings`` instead of what they name; the warm-up follows the epochs."""
    recipe = Recipe(
        objective=Distillation(),
        architecture=LoadedEncoder("hardened"),
        adversary=OnLoss(ball, steps=10),
        optimiser=AdamW(rate=rate, weight_decay=1e-4),
        batch=batch,
        epochs=epochs,
        seed=seed,
    )
    settings = settings or {}
    recipe = Recipe.of({**recipe.plain(), **settings})
    return (
        recipe if "schedule" in settings else replace(recipe, schedule=Cosine(warmup=round(WARMUP * recipe.epochs, 6)))
    )


def _require_one_process() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise HoldfastError(
            "harden runs in one process, since it measures in the end; for several use holdfast train with objective = "
            '"distillation" and adversary = "loss"'
        )


def parted(images: Images, limit: int | None, seed: int) -> tuple[Images, Images]:
    """Return the images to train on and those kept from it, chosen by ``seed`` and their ids."""
    order = Noise.of(seed, images.ids).fork("held out").uniform((1,), torch.float64)[:, 0].argsort(stable=True).tolist()
    order = order if limit is None else order[:limit]
    if len(order) < FEWEST:
        raise HoldfastError(
            f"hardening needs at least {FEWEST} images, of which one in {SHARE} is kept to measure with, got {len(order)}"
        )
    count = min(HELD_OUT, len(order) // SHARE)
    return images[order[count:]], images[order[:count]]


def _require_gradients(encoder: Encoder, images: Images) -> None:
    """Raise unless there are weights to train and gradients that reach the pixels."""
    if not any(weight.is_floating_point() for weight in encoder.module.parameters()):
        raise HoldfastError(f"{encoder.name} has no weights that can be trained, so it cannot be hardened")
    pixels = images.pixels([0], domain=encoder.domain).requires_grad_()
    with torch.enable_grad():
        codes = encoder.forward(pixels)
    if not codes.requires_grad:
        raise HoldfastError(
            f"{encoder.name} passes no gradient to its input (detached, quantised or wrapped in no_grad), so it cannot be "
            "hardened; load it in a form that can be trained"
        )


def agreement_of(original: Encoder, held: Images, device: str) -> Callable[[nn.Module], dict[str, float]]:
    """Return what compares a module's codes of the images ``held`` with those of the ``original``."""
    parts = [range(start, min(start + PART, len(held))) for start in range(0, len(held), PART)]

    def codes_of(module: nn.Module) -> Codes:
        weight = next(module.parameters())
        seen = (held.pixels(part, weight.device, weight.dtype, original.domain) for part in parts)
        return torch.cat([eval_codes(module, pixels).float() for pixels in seen])

    before = codes_of(original.to(device, torch.float32).module)
    return lambda module: agreement(before, codes_of(module).to(before.device))


def agreement(before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> dict[str, float]:
    """Return how far codes are what they were.

    ``agreement``: their mean cosine similarity. ``relative_distance``: how far they moved in comparison with how far they
    are from their mean, both as root mean squares. ``neighbours_kept``: the share of images whose nearest other is still
    the same.

    Example:
        >>> codes = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 4.0]])
        >>> agreement(codes, codes)
        {'agreement': 1.0, 'relative_distance': 0.0, 'neighbours_kept': 1.0}
    """
    before, after = before.double(), after.double()
    moved = (after - before).square().sum(1).mean()
    spread = (before - before.mean(0)).square().sum(1).mean()
    nearest = [torch.cdist(codes, codes).fill_diagonal_(torch.inf).argmin(1) for codes in (before, after)]
    return {
        "agreement": float(torch.cosine_similarity(before, after).mean()),
        "relative_distance": float((moved / spread).sqrt()),
        "neighbours_kept": float((nearest[0] == nearest[1]).double().mean()),
    }
