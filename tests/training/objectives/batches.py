"""A small encoder in float64, and batches to train it on."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain
from holdfast.core.noise import Noise
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective

DOMAIN = Domain((1, 4, 4))
SAMPLES, WIDTH = 12, 6


def encoder() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, WIDTH)).double()


def learner(objective: TrainingObjective, batch: int = 8) -> Learner:
    """Return a learner whose weights are drawn anew, in float64."""
    torch.manual_seed(3)
    return objective.learner(encoder(), Setting(DOMAIN, WIDTH, SAMPLES, 0, batch)).double()


def batch(size: int = 8, views: int = 2, attacked: bool = False, first: int = 0) -> Batch:
    """Return some of the training images, from the ``first`` on; each image and view has pixels of its own."""
    rows = torch.arange(first, first + size)
    pixels = torch.rand(SAMPLES, 2 + views, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = Noise.of(0, [str(row) for row in rows.tolist()])
    whole, moved, *seen = pixels[rows].unbind(1)
    return Batch(rows, whole, tuple(seen), None, noise, moved if attacked else None)


def no_codes() -> Tensor:
    raise AssertionError("codes of all images are computed though nobody needs them")


def gradients(loss: Tensor, module: nn.Module) -> list[Tensor]:
    """Return the gradients of the weights that are trained."""
    return list(torch.autograd.grad(loss, [weight for weight in module.parameters() if weight.requires_grad]))


def projections(size: int = 9, width: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return two correlated views' projections, which take gradients."""
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(size, width, dtype=torch.float64, generator=generator)
    two = one + 0.3 * torch.randn(size, width, dtype=torch.float64, generator=generator)
    return one.requires_grad_(), two.requires_grad_()


def lightly() -> ModuleType:
    """Return lightly's losses, an independent implementation of several of ours."""
    declare_missing_operators()
    return pytest.importorskip("lightly.loss")


def same_with_gradients(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    """Check that two losses are the same number with the same gradients."""
    torch.testing.assert_close(ours, theirs)
    own, other = (torch.autograd.grad(loss, inputs, retain_graph=True) for loss in (ours, theirs))
    assert any(gradient.abs().max() > 0 for gradient in own), "vacuous: nothing to descend"
    torch.testing.assert_close(own, other)
