"""Optimisers and schedules as settings: ``sgd:rate=0.06,momentum=0.9`` and ``cosine:warmup=10``."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar, final

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast.core.discovery import named_classes
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.settings import TextSettings, check_fraction, check_not_negative, check_positive, read


@dataclass(frozen=True)
class Optimiser(TextSettings):
    """Optimiser and its settings; weight decay spares biases and weights of norms unless ``decay_all``."""

    name: ClassVar[str]
    rate: float
    """Largest learning rate."""
    weight_decay: float = 0.0
    """Weight decay; biases and the weights of norms have none."""
    decay_all: bool = False
    """True to decay biases and the weights of norms too, as MoCo's authors do."""

    def __post_init__(self) -> None:
        check_positive(self, "rate")
        check_not_negative(self, "weight_decay")

    @classmethod
    def read(cls, text: str) -> Optimiser:
        return read(text, named_classes(sys.modules[__name__], Optimiser), "optimiser")

    def build(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser of those ``weights`` that are trained."""
        trained = [weight for weight in weights if weight.requires_grad]
        matrices = [weight for weight in trained if weight.ndim > 1]
        vectors = [weight for weight in trained if weight.ndim <= 1]
        spared = self.weight_decay if self.decay_all else 0.0
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors, "weight_decay": spared}]
        return self.of([group for group in groups if group["params"]])

    @abstractmethod
    def of(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        """Return the optimiser of groups of weights."""


@final
@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with momentum."""

    rate: float = 0.06
    """Learning rate, above 0."""
    weight_decay: float = 5e-4
    """Weight decay, 0 or more; biases and weights of norms have none."""
    momentum: float = 0.9
    """Momentum, in [0, 1)."""
    nesterov: bool = False
    """Whether momentum is Nesterov's."""
    name = "sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1 or (self.nesterov and not self.momentum):
            raise OutOfRange("sgd: momentum", self.momentum, "in [0, 1), and above 0 with nesterov")

    def of(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, self.rate, self.momentum, nesterov=self.nesterov)


@final
@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980)."""

    rate: float = 1e-3
    """Learning rate, above 0."""
    weight_decay: float = 0.0
    """Weight decay, 0 or more; biases and weights of norms have none."""
    name = "adam"

    def of(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, self.rate)


@final
@dataclass(frozen=True)
class AdamW(Optimiser):
    """Adam with decoupled weight decay.

    Paper: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101.
    """

    rate: float = 1e-3
    """Learning rate, above 0."""
    weight_decay: float = 0.05
    """Weight decay, 0 or more; biases and weights of norms have none."""
    beta2: float = 0.999
    """Decay of the second moment."""
    name = "adamw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "beta2")

    def of(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, self.rate, (0.9, self.beta2))


@final
@dataclass(frozen=True)
class Lars(Optimiser):
    """SGD whose rate adapts to each layer, for batches of thousands.

    Paper: You et al. 2017, https://arxiv.org/abs/1708.03888.
    """

    rate: float = 0.3
    """Learning rate, above 0."""
    weight_decay: float = 1e-6
    """Weight decay, 0 or more; biases and weights of norms have none."""
    momentum: float = 0.9
    """Momentum, in [0, 1)."""
    trust: float = 0.001
    """Trust coefficient of each layer's rate."""
    name = "lars"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "momentum")
        check_positive(self, "trust")

    def of(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        from holdfast.encoders.loading.inputs import declare_missing_operators

        declare_missing_operators()
        try:
            from timm.optim.lars import Lars as TimmLars
        except ImportError:
            advice = "pip install 'holdfast-encoders[vision]', or use sgd"
            raise HoldfastError(f"the optimiser lars is timm's; {advice}") from None
        built: torch.optim.Optimizer = TimmLars(
            groups, self.rate, momentum=self.momentum, trust_coeff=self.trust, always_adapt=False
        )
        return built


@dataclass(frozen=True)
class Schedule(TextSettings):
    """Learning rate over time, as a fraction of the optimiser's rate."""

    name: ClassVar[str]

    @classmethod
    def read(cls, text: str) -> Schedule:
        return read(text, named_classes(sys.modules[__name__], Schedule), "schedule")

    @abstractmethod
    def factor(self, epoch: float, epochs: int) -> float:
        """Fraction of the learning rate at a time.

        Args:
            epoch: Epochs that are done, with the fraction of the current one.
        """


@final
class Constant(Schedule):
    """The same rate throughout."""

    name = "constant"

    def factor(self, epoch: float, epochs: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up, then half a cosine down to a fraction of the rate.

    Example:
        >>> cosine = Cosine(warmup=1.0)
        >>> [round(cosine.factor(epoch, 11), 3) for epoch in (0.5, 1.0, 6.0, 11.0)]
        [0.5, 1.0, 0.5, 0.0]
        >>> Cosine(before=6).factor(0.0, 6)
        0.5
    """

    warmup: float = 0.0
    """Epochs of linear warm-up."""
    final: float = 0.0
    """Final learning rate, as a fraction of the largest."""
    before: int = 0
    """Epochs of the same cosine that an earlier training has done."""
    name = "cosine"

    def __post_init__(self) -> None:
        check_not_negative(self, "warmup", "final", "before")

    def factor(self, epoch: float, epochs: int) -> float:
        epoch, epochs = epoch + self.before, epochs + self.before
        if epoch < self.warmup:
            return epoch / self.warmup
        share = (epoch - self.warmup) / max(epochs - self.warmup, 1e-12)
        return self.final + (1 - self.final) * (1 + cos(pi * min(share, 1))) / 2


@final
@dataclass(frozen=True)
class Steps(Schedule):
    """Times ``factor_each`` every ``every`` epochs (RVCL: 0.1 every 100)."""

    every: int = 100
    """Epochs between two steps."""
    factor_each: float = 0.1
    """Factor of the learning rate at each step."""
    name = "steps"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise OutOfRange("steps: every", self.every, "at least 1 epoch")
        check_not_negative(self, "factor_each")

    def factor(self, epoch: float, epochs: int) -> float:
        return self.factor_each ** int(epoch // self.every)


@final
class OneCycle(Schedule):
    """Rise from 1/25 within the first 0.3 of the training, then fall to 0.

    Paper: Smith and Topin 2018, https://arxiv.org/abs/1708.07120.
    """

    name = "one-cycle"

    def factor(self, epoch: float, epochs: int) -> float:
        share, rise, low = epoch / epochs, 0.3, 1 / 25
        if share < rise:
            return low + (1 - low) * (1 - cos(pi * share / rise)) / 2
        return (1 + cos(pi * (share - rise) / (1 - rise))) / 2


def averaged(encoder: nn.Module, decay: float) -> AveragedModel:
    """Moving average of an encoder's weights, with the encoder's running statistics.

    Args:
        decay: Weight of the old average, 0 to 1.
    """
    average = AveragedModel(encoder, multi_avg_fn=get_ema_multi_avg_fn(decay))
    return average.requires_grad_(False)
