"""``Robustness``, a callback for the ``Trainer`` of transformers: robustness of the encoder after each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from holdfast.core.copies import copied
from holdfast.encoders.by_name import require
from holdfast.encoders.huggingface import Vision
from holdfast.integrations.monitor import Monitor, scalars
from holdfast.run.inputs import NamedImages


class Robustness(require("transformers", "huggingface").TrainerCallback):  # type: ignore[misc]
    """Logs label-free numbers of the encoder before training and after epochs, in a stated share of the time.

    Only the first process measures; no weight, mode, gradient or random state of the training changes. Numbers go where
    the trainer logs, and into its ``state.log_history``.

    Args:
        trainer: whose numbers they are logged with; add the callback to it by ``trainer.add_callback``.
        images: unlabelled, as for ``Monitor``.
        encoder: what to measure of the model: a module that maps images to embeddings (b, d). By default its ``base_model``,
            pooled as Holdfast pools models of the hub.
        settings: those of ``Monitor``: ``every``, ``share``, ``only``, ``mean`` and ``std``, ``bank``, and so on.

    Example:
        trainer.add_callback(Robustness(trainer, "photos/", shape=(3, 224, 224), every=5))
    """

    def __init__(
        self, trainer: Any, images: NamedImages, encoder: Callable[[Any], nn.Module] | None = None, **settings: Any
    ) -> None:
        self.trainer, self.monitor = trainer, Monitor(images, **settings)
        self.encoder = encoder or _pooled

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.is_world_process_zero:
            self.trainer.log(scalars(self.monitor.start(self.encoder(model))))

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        epoch = round(state.epoch)
        if state.is_world_process_zero and self.monitor.due(epoch):  # before the model is copied
            numbers = scalars(self.monitor.after(epoch, self.encoder(model)))
            if numbers:
                self.trainer.log(numbers)


def _pooled(model: Any) -> nn.Module:
    """Return a copy of the model as an encoder; what pools models puts them into eval mode."""
    return Vision(copied(model.base_model), None, resized=False)
