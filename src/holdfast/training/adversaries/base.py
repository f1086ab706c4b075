"""Adversarial training: the first view of each image is perturbed within a ball before the loss is computed.

An adversary uses the learner in eval mode and does not change it: weights get no gradients, batch norms do not see
attacked images, queues and momentum copies stay. The attack is projected steepest ascent from a random point of the ball
(Madry et al. 2018, https://arxiv.org/abs/1706.06083); training uses its last point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.discovery import named_classes
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import TextSettings, check_fraction, check_not_negative, check_positive, read
from holdfast.training.feed import Feed
from holdfast.training.learner import Batch, Learner, OfRows, codes_of
from holdfast.training.processes import gathered, own_rows

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
        """Network under attack, and gain of each sample as a function of its output; by default the training loss."""
        return learner.loss_under_attack(batch)

    @property
    def attacks(self) -> bool:
        """Return whether views are moved at all."""
        return True

    def around(self, learner: Learner, domain: Domain, from_scratch: bool) -> Learner:
        """Learner that is trained with this adversary; another one if the adversary adds a loss.

        Args:
            from_scratch: True if the weights are untrained.
        """
        return learner

    def prepare(self, epoch: int, feed: Feed, codes: Callable[[], Codes], prepared: Prepared) -> Prepared:
        """Compute what the attacks of an epoch need about the training set; by default nothing.

        Args:
            feed: Training images.
            codes: Function that computes the embeddings of all images, in order and in eval mode.
            prepared: Result of the epoch before; empty before the first.
        """
        return prepared

    def groups(self, batch: Batch, prepared: Prepared) -> list[tuple[Ball, Bool[Tensor, "b"]]]:
        """Balls in use, each with a mask of its samples."""
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
            "the encoder in training gives embeddings that are not finite; lower the learning rate, set clip, or use a "
            "wider precision"
        ) from failed
    if failed is not None:
        raise failed


def in_training(network: nn.Module, domain: Domain) -> Encoder:
    """Wrap a network as an encoder for attacks, without a copy."""
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


# L-PGD: climb the training loss itself (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, section 4.4).
#
# With SimCLR it is the instance-wise attack of RoCL, with a supervised loss that of Madry et al. 2018, and with
# distillation from a frozen copy that of FARE (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336).


SMALLEST = 1e-3
"""The ramp of the radius begins at this fraction of it."""


@final
@dataclass(frozen=True)
class OnLoss(Adversary):
    """Maximise each sample's training loss (L-PGD; also RoCL, FARE and adversarial training)."""

    ramp: float = 0.0
    """Fraction of the training over which the radius grows from 0, in [0, 1]."""
    name = "loss"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "ramp")

    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: Prepared) -> Pixels:
        if batch.progress >= self.ramp:
            return super().__call__(learner, batch, domain, prepared)
        # The views of the first step of all are clean, up to a ball of next to no size.
        share = max(SMALLEST, batch.progress / self.ramp)
        within = replace(self, ball=self.ball.scaled(share), ramp=0.0)
        return super(OnLoss, within).__call__(learner, batch, domain, prepared)


# TAR: towards the code of the image before it in the batch, ``min |f(x_i^) - f(x_{i-1}')|_2``.
#
# ``x'`` is the second view where there is one, else the first; the batch is a ring. Petrov and Kwiatkowska 2022,
# https://arxiv.org/abs/2210.04076, sections 4.2 and 4.4, with the settings of their fine-tuning. What moves is the
# code that the encoder will be used for; the authors' MoCo programs move the output of its head.


@final
@dataclass(frozen=True)
class Targeted(Adversary):
    """Move the embedding towards that of another image of the batch (TAR)."""

    ball: Ball = Linf(0.05)
    """Perturbation set of the attack in training."""
    steps: int = 3
    """Attack steps per batch, 0 or more."""
    step: float | None = 0.005
    """Step size in pixel units; None: 2.5 * radius / ``steps``."""
    name = "targeted"

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            everybody = gathered(codes_of(learner.encoder, batch.views[:2][-1]))
        targets = everybody.roll(1, dims=0)[own_rows(len(batch.rows), everybody.device)]
        return learner.encoder, lambda codes: -L2Distance()(codes, targets)


# UNTAR: away from the encoder's own code of the clean view, ``max |f(x^) - f(x)|_2``.
#
# Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076, sections 4.2 and 4.4, with the settings of their
# fine-tuning.
# What moves is the code that the encoder will be used for; the authors' MoCo programs move the output of its head.


@final
@dataclass(frozen=True)
class Untargeted(Adversary):
    """Move the embedding as far as possible from that of the clean view (UNTAR)."""

    ball: Ball = Linf(0.05)
    """Perturbation set of the attack in training."""
    steps: int = 3
    """Attack steps per batch, 0 or more."""
    step: float | None = 0.005
    """Step size in pixel units; None: 2.5 * radius / ``steps``."""
    name = "untargeted"

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        with torch.no_grad():
            clean = codes_of(learner.encoder, batch.views[0])
        return learner.encoder, lambda codes: L2Distance()(codes, clean)


# Noise instead of an attack, or on top of one: the views that the smoothed encoder sees.
#
#     x^ = x' + sigma n,   n ~ N(0, 1) in every pixel,   x' = x,
#     or with steps of an attack the point of the ball at which the loss of x' + sigma n is highest
#
# Noise alone is the training of Cohen et al. 2019, https://arxiv.org/abs/1902.02918; the attack on the smoothed
# network, with one draw of noise for each image, is SmoothAdv (Salman et al. 2019, https://arxiv.org/abs/1906.04584,
# equation 5). With the objective ``distillation`` codes of noisy copies are held at the clean codes, without labels.


@final
@dataclass(frozen=True)
class GaussianNoise(Adversary):
    """Add normal noise; optionally, an attack moves the image to which noise is added.

    As in smoothing, noisy views leave the range of the pixels.
    """

    ball: Ball = L2(0.25)
    """Perturbation set of the attack."""
    steps: int = 0
    """Attack steps per batch; 0: noise alone."""
    sigma: float = 0.25
    """Standard deviation of the noise, in pixel units."""
    name = "noise"

    def __post_init__(self) -> None:
        check_positive(self, "sigma", "step")
        check_not_negative(self, "steps")

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        network, gain = learner.loss_under_attack(batch)
        if isinstance(network, OfRows):
            network = network.among(torch.arange(len(batch.rows), device=batch.rows.device))
        return Noisy(network, self.drawn(batch)), gain

    def drawn(self, batch: Batch) -> Pixels:
        """Return the noise of each first view."""
        view = batch.views[0]
        return self.sigma * batch.noise.fork("training noise").gaussian(view.shape[1:], view.dtype)

    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: Prepared) -> Pixels:
        moved = super().__call__(learner, batch, domain, prepared) if self.steps else batch.views[0]
        return moved + self.drawn(batch)


class Noisy(nn.Module):
    """``module(x + noise)``, each image with its own."""

    def __init__(self, module: nn.Module, noise: Pixels) -> None:
        super().__init__()
        self.module, self.noise = module, noise

    def forward(self, x: Pixels) -> Codes:
        codes: Codes = self.module(x + self.noise)
        return codes
