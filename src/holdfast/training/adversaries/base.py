"""Adversarial training: the first view of each image is moved, inside a ball, before the loss is taken.

An adversary looks at the learner in eval mode and changes nothing of it: no weight takes a gradient, no batch norm sees
the attacked images, no queue or momentum copy moves. The attack is projected steepest ascent from a random point of the
ball (Madry et al. 2018, https://arxiv.org/abs/1706.06083), and its last point is what is trained on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Ball, Linf
from holdfast.core.discovery import named_classes
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import Spelled, read, require_positive
from holdfast.training.feed import Feed
from holdfast.training.learner import Batch, Learner, OfRows

Prepared = dict[str, Tensor]
"""What an adversary knows of the whole training set, by name."""


@dataclass(frozen=True)
class Adversary(Spelled):
    """Moves the first view of each image inside ``ball``; what it climbs is its kind.

    ``step`` is in the units of the pixels; by default it is ``2.5 * radius / steps``, so that every point of the ball
    can be reached from every other.
    """

    name: ClassVar[str]
    ball: Ball = Linf(8 / 255)
    """Perturbation set."""
    steps: int = 7
    """Attack steps per training step."""
    step: float | None = None
    """Step in pixel units; none: 2.5 times the radius over `steps`."""

    def __post_init__(self) -> None:
        require_positive(self, "steps", "step")

    @classmethod
    def read(cls, text: str) -> Adversary:
        return read(text, adversaries(), "adversary")

    @abstractmethod
    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        """Return the network that the attack passes through and the gain of each sample as a function of its output."""

    @property
    def attacks(self) -> bool:
        """Return whether views are moved at all."""
        return True

    def around(self, learner: Learner, domain: Domain, from_scratch: bool) -> Learner:
        """Return what is trained where this adversary is at work: the ``learner``, unless it adds to the loss."""
        return learner

    def prepare(self, epoch: int, feed: Feed, codes: Callable[[], Codes], prepared: Prepared) -> Prepared:
        """Return what this epoch's attacks need to know of the whole training set, kept in checkpoints; here nothing.

        Args:
            epoch: from 0.
            feed: the training images.
            codes: computes the codes of all of them, in order and in eval mode.
            prepared: what was returned before the last epoch, empty before the first.
        """
        return prepared

    def groups(self, batch: Batch, prepared: Prepared) -> list[tuple[Ball, Bool[Tensor, "b"]]]:
        """Return the balls in use, each with the samples that it is for."""
        return [(self.ball, torch.ones_like(batch.rows, dtype=torch.bool))]

    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: Prepared) -> Pixels:
        """Return the attacked first view, shape (b, *pixels)."""
        attack = GradientAttack(steps=self.steps, stride=2.5 / self.steps, keep="last")
        if self.step is not None:
            attack = GradientAttack(steps=self.steps, step=self.step, keep="last")
        clean, noise = batch.views[0], batch.noise.fork("adversary")
        moved, finite = clean.clone(), list[Tensor]()
        with untouched(learner), required(finite):
            network, climbed = self.climbed(learner, batch)
            encoder, gain = in_training(network, domain), noted(climbed, finite)
            for ball, members in self.groups(batch, prepared):
                rows = members.nonzero()[:, 0]
                if len(rows):
                    gain_of_rows = gain if len(rows) == len(clean) else gain_of(rows, gain, encoder, clean)
                    passed = in_training(network.among(rows), domain) if isinstance(network, OfRows) else encoder
                    moved[rows] = attack(passed, clean[rows], gain_of_rows, ball, noise[rows]).detach()
        return moved


def adversaries() -> dict[str, type[Adversary]]:
    """Return every adversary by name."""
    from holdfast.training import adversaries as home

    return named_classes(home, Adversary)


def gain_of(rows: Int[Tensor, "r"], gain: ObjectiveFunction, encoder: Encoder, clean: Pixels) -> ObjectiveFunction:
    """Return the gain of some samples of a batch as a function of their codes alone; the others stay where they are."""
    with torch.no_grad():
        codes = encoder.forward(clean)

    def among(moved: Codes) -> Float[Tensor, "r"]:
        return gain(codes.index_copy(0, rows, moved))[rows]

    return among


def noted(gain: ObjectiveFunction, finite: list[Tensor]) -> ObjectiveFunction:
    """Return the gain, which notes whether the codes that it is given are finite; no one waits for a GPU to say it."""

    def of(codes: Codes) -> Float[Tensor, "b"]:
        finite.append(codes.detach().isfinite().all())
        return gain(codes)

    return of


@contextmanager
def required(finite: Sequence[Tensor]) -> Iterator[None]:
    """Raise at the end unless all that was noted is true; also where an attack on codes that are not left its ball."""
    failed: AssertionError | None = None
    try:
        yield
    except AssertionError as error:
        failed = error
    if finite and not bool(torch.stack(list(finite)).all()):
        raise HoldfastError(
            "the encoder in training gives embeddings that are not finite; lower the learning rate, set clip, "
            "or use a wider "
            "precision"
        ) from failed
    if failed is not None:
        raise failed


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
