"""Adversarial training: the first view of each image is perturbed within a ball before the loss is computed.

An adversary uses the learner in eval mode and does not change it: weights get no gradients, batch norms do not see
attacked images, queues and momentum copies stay. The attack is projected steepest ascent from a random point of the ball
(Madry et al. 2018, https://arxiv.org/abs/1706.06083); training uses its last point.
"""

from __future__ import annotations

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
from holdfast.core.settings import TextSettings, check_positive, read
from holdfast.training.feed import Feed
from holdfast.training.learner import Batch, Learner, OfRows

Prepared = dict[str, Tensor]
"""What an adversary knows of the whole training set, by name."""


@dataclass(frozen=True)
class Adversary(TextSettings):
    """Attack on the first view of each image, before the training loss is computed.

    The default step size lets every point of the ball be reached from every other.
    """

    name: ClassVar[str]
    ball: Ball = Linf(8 / 255)
    """Perturbation set."""
    steps: int = 7
    """Attack steps per training step."""
    step: float | None = None
    """Step in pixel units; none: 2.5 times the radius over `steps`."""

    def __post_init__(self) -> None:
        check_positive(self, "steps", "step")

    @classmethod
    def read(cls, text: str) -> Adversary:
        return read(text, adversaries(), "adversary")

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        """Network under attack, and gain of each sample as a function of its output; by default the training loss.

        Args:
            learner: Learner under attack.
            batch: Images of the step.
        """
        return learner.loss_under_attack(batch)

    @property
    def attacks(self) -> bool:
        """Return whether views are moved at all."""
        return True

    def around(self, learner: Learner, domain: Domain, from_scratch: bool) -> Learner:
        """Learner that is trained with this adversary; another one if the adversary adds a loss.

        Args:
            learner: Learner under attack.
            domain: Shape and range of the inputs.
            from_scratch: True if the weights are untrained.
        """
        return learner

    def prepare(self, epoch: int, feed: Feed, codes: Callable[[], Codes], prepared: Prepared) -> Prepared:
        """Compute what the attacks of an epoch need about the training set; by default nothing.

        Args:
            epoch: Number of the epoch, from 0.
            feed: Training images.
            codes: Function that computes the embeddings of all images, in order and in eval mode.
            prepared: Result of the epoch before; empty before the first.
        """
        return prepared

    def groups(self, batch: Batch, prepared: Prepared) -> list[tuple[Ball, Bool[Tensor, "b"]]]:
        """Balls in use, each with a mask of its samples.

        Args:
            batch: Images of the step.
            prepared: Result of ``prepare``.
        """
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
    """Gain of some samples of a batch as a function of their embeddings alone.

    Args:
        rows: Samples that move, shape (r,).
        gain: Gain of all samples of the batch.
        encoder: Encoder under attack.
        clean: Images of the batch, shape (b, *pixels).
    """
    with torch.no_grad():
        codes = encoder.forward(clean)

    def among(moved: Codes) -> Float[Tensor, "r"]:
        return gain(codes.index_copy(0, rows, moved))[rows]

    return among


def noted(gain: ObjectiveFunction, finite: list[Tensor]) -> ObjectiveFunction:
    """Wrap a gain to record whether embeddings are finite, without waiting for a GPU.

    Args:
        gain: Gain of each sample.
        finite: List to which each call appends one flag.
    """

    def of(codes: Codes) -> Float[Tensor, "b"]:
        finite.append(codes.detach().isfinite().all())
        return gain(codes)

    return of


@contextmanager
def required(finite: Sequence[Tensor]) -> Iterator[None]:
    """Check at the end that all recorded flags are true.

    Raises:
        HoldfastError: Embeddings are not finite.
    """
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
    """Wrap a network as an encoder for attacks, without a copy.

    Args:
        network: Network in training.
        domain: Shape and range of the inputs.
    """
    encoder = Encoder(nn.Identity(), "the encoder in training", domain)
    encoder.module = network
    return encoder


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Put ``module`` into eval mode without weight gradients, and restore both afterwards."""
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
