"""The trained object: an encoder with the heads of its objective, and the loss of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from holdfast.core.copies import copied
from holdfast.core.discovery import named_classes
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import TextSettings, read
from holdfast.training.processes import processes

# What is trained: an encoder with what its objective adds to it, and the loss of a batch.
#
# A ``TrainingObjective`` is settings. Its ``Learner`` holds everything that training changes (encoder, heads, momentum
# copies, queues, prototypes) as parameters and persistent buffers, so that its state is all that a checkpoint must
# hold.


@final
class Batch:
    """What one process sees in one training step.

    Args:
        rows: Position of each image in the training set, shape (b,).
        pixels: Images without augmentation, shape (b, *pixels); with ``native`` the first view.
        views: Augmented views, as many as the objective needs; from the third on they are small crops.
        labels: Classes 0, 1, ..., shape (b,); None without labels.
        noise: Random streams of this epoch, one per image.
        attacked: First view after the adversary, shape (b, *pixels); None without an adversary.
        progress: Fraction of the training that is done, 0 to 1.
    """

    def __init__(
        self,
        rows: Int[Tensor, "b"],
        pixels: Pixels,
        views: tuple[Float[Tensor, "b ..."], ...],
        labels: Int[Tensor, "b"] | None,
        noise: Noise,
        attacked: Pixels | None = None,
        progress: float = 1.0,
    ) -> None:
        self.rows, self.pixels, self.views, self.labels, self.noise = rows, pixels, views, labels, noise
        self.attacked, self.progress = attacked, progress

    def seen(self, count: int | None = None) -> tuple[Float[Tensor, "b ..."], ...]:
        """The first ``count`` views, by default all, and the attacked one if there is one."""
        return (*self.views[:count], *(() if self.attacked is None else (self.attacked,)))


@dataclass(frozen=True)
class Setting:
    """Sizes that a learner is built for."""

    domain: Domain
    """Shape and range of the inputs."""
    width: int
    """Features of the encoder's embeddings."""
    samples: int
    """Images in the training set."""
    classes: int
    """Classes of the labels; 0 without labels."""
    batch: int
    """Images in a batch, over all processes."""


class OfRows(nn.Module, ABC):
    """Network that treats each image of a batch differently, such as by hiding patches."""

    @abstractmethod
    def among(self, rows: Int[Tensor, "r"]) -> nn.Module:
        """Return the network of these images of the batch alone."""


class Learner(nn.Module, ABC):
    """Encoder in training; ``forward`` returns the loss of a batch.

    Only parameters that require gradients are trained.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        """Mean loss over the samples of this process, of the attacked view if there is one."""

    @property
    def classifier(self) -> nn.Linear | None:
        """Linear classifier of the embeddings; None unless the objective trains one."""
        return None

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        """Network and loss that an adversary attacks in the first view.

        The function maps the network's output for the attacked view to the loss of each sample. Everything else is
        computed here, once. The call happens in eval mode and must change nothing.

        Raises:
            HoldfastError: The objective has no loss of single samples.
        """
        raise HoldfastError(
            f"{type(self).__name__} has no loss of single samples to attack; use the adversary untargeted or targeted"
        )

    def before_epoch(self, epoch: int, codes: Callable[[], Float[Tensor, "n d"]]) -> None:
        """Prepare an epoch.

        Args:
            epoch: Number of the epoch.
            codes: Function that computes the embeddings of all training images, in order, shape (n, d).
        """

    def after_epoch(self, numbers: Mapping[str, float]) -> None:
        """Take note of what was measured after an epoch, by name; epoch 0 is before the first step."""

    def before_step(self, progress: float) -> None:
        """Change what must change between gradients and optimiser step.

        ``progress`` is the fraction of the training that is done.
        """

    def after_step(self, progress: float) -> None:
        """Update momentum copies and queues after the optimiser step.

        ``progress`` is the fraction of the training that is done.
        """


class HeadLearner(Learner):
    """An encoder with a head behind it, and the settings of its objective."""

    def __init__(self, encoder: nn.Module, head: nn.Module, settings: TrainingObjective) -> None:
        super().__init__(encoder)
        self.head, self.settings = head, settings

    @property
    def network(self) -> nn.Sequential:
        """Encoder and head."""
        return nn.Sequential(self.encoder, self.head)


@dataclass(frozen=True)
class TrainingObjective(TextSettings):
    """Goal of training; its fields are its settings."""

    name: ClassVar[str]
    views: ClassVar[int] = 2
    """Whole views of each image."""
    needs_labels: ClassVar[bool] = False
    """True if the objective needs labels."""

    @property
    def crops(self) -> int:
        """Return how many small crops of each image there are beside its whole views."""
        return 0

    @classmethod
    def read(cls, text: str) -> TrainingObjective:
        return read(text, training_objectives(), "training objective")

    @abstractmethod
    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        """Build the learner around an encoder; torch's generator draws new weights.

        Args:
            encoder: Network from pixels to embeddings.
            setting: Sizes that the learner is built for.
        """


def training_objectives() -> dict[str, type[TrainingObjective]]:
    """Return every training objective by name."""
    from holdfast.training import objectives as home

    return named_classes(home, TrainingObjective)


def check_two_images(objective: TrainingObjective, setting: Setting) -> None:
    """Check that each process has at least two images per batch to compare.

    Args:
        objective: Objective that compares images of a batch.
        setting: Sizes, of which the batch is checked.

    Raises:
        HoldfastError: The batch is too small.
    """
    if setting.batch < 2 * processes():
        raise HoldfastError(
            f"{objective.name} compares the images of a batch and needs at least 2 on each process, got a batch of "
            f"{setting.batch} for {processes()}; raise batch"
        )


def codes_of_views(encoder: nn.Module, views: Sequence[Float[Tensor, "b ..."]]) -> Float[Tensor, "n d"]:
    """Embeddings of all views, stacked; views of one size pass together, for batch norm.

    Args:
        views: Views, each of shape (b, *pixels).
    """
    by_view: dict[int, Codes] = {}
    for shape in dict.fromkeys(view.shape for view in views):
        same = [place for place, view in enumerate(views) if view.shape == shape]
        codes = codes_of(encoder, torch.cat([views[place] for place in same]))
        by_view |= zip(same, codes.chunk(len(same)), strict=True)
    return torch.cat([by_view[place] for place in range(len(views))])


def codes_of(module: nn.Module, pixels: Pixels) -> Codes:
    """One embedding per image."""
    codes: Codes = module(pixels)
    return codes


def mlp(widths: Sequence[int], norm: bool = False, last_norm: bool = False, bias: bool = True) -> nn.Sequential:
    """Linear layers with ReLU between, and optional batch norm.

    Args:
        widths: Features before, between and after the layers.
        norm: True for batch norm before each ReLU.
        last_norm: True for batch norm without weights after the last layer.
        bias: True for a bias of the last layer, unless batch norm follows.

    Example:
        >>> mlp((4, 8, 2))
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """
    layers: list[nn.Module] = []
    for place in range(len(widths) - 1):
        last = place == len(widths) - 2
        normed = last_norm if last else norm
        layers.append(nn.Linear(widths[place], widths[place + 1], bias=(bias and not normed) if last else not normed))
        layers += [nn.BatchNorm1d(widths[place + 1], affine=not last)] if normed else []
        layers += [] if last else [nn.ReLU()]
    return nn.Sequential(*layers)


def frozen_copy(module: nn.Module) -> nn.Module:
    """Return a copy that is not trained: a momentum encoder, or a teacher that stays as it is."""
    return copied(module).requires_grad_(False)


@torch.no_grad()
def follow(copies: Iterable[nn.Parameter], originals: Iterable[nn.Parameter], momentum: float) -> None:
    """Move each copy to ``momentum * copy + (1 - momentum) * original``.

    Parameters alone: the copy's batch norms keep the running statistics of what they saw themselves.

    Args:
        copies: Parameters to move.
        originals: Parameters to follow, in the same order.
        momentum: Weight of the copy, 0 to 1.
    """
    for copy, original in zip(copies, originals, strict=True):
        copy.lerp_(original, 1 - momentum)


def rising(start: float, progress: float) -> float:
    """Momentum that rises from ``start`` to 1 along half a cosine (BYOL, MoCo v3, DINO).

    Args:
        start: Momentum at the beginning, 0 to 1.
        progress: Fraction of the training that is done, 0 to 1.

    Example:
        >>> [round(rising(0.99, progress), 4) for progress in (0.0, 0.5, 1.0)]
        [0.99, 0.995, 1.0]
    """
    return 1 - (1 - start) * (cos(pi * progress) + 1) / 2
