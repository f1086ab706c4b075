"""``Robustness``, a callback for Lightning's trainer: robustness of the encoder beside the loss after each epoch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from holdfast.core.errors import HoldfastError
from holdfast.integrations.monitor import Monitor, scalars
from holdfast.run.inputs import NamedImages

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""One library under two names; a trainer takes callbacks of its own name."""


def _callback() -> Any:
    for package in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(package).Callback
        except ImportError:
            continue
    raise HoldfastError("Lightning is not installed; install it with pip install lightning")


class Robustness(_callback()):  # type: ignore[misc]
    """Logs label-free numbers of the encoder before training and after epochs, in a stated share of the time.

    Only the first process measures; no weight, mode, gradient or random state of the training changes.

    Args:
        images: unlabelled, as for ``Monitor``.
        encoder: what to measure of the LightningModule: a module that maps images to embeddings (b, d). By default its
            ``backbone``.
        settings: those of ``Monitor``: ``every``, ``share``, ``only``, ``mean`` and ``std``, ``bank``, and so on.

    Example:
        trainer = Trainer(callbacks=[Robustness("photos/", shape=(3, 224, 224), every=5)])
    """

    def __init__(self, images: NamedImages, encoder: Callable[[Any], nn.Module] | None = None, **settings: Any) -> None:
        super().__init__()
        self.monitor = Monitor(images, **settings)
        self.encoder = encoder or _backbone

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            numbers = scalars(self.monitor.start(self.encoder(pl_module)))
            for logger in trainer.loggers:
                logger.log_metrics({**numbers, "epoch": trainer.current_epoch}, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        if trainer.is_global_zero and self.monitor.due(epoch):
            self.log_dict(scalars(self.monitor.after(epoch, self.encoder(pl_module))), rank_zero_only=True)


def _backbone(module: Any) -> nn.Module:
    backbone = getattr(module, "backbone", None)
    if not isinstance(backbone, nn.Module):
        raise HoldfastError(
            f"{type(module).__name__} has no backbone to measure; say which part maps images to embeddings, as in "
            "encoder=lambda module: module.model"
        )
    return backbone
