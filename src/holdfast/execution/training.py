"""From a recipe and images to an encoder on disk.

OUT/
  encoder.safetensors card.json   the encoder, which every command loads as trained:OUT
  epochs/0005.safetensors         its weights after single epochs, where they are kept
  metrics.jsonl tensorboard/      what was measured after each epoch
  training.html                   the curves
  checkpoint.pt                   from which a training that was interrupted goes on
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from holdfast import data
from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.files import write_whole
from holdfast.core.images import Images
from holdfast.core.records import ImagesInfo
from holdfast.core.run import Run
from holdfast.core.settings import fields_of
from holdfast.data.base import Request as Selection
from holdfast.encoders import trained
from holdfast.encoders.architectures.loaded import LoadedEncoder, trainable
from holdfast.execution.api import at_hand, shown
from holdfast.execution.provenance import checkout, versions
from holdfast.protocol.bank import apart
from holdfast.training import checkpoints
from holdfast.training.gathering import rank
from holdfast.training.loop import Epoch, Training, Watch
from holdfast.training.page import page
from holdfast.training.recipe import Recipe, read_settings
from holdfast.transforms.base import Transform, transformed

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.utils.tensorboard import SummaryWriter

VERSION = 2
"""Raised whenever the same recipe makes other weights. 2: RoCL has all three views in one denominator."""
PLACE = ("images", "bank", "transform", "limit", "size", "channels", "device", "keep_epochs", "out")
"""What a file may say beside the recipe; arguments of the same names win."""
FABRIC_PRECISION: dict[str, Any] = {
    "float32": "32-true",
    "bfloat16": "bf16-mixed",
    "float16": "16-mixed",
    "float64": "64-true",
}


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    images: str | Path | Images | Tensor | None = None,
    *,
    bank: str | Path | Images | None = None,
    start: Encoder | None = None,
    transform: str | Transform | None = None,
    limit: int | None = None,
    size: int | None = None,
    channels: int | None = None,
    device: str | None = None,
    keep_epochs: int | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    watch: Watch | None = None,
) -> Encoder:
    """Return an encoder trained by ``recipe`` on ``images``, as ``holdfast train`` does.

    Args:
        recipe: a Recipe, the name of one (``holdfast list recipes``), a TOML file, or its content.
        images: a folder, a reference, Images, or a tensor (n, channels, height, width) in [0, 1].
        bank: other images, labelled: after each epoch the share whose nearest others show their class is measured.
        start: train this encoder further, whatever architecture the recipe names.
        transform: what the images are changed by before anything else, the same in every epoch: ``fog-c:3``.
        limit: at most so many images, chosen by the recipe's seed.
        size: height and width of the inputs; needed where images are files of any size.
        channels: 3, or 1 for gray images, where images are files.
        device: cpu or cuda; processes of torchrun take a GPU each.
        keep_epochs: keep the weights after every so many epochs, for ``trained:OUT?epoch=N``; 0 keeps none.
        resume: insist that there is something in ``out`` to go on from. Without it, too, training goes on if there is.
        settings: settings of the recipe by name, instead of its own.
        out: folder for the encoder and the checkpoints; by default nothing is kept.
        progress: show it on stderr; by default in terminals and notebooks.
        watch: measures the module in training before the first and after each epoch: numbers by name, kept with the others.

    Raises:
        HoldfastError: something does not exist or does not fit, the loss is not finite, or codes collapse; everything up to
            the checkpoint before is kept.
    """
    given = {"images": images, "bank": bank, "transform": transform, "limit": limit, "size": size, "channels": channels}
    given |= {"device": device, "keep_epochs": keep_epochs, "out": out}
    recipe, place = read_recipe(recipe, settings or {}, given)
    if start is not None:
        recipe = replace(recipe, architecture=LoadedEncoder(start.source), mean=(), std=())
    elif isinstance(recipe.architecture, LoadedEncoder):
        start = recipe.architecture.load_encoder(place["size"])
    folder = None if place["out"] is None else Path(place["out"])
    if resume and (folder is None or not (folder / checkpoints.FILE).exists()):
        raise HoldfastError(f"there is nothing to resume in {folder}; leave --resume out to begin")
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        fabric = _fabric(str(place["device"] or "cpu"), recipe.precision)
        taught, watched, domain = _images(recipe, place, start)
        module = _module(recipe, domain, start)
        if folder is not None:
            _require_free(folder)
            if rank() == 0:
                stack.enter_context(_alone(folder))
        began = datetime.now(UTC)
        show = stack.enter_context(shown(progress if rank() == 0 else False))
        record = _Record(recipe, taught, watched, domain, folder, int(place["keep_epochs"] or 0), began, start)
        stack.callback(record.close)
        training = Training(
            recipe,
            module,
            domain,
            taught,
            watched,
            fabric,
            folder,
            record.asked,
            show or _silent,
            record.after_epoch,
            watch,
        )
        training.run()
        encoder = record.encoder(training.learner.encoder)
        if folder is not None and rank() == 0:
            record.finish(encoder, training.curve)
        fabric.barrier()
    return encoder


def _silent(doing: str, share: float) -> None:
    """Show nothing."""


def read_recipe(
    recipe: Recipe | str | Path | Mapping[str, Any], settings: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe and where it is to be carried out; what is ``given`` wins over what a file says."""
    if isinstance(recipe, Recipe):
        values: dict[str, Any] = recipe.plain() if settings else {}
        said: dict[str, Any] = {}
    else:
        read = dict(recipe) if isinstance(recipe, Mapping) else read_settings(recipe)
        known = [*fields_of(Recipe), *PLACE]
        if unknown := next((name for name in read if name not in known), None):
            raise HoldfastError(f"a recipe has no setting {unknown!r}; {nearest(unknown, known)}")
        said = {name: read.pop(name) for name in PLACE if name in read}
        values = read
    place = {name: said.get(name) if given.get(name) is None else given[name] for name in PLACE}
    made = recipe if isinstance(recipe, Recipe) and not settings else Recipe.of({**values, **settings})
    return made, place


def _fabric(device: str, precision: str) -> Fabric:
    """Return what places the work: here, or in the processes that torchrun has started."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise HoldfastError("training needs Lightning Fabric; pip install 'holdfast[train]'") from None
    Run(device=device)  # refuses what torch does not see
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


def _images(recipe: Recipe, place: Mapping[str, Any], start: Encoder | None) -> tuple[Images, Images | None, Domain]:
    """Return the training images, the bank without copies of them, and the inputs that both are."""
    if place["images"] is None:
        raise HoldfastError('training needs images; name them with --images, or as images = "photos/" in the file')
    named = at_hand(place["images"])
    domain = _domain(recipe, named, place, start)
    geometry = start.geometry if start is not None else None
    taught = _loaded(named, domain, geometry, place["limit"], recipe.seed)
    original = taught
    if place["transform"] is not None:
        taught = transformed(taught, place["transform"], recipe.seed)
    if place["bank"] is None:
        return taught, None, domain
    bank = _loaded(at_hand(place["bank"]), domain, geometry, None, recipe.seed)
    if bank.labels is None:
        raise HoldfastError(f"the bank {bank.name} has no labels, so its neighbours say nothing; leave --bank out")
    return taught, apart(bank, original), domain


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


def _loaded(named: str | Images, domain: Domain, geometry: Any, limit: int | None, seed: int) -> Images:
    if isinstance(named, str):
        return data.load(named, domain, geometry, limit=limit, seed=seed)
    named.pixels([0], domain=domain)
    return named if limit is None else named[Selection(domain, limit=limit, seed=seed).choose(named.ids)]


def _module(recipe: Recipe, domain: Domain, start: Encoder | None) -> nn.Module:
    """Return the module to train, its random weights drawn by the recipe's seed."""
    torch.manual_seed(recipe.seed)
    if start is not None:
        return trainable(copy.deepcopy(start.module))
    if len(recipe.mean) not in (0, 1, domain.shape[0]):
        raise HoldfastError(
            f"mean and std have {len(recipe.mean)} numbers, and images {domain.shape[0]} channels; give one of each per "
            "channel"
        )
    module = recipe.architecture.build(domain)
    return Normalised(module, recipe.mean, recipe.std, len(domain.shape)) if recipe.mean else module


def _require_free(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError as error:
        raise HoldfastError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    if names and checkpoints.FILE not in names:
        raise HoldfastError(f"{folder} holds something else than a training; choose another --out")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no other training writes to it; a process that dies lets go of it."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows has other locks
        yield
        return
    with (folder / ".lock").open("w") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except OSError:
            raise HoldfastError(
                f"another training is writing to {folder}; wait for it, or choose another --out"
            ) from None
        for left in folder.glob(f".{checkpoints.FILE}.*"):  # by processes that were killed while they wrote
            left.unlink(missing_ok=True)
        yield


class _Record:
    """What is written of a training while it runs and at its end."""

    def __init__(
        self,
        recipe: Recipe,
        images: Images,
        bank: Images | None,
        domain: Domain,
        folder: Path | None,
        keep_epochs: int,
        began: datetime,
        start: Encoder | None,
    ) -> None:
        self.recipe, self.images, self.bank, self.domain = recipe, images, bank, domain
        self.folder, self.keep_epochs, self.began, self.start = folder, keep_epochs, began, start
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

    def after_epoch(self, module: nn.Module, curve: list[Epoch]) -> None:
        """Write what was measured so far, and the weights where they are kept."""
        if self.folder is None:
            return
        epoch = int(curve[-1]["epoch"])
        lines = "".join(json.dumps(one) + "\n" for one in curve)
        try:
            write_whole(self.folder / "metrics.jsonl", lines.encode())
            self._scalars(curve[-1], epoch)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        if self.keep_epochs and epoch % self.keep_epochs == 0:
            trained.write_epoch(self.folder, epoch, self.encoder(module).module)

    def _scalars(self, found: Epoch, epoch: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        assert self.folder is not None
        self.writer = self.writer or SummaryWriter(str(self.folder / "tensorboard"), purge_step=epoch)
        for name, value in found.items():
            if name != "epoch":
                self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def encoder(self, module: nn.Module) -> Encoder:
        """Return the encoder that ``module`` is."""
        name = self.folder.name if self.folder is not None else self.recipe.objective.name
        geometry = self.start.geometry if self.start is not None else None
        source = f"{trained.SOURCE}:{self.folder}" if self.folder is not None else "python"
        module = copy.deepcopy(module).cpu().float().eval()
        pooling = self.start.pooling if self.start is not None else "inside the module"
        return Encoder(module, name, self.domain, source=source, geometry=geometry, pooling=pooling)

    def finish(self, encoder: Encoder, curve: list[Epoch]) -> None:
        """Write weights, card and page."""
        assert self.folder is not None
        architecture = str(self.recipe.architecture) if self.start is None else trained.architecture_of(self.start)
        said = f"{self.recipe.objective} with {self.recipe.adversary}" if self.recipe.adversary else None
        card = trained.Card.of(
            encoder,
            architecture,
            recipe=self.recipe.plain(),
            objective=said or str(self.recipe.objective),
            seed=self.recipe.seed,
            epochs=self.recipe.epochs,
            images=_info(self.images),
            bank=None if self.bank is None else _info(self.bank),
            curve=tuple(curve),
            versions={**versions(), **checkout()},
            started=self.began.isoformat(timespec="seconds"),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        card = trained.write(self.folder, encoder, card)
        try:
            write_whole(self.folder / "training.html", page(card).encode())
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def close(self) -> None:
        """Close what is open."""
        if self.writer is not None:
            self.writer.close()


def unwritable(folder: Path, error: OSError) -> HoldfastError:
    """Return what to say when nothing more can be written."""
    return HoldfastError(
        f"cannot write to {folder}: {error.strerror or error}; free some space and run the same command again, which goes "
        "on from the last checkpoint"
    )


def _info(images: Images) -> ImagesInfo:
    skipped = tuple(f"{name}: {reason}" for name, reason in images.skipped.items())
    return ImagesInfo(name=images.name, fingerprint=images.fingerprint, count=len(images), skipped=skipped)
