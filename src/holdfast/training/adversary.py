"""Adversarial training: the first view of each image is moved, inside a ball, before the loss is taken.

An adversary looks at the learner in eval mode and changes nothing of it: no weight takes a gradient, no batch norm sees
the attacked images, no queue or momentum copy moves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from torch import Tensor, nn

from holdfast.attacks.base import Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Ball, Linf
from holdfast.core.discovery import named_classes
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.settings import Spelled, read
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.feed import Feed
from holdfast.training.learner import Batch, Learner


@dataclass(frozen=True)
class Adversary(Spelled):
    """Moves the first view of each image by ``attack`` inside ``ball``; what it climbs is its kind."""

    name: ClassVar[str]
    ball: Ball = Linf(8 / 255)
    attack: Attack = GradientAttack(steps=5, stride=0.5, keep="last")

    @classmethod
    def read(cls, text: str) -> Adversary:
        return read(text, adversaries(), "adversary")

    @abstractmethod
    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        """Return the network that the attack passes through and the gain of each sample as a function of its output."""

    def prepare(
        self, epoch: int, feed: Feed, codes: Callable[[], Codes], prepared: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what this epoch's attacks need to know of the whole training set, kept in checkpoints; here nothing.

        Args:
            epoch: from 0.
            feed: the training images.
            codes: computes the codes of all of them, in order and in eval mode.
            prepared: what was returned before the last epoch, empty before the first.
        """
        return prepared

    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: dict[str, Tensor]) -> Pixels:
        """Return the attacked first view, shape (b, *pixels)."""
        with untouched(learner):
            network, gain = self.climbed(learner, batch)
            noise = batch.noise.fork("adversary")
            return self.attack(in_training(network, domain), batch.views[0], gain, self.ball, noise).detach()


@cache
def adversaries() -> dict[str, type[Adversary]]:
    """Return every adversary by name."""
    from holdfast.training import adversaries as home

    return named_classes(home, Adversary)


def in_training(network: nn.Module, domain: Domain) -> Encoder:
    """Return ``network`` as an encoder that attacks can look at, without the copy that an encoder makes otherwise."""
    encoder = Encoder(nn.Identity(), "the encoder in training", domain)
    encoder.module = network
    return encoder


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Put ``module`` into eval mode and its weights out of reach of gradients, and everything back afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    module.eval()
    for weight in trained:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)
        for part, mode in modes:
            part.training = mode
