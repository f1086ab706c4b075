"""Train an encoder from a recipe and images: in one process, or in those that torchrun has started.

Also here: the starting state of a training and the folder that it writes. One process at a time holds the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from holdfast.core.copies import copied
from holdfast.core.encoder import MADE_IN_PYTHON, Domain, Encoder, Normalised
from holdfast.core.errors import (
    AgreementLostError,
    BudgetSpentError,
    HoldfastError,
    UnknownName,
    check_no_blanks,
    explained,
)
from holdfast.core.files import write_whole
from holdfast.core.images import Images
from holdfast.core.options import TrainOptions, takes
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import budget_start, fields_of, seconds
from holdfast.data.reading.scan_cache import FILE, ScanCache
from holdfast.data.reading.scan_cache import FILE as REMEMBERED
from holdfast.encoders import trained
from holdfast.encoders.architectures.base import LoadedEncoder, trainable
from holdfast.measure.bank import apart
from holdfast.measure.population import info_of
from holdfast.measure.store import checkout, versions
from holdfast.run.inputs import reference_or_images, select
from holdfast.run.plan import keep_freed_memory
from holdfast.run.progress import shown
from holdfast.run.run import check_free
from holdfast.training import health as checkpoints
from holdfast.training.health import lost, page
from holdfast.training.loop import Epoch, Training, Watch
from holdfast.training.moco_checkpoint import MoCoCheckpoint
from holdfast.training.processes import rank
from holdfast.training.recipe import Recipe, read_settings
from holdfast.transforms.base import Transform, transformed
from holdfast.transforms.subsets import subset_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True, eq=False)
class Inputs:
    """What an encoder is trained on, and from."""

    images: Images
    bank: Images | None
    """Labelled images to look for neighbours among, none of which is trained on."""
    domain: Domain
    start: Encoder | None
    """The encoder that training goes on from."""


def load_inputs(recipe: Recipe, place: Mapping[str, Any], start: Encoder | None, scan_cache: ScanCache) -> Inputs:
    """Return what ``place`` names, loaded; the bank without copies of training images, files of the cache unread.

    Raises:
        HoldfastError: something is not named, does not exist or does not fit.
    """
    if place["images"] is None:
        raise HoldfastError('training needs images; name them with --images, or as images = "photos/" in the file')
    named = reference_or_images(place["images"])
    domain = _domain(recipe, named, place, start)
    geometry = start.geometry if start is not None else None
    taught = select(named, domain, geometry, limit=place["limit"], seed=recipe.seed, scan_cache=scan_cache)
    read = partial(select, domain=domain, geometry=geometry, scan_cache=scan_cache)
    taught = original = subset_of(taught, place["subset"], recipe.seed, read)
    if place["transform"] is not None:
        taught = transformed(taught, place["transform"], recipe.seed)
    if place["bank"] is None:
        return Inputs(taught, None, domain, start)
    bank = read(place["bank"])
    if bank.labels is None:
        raise HoldfastError(f"the bank {bank.name} has no labels, so its neighbours say nothing; leave --bank out")
    return Inputs(taught, apart(bank, original), domain, start)


def _domain(recipe: Recipe, named: str | Images, place: Mapping[str, Any], start: Encoder | None) -> Domain:
    if start is not None:
        return start.domain
    if isinstance(named, Images):
        return Domain(tuple(named.pixels([0]).shape[1:]))
    size, channels = place["size"], place["channels"] or 3
    if size is None:
        raise HoldfastError("how large are the inputs? name it with --size, as in --size 32")
    if channels not in (1, 3):
        raise HoldfastError(f"images have 1 or 3 channels, got {channels}")
    return Domain((channels, int(size), int(size)))


def mode_of(recipe: Recipe, start: Encoder | None) -> str:
    """Return the mode in which the encoder learns: that of the recipe, or else what suits where training starts.

    In ``train`` mode a trained network with batch norm is another one than the network that is attacked and used: codes of
    both modes may have next to nothing in common. Where no batch norm has any statistics yet, there is nothing to keep.
    """
    if recipe.mode is not None or start is None:
        return recipe.mode or "train"
    norms = [part for part in start.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return "train" if norms and all(map(_is_fresh, norms)) else "eval"


def _is_fresh(norm: nn.modules.batchnorm._BatchNorm) -> bool:
    """Return whether the running statistics, if there are any, are those that batch norm begins with."""
    mean, variance = norm.running_mean, norm.running_var
    return mean is None or variance is None or (not bool(mean.any()) and bool((variance == 1).all()))


def module_of(recipe: Recipe, inputs: Inputs) -> nn.Module:
    """Return the module to train, its random weights drawn by the recipe's seed."""
    torch.manual_seed(recipe.seed)
    if inputs.start is not None:
        # Convolutions of trained networks, depthwise ones above all, take half the time so: EfficientNet-Lite0 at 64 pixels
        # 8 ms an image forward and backward instead of 18, in batches of 32 on one thread.
        return laid_out(trainable(copied(inputs.start.module)), torch.channels_last)
    domain = inputs.domain
    if len(recipe.mean) not in (0, 1, domain.shape[0]):
        raise HoldfastError(
            f"mean and std have {len(recipe.mean)} numbers, and images {domain.shape[0]} channels; give one of each per "
            "channel"
        )
    module = recipe.architecture.build(domain)
    return Normalised(module, recipe.mean, recipe.std, len(domain.shape)) if recipe.mean else module


def laid_out(module: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Return ``module`` with the weights of its convolutions in that order in memory, which their maps then follow."""
    for weight in module.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=layout)
    return module


# The folder of a training: held by one process at a time, written while it runs and at its end.
#
# OUT/
#   encoder.safetensors card.json   the encoder, which every command loads as trained:OUT
#   epochs/0005.safetensors         its weights after single epochs, where they are kept
#   metrics.jsonl tensorboard/      what was measured after each epoch
#   training.html                   the curves
#   checkpoint.pt                   from which a training that was interrupted goes on
#   files.index                     image files found sound and their digests, so that a second start reads none for
#   that

VERSION = 3
"""Raised whenever the same recipe makes other weights. 2: RoCL has all three views in one denominator. 3: the rate of a step
is that in its middle, and training from an encoder is in eval mode."""


def check_trainable(folder: Path) -> None:
    """Make the folder, and refuse one that holds something else than a training."""
    check_free(folder, checkpoints.FILE, (REMEMBERED,))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no other training writes to it; a process that dies lets go of it.

    Raises:
        HoldfastError: another training holds it, it holds something else than a training, or cannot be written.
    """
    check_trainable(folder)
    if rank() != 0:  # the first process holds it for all
        yield
        return
    try:
        with FileLock(folder / ".lock", blocking=False):
            for left in folder.glob(f".{checkpoints.FILE}.*"):  # by processes that were killed while they wrote
                left.unlink(missing_ok=True)
            yield
    except Timeout:
        raise HoldfastError(f"another training is writing to {folder}; wait for it, or choose another --out") from None


class TrainingFolder:
    """What is written of a training while it runs and at its end."""

    def __init__(
        self,
        recipe: Recipe,
        inputs: Inputs,
        folder: Path | None,
        keep_epochs: int,
        continued: MoCoCheckpoint | None = None,
    ) -> None:
        self.recipe, self.inputs, self.folder, self.keep_epochs = recipe, inputs, folder, keep_epochs
        images, bank, domain, start = inputs.images, inputs.bank, inputs.domain, inputs.start
        self.writer: SummaryWriter | None = None
        self.asked: dict[str, Any] = {
            **recipe.plain(),
            "images": images.fingerprint,
            "labels": images.labels_fingerprint if recipe.objective.needs_labels else "",
            "bank": "" if bank is None else bank.fingerprint,
            "start": "" if start is None else start.fingerprint,
            "inputs": [*domain.shape, domain.low, domain.high],
            "version": VERSION,
        }
        if continued is not None:
            self.asked["moco"] = continued.sha256

    def after_epoch(self, module: nn.Module, curve: list[Epoch]) -> None:
        """Write what was measured so far, and the weights where they are kept."""
        if self.folder is None:
            return
        epoch = int(curve[-1]["epoch"])
        lines = "".join(json.dumps(epoch_numbers) + "\n" for epoch_numbers in curve)
        with explained(f"cannot write to {self.folder}", GOES_ON, OSError):
            write_whole(self.folder / "metrics.jsonl", lines.encode())
            self._scalars(curve[-1], epoch)
        if self.keep_epochs and epoch % self.keep_epochs == 0:
            trained.write_epoch(self.folder, epoch, self.encoder(module).module)

    def _scalars(self, numbers: Epoch, epoch: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        assert self.folder is not None
        self.writer = self.writer or SummaryWriter(str(self.folder / "tensorboard"), purge_step=epoch)
        for name, value in numbers.items():
            if name != "epoch":
                self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def encoder(self, module: nn.Module) -> Encoder:
        """Return the encoder that ``module`` is."""
        name = self.folder.name if self.folder is not None else self.recipe.objective.name
        start = self.inputs.start
        source = f"{trained.SOURCE}:{self.folder}" if self.folder is not None else MADE_IN_PYTHON
        module = laid_out(copied(module).cpu().float().eval(), torch.contiguous_format)
        return Encoder(
            module,
            name,
            self.inputs.domain,
            source=source,
            geometry=None if start is None else start.geometry,
            pooling="inside the module" if start is None else start.pooling,
            caution="" if start is None else start.caution,
        )

    def finish(self, encoder: Encoder, curve: list[Epoch], started: str, classifier: nn.Linear | None = None) -> None:
        """Write weights, card and page into the folder, if there is one; of several processes the first does.

        ``classifier`` is the head that was trained on the embeddings of ``encoder``.
        """
        if self.folder is None or rank() != 0:
            return
        inputs = self.inputs
        architecture = str(self.recipe.architecture) if inputs.start is None else trained.architecture_of(inputs.start)
        method = f"{self.recipe.objective} with {self.recipe.adversary}" if self.recipe.adversary else None
        card = trained.Card.of(
            encoder,
            architecture,
            recipe=self.recipe.plain(),
            objective=method or str(self.recipe.objective),
            seed=self.recipe.seed,
            epochs=int(curve[-1]["epoch"]),
            images=info_of(inputs.images),
            bank=None if inputs.bank is None else info_of(inputs.bank),
            curve=tuple(curve),
            versions={**versions(), **checkout()},
            started=started,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        card = trained.write(self.folder, encoder, card, classifier)
        with explained(f"cannot write to {self.folder}", GOES_ON, OSError):
            write_whole(self.folder / "training.html", page(card).encode())

    def close(self) -> None:
        """Close what is open."""
        if self.writer is not None:
            self.writer.close()


PLACE = (
    *("images", "bank", "moco", "transform", "limit", "subset", "size", "channels", "device", "keep_epochs", "budget"),
    "out",
)
"""What a file may say beside the recipe; arguments of the same names win."""
GOES_ON = "free some space and run the same command again, which goes on from the last checkpoint"
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
    moco: str | Path | None = None,
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
        moco: go on from this checkpoint of MoCo's authors: encoder, projection, key network, queue and momentum.
        transform: what the images are changed by before anything else, the same in every epoch: ``fog-c:3``.
        channels: 3, or 1 for gray images, where images are files.
        device: cpu or cuda; processes of torchrun take a GPU each.
        keep_epochs: number of epochs between kept weights, for ``trained:OUT?epoch=N``; 0 keeps none.
        resume: insist that there is something in ``out`` to go on from. Without it, too, training goes on if there is.
        settings: settings of the recipe by name, instead of its own.
        watch: measures the module in training before the first and after each epoch: numbers by name, kept with the others.
        size: height and width of the inputs; needed where images are files of any size.
        out: folder for the encoder and the checkpoints; by default nothing is kept.

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
    settings_of_inputs |= {"device": device, "keep_epochs": keep_epochs, "moco": moco, **options}
    recipe, place = read_recipe(recipe, settings or {}, settings_of_inputs)
    check_no_blanks(place)
    until = inf if place["budget"] is None else began + seconds(place["budget"])
    if start is not None:
        recipe = replace(recipe, architecture=LoadedEncoder(start.source), mean=(), std=())
    elif isinstance(recipe.architecture, LoadedEncoder):
        start = recipe.architecture.load_encoder(place["size"])
    continued = None if place["moco"] is None else MoCoCheckpoint.read(place["moco"])
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
        record = TrainingFolder(recipe, inputs, folder, int(place["keep_epochs"] or 0), continued)
        stack.callback(record.close)
        kept = (folder, record.asked, show or (lambda doing, share: None), record.after_epoch)
        say = show.say if show else None
        given = (recipe, module, inputs.domain, inputs.images, inputs.bank, fabric)
        training = Training(*given, *kept, watch, until, say, continued)
        if show:
            show.say(training.plan)
        encoder = _trained(training, record)
        fabric.barrier()
    return encoder


def _trained(training: Training, record: TrainingFolder) -> Encoder:
    """Train to the end and return the encoder, which the folder then holds.

    Raises:
        UnfinishedError: the budget ended before.
        KeyboardInterrupt: training was stopped; with a floor, the folder holds the encoder of the best epoch so far.
        AgreementLostError: codes moved too far; the folder holds the encoder of the last epoch in which they had not.
    """
    try:
        training.run()
    except BudgetSpentError as error:
        if lost(training.curve[-1]) and training.sound_weights:
            training.encoder.load_state_dict(training.sound_weights)
        training.use_best()
        encoder = record.encoder(training.encoder)
        encoder.name = f"{encoder.name} (epoch {training.epoch}, step {training.step})"
        encoder.source = MADE_IN_PYTHON
        if record.inputs.start is not None:  # it was an encoder before the first step
            record.finish(encoder, training.curve, training.started)
        raise UnfinishedError(str(error), encoder) from error
    except KeyboardInterrupt:
        if training.curve and training.use_best():  # a floor was promised: the checkpoint goes on from the last epoch
            record.finish(record.encoder(training.encoder), training.curve, training.started)
        raise
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
    with explained("training needs Lightning Fabric", "pip install 'holdfast-encoders[train]'", ImportError):
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
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
