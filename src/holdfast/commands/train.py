"""From a recipe and images to an encoder: alone, or in the processes that torchrun has started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from holdfast.commands.train_folder import TrainingFolder, alone, load_inputs, mode_of, module_of
from holdfast.core.clock import budget_start
from holdfast.core.encoder import MADE_IN_PYTHON, Encoder
from holdfast.core.errors import AgreementLostError, BudgetSpentError, HoldfastError, UnknownName, check_no_blanks
from holdfast.core.images import Images
from holdfast.core.options import TrainOptions, takes
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import fields_of, seconds
from holdfast.data.reading.scan_cache import FILE, ScanCache
from holdfast.encoders.architectures.loaded import LoadedEncoder
from holdfast.run.progress import shown
from holdfast.run.tuning import keep_freed_memory
from holdfast.training import health as checkpoints
from holdfast.training.health import lost
from holdfast.training.loop import Training, Watch
from holdfast.training.processes import rank
from holdfast.training.recipe import Recipe, read_settings
from holdfast.transforms.base import Transform

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PLACE = ("images", "bank", "transform", "limit", "subset", "size", "channels", "device", "keep_epochs", "budget", "out")
"""What a file may say beside the recipe; arguments of the same names win."""
FABRIC_PRECISION: dict[str, Any] = {
    "float32": "32-true",
    "bfloat16": "bf16-mixed",
    "float16": "16-mixed",
    "float64": "64-true",
}


class UnfinishedError(BudgetSpentError):
    """The budget ended before training did; ``encoder`` is what training has made so far."""

    def __init__(self, sentence: str, encoder: Encoder) -> None:
        super().__init__(sentence)
        self.encoder = encoder


@takes(TrainOptions)
def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    images: str | Path | Images | Tensor | None = None,
    *,
    bank: str | Path | Images | None = None,
    start: Encoder | None = None,
    transform: str | Transform | None = None,
    channels: int | None = None,
    device: str | None = None,
    keep_epochs: int | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    **options: Unpack[TrainOptions],
) -> Encoder:
    """Return an encoder trained by ``recipe`` on ``images``, as ``holdfast train`` does.

    Args:
        recipe: a Recipe, the name of one (``holdfast list recipes``), a TOML file, or its content.
        images: a folder, a reference, Images, or a tensor (n, channels, height, width) in [0, 1].
        bank: other images, labelled: after each epoch the share whose nearest others show their class is measured.
        start: train this encoder further, whatever architecture the recipe names. All its weights are trained: an Encoder
            holds all of them still, so which of them its module had frozen before is not known.
        transform: what the images are changed by before anything else, the same in every epoch: ``fog-c:3``.
        channels: 3, or 1 for gray images, where images are files.
        device: cpu or cuda; processes of torchrun take a GPU each.
        keep_epochs: keep the weights after every Nth epoch, for ``trained:OUT?epoch=N``; 0 keeps none.
        resume: insist that there is something in ``out`` to go on from. Without it, too, training goes on if there is.
        settings: settings of the recipe by name, instead of its own.
        watch: measures the module in training before the first and after each epoch: numbers by name, kept with the others.
        size: height and width of the inputs; needed where images are files of any size.
        limit: largest number of images, chosen by the recipe's seed.
        subset: subset by labels, as in ``long-tail:most=5000,least=50``, of the images that ``limit`` leaves.
        budget: seconds from now after which training stops at the end of a step, with a checkpoint in ``out``.
        out: folder for the encoder and the checkpoints; by default nothing is kept.
        **options: as other verbs take them.

    Raises:
        HoldfastError: something does not exist or does not fit, the loss is not finite, or codes collapse; everything up to
            the checkpoint before is kept.
        AgreementLostError: codes are no longer what they were, by what ``watch`` measures; ``out`` holds the encoder of the
            last epoch in which they were.
        BudgetSpentError: the budget ended before training did; the same call goes on. If it trains an encoder further,
            ``out`` holds the encoder so far.
    """
    keep_freed_memory()
    began = budget_start()
    settings_of_inputs: dict[str, Any] = {"images": images, "bank": bank, "transform": transform, "channels": channels}
    settings_of_inputs |= {"device": device, "keep_epochs": keep_epochs, **options}
    recipe, place = read_recipe(recipe, settings or {}, settings_of_inputs)
    check_no_blanks(place)
    until = inf if place["budget"] is None else began + seconds(place["budget"])
    if start is not None:
        recipe = replace(recipe, architecture=LoadedEncoder(start.source), mean=(), std=())
    elif isinstance(recipe.architecture, LoadedEncoder):
        start = recipe.architecture.load_encoder(place["size"])
    folder = None if place["out"] is None else Path(place["out"])
    if folder is None and until < inf:
        raise HoldfastError("with a budget training stops before its end, to go on later; name a folder for it as out")
    if resume and (folder is None or not (folder / checkpoints.FILE).exists()):
        raise HoldfastError(f"there is nothing to resume in {folder}; leave --resume out to begin")
    fabric = fabric_of(str(place["device"] or "cpu"), recipe.precision)
    seeded = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=seeded), ExitStack() as stack:
        if folder is not None:
            stack.enter_context(alone(folder))
        inputs = load_inputs(recipe, place, start, ScanCache.at(folder / FILE if folder else None))
        recipe = replace(recipe, mode=mode_of(recipe, inputs.start))
        module = module_of(recipe, inputs)
        show = stack.enter_context(shown(options["progress"] if rank() == 0 else False))
        record = TrainingFolder(recipe, inputs, folder, int(place["keep_epochs"] or 0))
        stack.callback(record.close)
        kept = (folder, record.asked, show or (lambda doing, share: None), record.after_epoch)
        say = show.say if show else None
        training = Training(recipe, module, inputs.domain, inputs.images, inputs.bank, fabric, *kept, watch, until, say)
        if show:
            show.say(training.plan)
        encoder = _trained(training, record)
        fabric.barrier()
    return encoder


def _trained(training: Training, record: TrainingFolder) -> Encoder:
    """Train to the end and return the encoder, which the folder then holds.

    Raises:
        UnfinishedError: the budget ended before.
        AgreementLostError: codes moved too far; the folder holds the encoder of the last epoch in which they had not.
    """
    try:
        training.run()
    except BudgetSpentError as error:
        if lost(training.curve[-1]) and training.sound_weights:
            training.encoder.load_state_dict(training.sound_weights)
        encoder = record.encoder(training.encoder)
        encoder.name = f"{encoder.name} (epoch {training.epoch}, step {training.step})"
        encoder.source = MADE_IN_PYTHON
        if record.inputs.start is not None:  # it was an encoder before the first step
            record.finish(encoder, training.curve, training.started)
        raise UnfinishedError(str(error), encoder) from error
    except AgreementLostError as error:
        if record.folder is None or not error.epoch or rank() != 0:
            raise
        record.finish(record.encoder(training.encoder), training.curve[: error.epoch + 1], training.started)
        sentence = f"{error} {record.folder} holds the encoder after epoch {error.epoch}."
        raise AgreementLostError(sentence, error.epoch) from error
    encoder = record.encoder(training.encoder)
    record.finish(encoder, training.curve, training.started, training.classifier)
    return encoder


def read_recipe(
    recipe: Recipe | str | Path | Mapping[str, Any], settings: Mapping[str, Any], inputs: Mapping[str, Any]
) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe and where it is to be carried out; ``inputs`` win over what a file says."""
    if isinstance(recipe, Recipe):
        values: dict[str, Any] = recipe.plain() if settings else {}
        places: dict[str, Any] = {}
    else:
        read = dict(recipe) if isinstance(recipe, Mapping) else read_settings(recipe)
        known = [*fields_of(Recipe), *PLACE]
        if unknown := next((name for name in read if name not in known), None):
            raise UnknownName("settings of a recipe", unknown, known)
        places = {name: read.pop(name) for name in PLACE if name in read}
        values = read
    place = {name: places.get(name) if inputs.get(name) is None else inputs[name] for name in PLACE}
    chosen = recipe if isinstance(recipe, Recipe) and not settings else Recipe.of({**values, **settings})
    return chosen, place


def fabric_of(device: str, precision: str) -> Fabric:
    """Return what places the work: here, or in the processes that torchrun has started."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise HoldfastError("training needs Lightning Fabric; pip install 'holdfast-encoders[train]'") from None
    RunSettings(device=device)  # refuses what torch does not see
    kind, processes = torch.device(device), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    fabric = Fabric(
        accelerator=kind.type,
        devices=local if processes > 1 else 1 if kind.type == "cpu" else [kind.index or 0],
        num_nodes=max(1, processes // local),
        strategy=DDPStrategy(find_unused_parameters=True) if processes > 1 else "auto",
        precision=FABRIC_PRECISION[precision],
    )
    fabric.launch()
    return fabric
