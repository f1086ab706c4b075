"""The smallest encoder and batches that a training objective can be tried on."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain
from holdfast.core.noise import Noise
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective

DOMAIN = Domain((3, 8, 8))
WIDTH, SAMPLES, CLASSES, IMAGES = 12, 32, 3, 8


class Convolutions(nn.Module):
    """Two convolutions with batch norm and a mean over all places, for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, WIDTH, 3, stride=2), nn.Tanh()
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels).mean(dim=(2, 3))


def small(objective: TrainingObjective) -> TrainingObjective:
    """The objective with widths, queues and numbers of prototypes that are quick to compute."""
    values = {field.name: getattr(objective, field.name) for field in fields(objective)}
    sizes: dict[str, Any] = {name: 16 for name, value in values.items() if type(value) is int and value > 16}
    return replace(objective, **sizes)


def setting(batch: int = IMAGES) -> Setting:
    return Setting(DOMAIN, WIDTH, SAMPLES, CLASSES, batch)


def learner(objective: TrainingObjective, seed: int = 0, batch: int = IMAGES) -> Learner:
    """A learner around the tiny encoder, its weights drawn from ``seed``, prepared for its first epoch."""
    torch.manual_seed(seed)
    made = objective.learner(Convolutions(), setting(batch)).train()
    made.before_epoch(0, lambda: torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0)))
    return made


def batch(
    objective: TrainingObjective, seed: int = 0, dtype: torch.dtype = torch.float32, attacked: bool = False
) -> Batch:
    """A batch as the objective asks for it, of random images that differ much from each other."""
    generator = torch.Generator().manual_seed(seed)

    def pixels(size: int) -> Tensor:
        means = torch.rand(IMAGES, 3, 1, 1, generator=generator, dtype=torch.float64)
        return ((means + torch.rand(IMAGES, 3, size, size, generator=generator, dtype=torch.float64)) / 2).to(dtype)

    rows = torch.randperm(SAMPLES, generator=generator)[:IMAGES]
    views = tuple(pixels(8) for _ in range(objective.views)) + tuple(pixels(6) for _ in range(objective.crops))
    labels = rows % CLASSES if objective.needs_labels else None
    noise = Noise.of(seed, [str(int(row)) for row in rows])
    return Batch(rows, pixels(8), views, labels, noise, pixels(8) if attacked else None)


def chosen(whole: Batch, rows: Tensor) -> Batch:
    """The part of a batch at these rows."""
    return Batch(
        whole.rows[rows],
        whole.pixels[rows],
        tuple(view[rows] for view in whole.views),
        None if whole.labels is None else whole.labels[rows],
        whole.noise[rows],
        None if whole.attacked is None else whole.attacked[rows],
    )


def step(made: Learner, optimiser: torch.optim.Optimizer, data: Batch, progress: float) -> Tensor:
    """One step as the loop takes it; returns the loss."""
    torch.manual_seed(int(progress * 1000))
    optimiser.zero_grad()
    loss = made(data)
    loss.backward()
    made.before_step(progress)
    optimiser.step()
    made.after_step(progress)
    return loss.detach()


def optimiser(made: Learner) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for weight in made.parameters() if weight.requires_grad], lr=0.1, momentum=0.9)


def gradients(loss: Tensor, made: Learner) -> dict[str, Tensor]:
    """The gradient of every trained weight; those that the loss does not depend on have zero."""
    names = [name for name, weight in made.named_parameters() if weight.requires_grad]
    weights = [made.get_parameter(name) for name in names]
    found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def assert_same(made: Learner, loss: Tensor, expected: Tensor) -> None:
    """Assert that two losses and their gradients are equal up to the rounding of float64."""
    assert loss.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    ours, theirs = gradients(loss, made), gradients(expected, made)
    assert all(bool((ours[name] != 0).any()) for name in ours if name.startswith("encoder") and "weight" in name)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)
