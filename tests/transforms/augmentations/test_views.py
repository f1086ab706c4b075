"""Views are chains by another name, and known by the versions of all their parts."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.transforms.augmentations.colour import ColorJitter
from holdfast.transforms.base import Transform, View, transformed, transforms, versions
from tests.transforms.augmentations.photographs import patches

VIEWS = [name for name, kind in transforms().items() if issubclass(kind, View)]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_does_what_its_chain_does(name: str):
    view = Transform.read(name)
    assert isinstance(view, View)
    assert Transform.read(str(view.chain)) == view.chain
    noise = Noise.of(0, ["a", "b", "c"])
    assert torch.equal(view.applied(patches(3), noise), view.chain.change(patches(3), noise.fork("transform", name)))


def test_views_make_chains_with_others():
    both = Transform.read("simclr-view:strength=0.5,blur=0 + noise:0.05")
    assert str(both) == "simclr-view:strength=0.5,blur=0.0 + noise:0.05"


def test_what_a_part_does_decides_what_a_view_is(monkeypatch: pytest.MonkeyPatch):
    images = Images(patches(2))
    before, text = transformed(images, "moco-cifar-view").fingerprint, versions(Transform.read("moco-cifar-view"))
    assert text == ("moco-cifar-view v1 (random-resized-crop v1 + horizontal-flip v1 + color-jitter v1 + grayscale v1)")
    monkeypatch.setattr(ColorJitter, "version", 2)
    assert transformed(images, "moco-cifar-view").fingerprint != before
