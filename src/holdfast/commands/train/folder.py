"""The folder of a training: held by one process at a time, written while it runs and at its end.

OUT/
  encoder.safetensors card.json   the encoder, which every command loads as trained:OUT
  epochs/0005.safetensors         its weights after single epochs, where they are kept
  metrics.jsonl tensorboard/      what was measured after each epoch
  training.html                   the curves
  checkpoint.pt                   from which a training that was interrupted goes on
  files.index                     image files found sound and their digests, so that a second start reads none for that
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from holdfast.commands.output_folder import require_free
from holdfast.commands.train.inputs import Inputs, laid_out
from holdfast.core.copies import copied
from holdfast.core.encoder import MADE_IN_PYTHON, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_whole
from holdfast.core.images import Images
from holdfast.core.records import ImagesInfo
from holdfast.data.reading.remembered import FILE as REMEMBERED
from holdfast.encoders import trained
from holdfast.store.provenance import checkout, versions
from holdfast.training.gathering import rank
from holdfast.training.loop import checkpoints
from holdfast.training.loop.training import Epoch
from holdfast.training.page import page
from holdfast.training.recipe import Recipe

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

VERSION = 3
"""Raised whenever the same recipe makes other weights. 2: RoCL has all three views in one denominator. 3: the rate of a step
is that in its middle, and training from an encoder is in eval mode."""


def require_trainable(folder: Path) -> None:
    """Make the folder, and refuse one that holds something else than a training."""
    require_free(folder, checkpoints.FILE, (REMEMBERED,))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no other training writes to it; a process that dies lets go of it.

    Raises:
        HoldfastError: another training holds it, it holds something else than a training, or cannot be written.
    """
    require_trainable(folder)
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

    def __init__(self, recipe: Recipe, inputs: Inputs, folder: Path | None, keep_epochs: int) -> None:
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

    def after_epoch(self, module: nn.Module, curve: list[Epoch]) -> None:
        """Write what was measured so far, and the weights where they are kept."""
        if self.folder is None:
            return
        epoch = int(curve[-1]["epoch"])
        lines = "".join(json.dumps(epoch_numbers) + "\n" for epoch_numbers in curve)
        try:
            write_whole(self.folder / "metrics.jsonl", lines.encode())
            self._scalars(curve[-1], epoch)
        except OSError as error:
            raise unwritable(self.folder, error) from error
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

    def finish(self, encoder: Encoder, curve: list[Epoch], started: str) -> None:
        """Write weights, card and page."""
        assert self.folder is not None
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
            images=_info(inputs.images),
            bank=None if inputs.bank is None else _info(inputs.bank),
            curve=tuple(curve),
            versions={**versions(), **checkout()},
            started=started,
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
