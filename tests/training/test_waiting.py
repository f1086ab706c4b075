"""Steps that wait for no device: on ``meta`` tensors, which have no values, whatever looks at one raises."""

from __future__ import annotations

import pytest
import torch

from holdfast.training.learner import Batch, TrainingObjective, training_objectives
from holdfast.transforms.augmentations import colour as chance
from holdfast.transforms.base import Transform, transforms
from tests.training import tiny

AUGMENTATIONS = sorted(name for name, kind in transforms().items() if ".augmentations." in kind.__module__)
HOME = torch.device("meta")


def test_meta_tensors_are_awake() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.rand(3, device=HOME).isfinite().all())
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.rand(3, device=HOME).nonzero()


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentations_look_at_no_pixel(name: str) -> None:
    noise = tiny.batch(training_objectives()["simclr"]()).noise.to(HOME)
    pixels = torch.rand(tiny.IMAGES, 3, 32, 32, device=HOME)
    assert transforms()[name]().applied(pixels, noise).shape == pixels.shape


@pytest.mark.parametrize("name", ["color-jitter", "gaussian-blur", "horizontal-flip", "rvcl-cifar-view", "simclr-view"])
def test_views_are_the_same_where_all_images_are_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU every image goes through every operation, and the result is kept for those that are chosen."""
    view, batch = Transform.read(name), tiny.batch(training_objectives()["simclr"](), seed=3)
    pixels = batch.pixels.repeat(1, 1, 4, 4)
    expected = view.applied(pixels, batch.noise)
    monkeypatch.setattr(chance, "some_changed", chance.all_changed)
    torch.testing.assert_close(view.applied(pixels, batch.noise), expected)


@pytest.mark.parametrize("name", sorted(training_objectives()))
def test_steps_look_at_no_value(name: str) -> None:
    objective: TrainingObjective = tiny.small(training_objectives()[name]())
    learner, batch = tiny.learner(objective).to(HOME), tiny.batch(objective, attacked=True)
    assert batch.attacked is not None
    moved = Batch(
        batch.rows.to(HOME),
        batch.pixels.to(HOME),
        tuple(view.to(HOME) for view in batch.views),
        None if batch.labels is None else batch.labels.to(HOME),
        batch.noise.to(HOME),
        batch.attacked.to(HOME),
    )
    learner(moved).backward()
    learner.before_step(0.5)
    learner.after_step(0.5)
